"""How long a look at a training script takes, cold.

The scripts are those of the tests: own small examples in the shape of ten popular public ones. Each
is looked at as the daemon does it, in a new process, with nothing remembered. A loop that imports
torch alone says what of it is torch's.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from benchmarks.harness.data import ROOT
from benchmarks.harness.main import main
from benchmarks.harness.report import Report, of_rows
from benchmarks.harness.rows import Row, columns, of_runs
from benchmarks.memory.truth import MIB
from carmad.config import Estimation, Settings
from carmad.core.ports import Run, Trial
from carmad.core.types import JobSpec
from carmad.learned.trial import tried
from estimators.look import look
from estimators.tracer.report import Report as TraceReport

SCRIPTS = ROOT / "tests" / "scripts"
RUNS = 3
PATIENT = Settings(estimation=Estimation(within_s=60.0))


class Here:
    """This machine, as an estimator sees it: without a past."""

    gpu = "NVIDIA A100-SXM4-40GB"
    driver = ""
    explain = False

    def users(self) -> Sequence[int]:
        return ()

    def runs(self, uid: int) -> Sequence[Run]:
        return ()

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        return tried(spec, argv, within_s, Event())


@dataclass(frozen=True, slots=True)
class Looked:
    script: str
    wall_s: tuple[float, ...]
    processor_s: tuple[float, ...]
    reserved_mib: int | None
    refused: str


def measure() -> Report:
    looked = [_looked(path.name) for path in sorted(SCRIPTS.glob("*.py"))]
    torch_s = [_torch_alone() for _ in range(RUNS)]
    traced = [one for one in looked if not one.refused]
    walls = [statistics.median(one.wall_s) for one in looked]
    rows = [
        Row("cold scripts", "median of the scripts' medians", statistics.median(walls), "s", 3),
        Row("cold scripts", "longest median", max(walls), "s"),
        of_runs("cold scripts", "import torch, and nothing else", torch_s, "s"),
        Row("cold scripts", "traced", len(traced), f"of {len(looked)}"),
    ]
    table = columns(
        looked,
        ("script", "{0.script}"),
        ("wall s", lambda one: f"{statistics.median(one.wall_s):.2f}"),
        ("runs", lambda one: f"{min(one.wall_s):.2f}–{max(one.wall_s):.2f}"),
        ("processor s", lambda one: f"{statistics.median(one.processor_s):.2f}"),
        ("reserved MiB", lambda one: "–" if one.reserved_mib is None else str(one.reserved_mib)),
        ("refused because", "{0.refused}"),
        text=(0, 5),
    )
    return of_rows(
        "Looks at training scripts, cold",
        rows,
        table,
        data={"import_torch_s": torch_s, "scripts": looked},
        notes=[f"{RUNS} runs each, one after the other"],
    )


def _looked(script: str) -> Looked:
    walls, processors = [], []
    answer = None
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="carma-look-") as directory:
            shutil.copy(SCRIPTS / script, directory)
            before, begun = _processor_s(), time.perf_counter()
            answer = look(_spec((sys.executable, script), directory), PATIENT, Here())
            walls.append(time.perf_counter() - begun)
            processors.append(_processor_s() - before)
    traced = isinstance(answer, TraceReport)
    return Looked(
        script,
        tuple(walls),
        tuple(processors),
        round(answer.reserved / MIB) if isinstance(answer, TraceReport) else None,
        "" if traced or answer is None else str(getattr(answer, "why", "")),
    )


def _torch_alone() -> float:
    argv = (sys.executable, "-c", "import torch")
    begun = time.perf_counter()
    tried(_spec(argv, "/"), argv, 60.0, Event())
    return time.perf_counter() - begun


def _spec(argv: tuple[str, ...], cwd: str) -> JobSpec:
    me = pwd.getpwuid(os.getuid())
    path = (("PATH", os.environ["PATH"]),)
    return JobSpec(
        argv=argv, user=me.pw_name, uid=me.pw_uid, gid=me.pw_gid, cwd=cwd, name="look", env=path
    )


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main("memory_scripts", measure)
