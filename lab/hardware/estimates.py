"""What CARMA's estimators say of the campaign's training runs: before a visit or after it, for no
GPU is needed."""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Sequence
from dataclasses import replace

from carma_testing import a_run, a_server, a_spec
from carmad.core.jobs.spec import JobSpec
from carmad.plugin import Estimate, Refusal
from estimators.gpumemnet import answer
from estimators.history import History
from estimators.horus import formula
from estimators.look import look
from lab.hardware.training import TRAIN, command
from lab.hardware.visit import Entry, Visit
from lab.memory.scripts import PATIENT, Here
from lab.memory.truth import MIB

STAGE = "estimates"  # the name of the file of entries


def estimate(visit: Visit, names: Sequence[str], gpu: str) -> None:
    """Look at each of the workloads, as the daemon looks at a job on a `gpu` of that name."""
    visit = replace(visit, stage=STAGE)
    here = Here()
    here.gpu = gpu
    for name in visit.todo(names, str):
        visit.keep(name, _looked(name, here, visit.rehearse))


def _looked(name: str, here: Here, rehearse: bool) -> Entry:
    """In MiB, without the context; Horus's has that of its formula."""
    report = look(_spec(name, rehearse), PATIENT, here)
    if isinstance(report, Refusal):
        return {"refused": report.why}
    layered = answer(report.layers, report.batch, context_mib=0)
    return {
        "trace_mib": math.ceil(report.reserved / MIB),
        "low_mib": report.floor // MIB,
        "high_mib": math.ceil(report.safe / MIB),
        "faketensor_mib": math.ceil(report.faketensor / MIB),
        "horus_mib": round(formula(report.layers, report.batch)),
        "gpumemnet_mib": layered.mib if isinstance(layered, Estimate) else None,
        "torch": report.torch,
        "seconds": round(report.seconds, 1),
    }


def by_history(name: str, peak_mib: int) -> int | None:
    """What `history` says of a second run, after one with this peak."""
    argv = tuple(command(name))
    history = History(a_server(runs=[a_run(peak_mib, argv=argv)]), outdated=True, asks=False)
    found = history.estimate(a_spec(argv=argv))
    return found.mib if isinstance(found, Estimate) else None


def _spec(name: str, rehearse: bool) -> JobSpec:
    """A rehearsal's network is small, too, but the trace is of CUDA."""
    argv = [word for word in command(name, rehearse=rehearse) if word != "--device=cpu"]
    me = pwd.getpwuid(os.getuid())
    return JobSpec(
        argv=tuple(argv),
        user=me.pw_name,
        uid=me.pw_uid,
        gid=me.pw_gid,
        cwd=str(TRAIN.parent),
        name=name,
        env=tuple(
            (name, os.environ[name]) for name in ("PATH", "PYTHONPATH") if name in os.environ
        ),
    )
