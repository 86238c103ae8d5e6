"""Stage `faults`: jobs that run out of memory together, crash, ignore signals or exhaust the host,
and a daemon that is killed. What was expected beside what was observed and told."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from benchmarks.daemon.carmad import NotStarted
from benchmarks.harness import markdown_table, verdict
from lab.hardware.cases import CASES, Case, Lab, settings
from lab.hardware.machine import fake_driver, refuse_beside_another, running
from lab.hardware.visit import Entry, Portion, Stage, Visit

HEADINGS = ("case", "who", "expected", "observed", "")


def measure(visit: Visit) -> None:
    refuse_beside_another(visit)
    for case in visit.todo(CASES, lambda case: case.name, lambda case: 60 * case.minutes):
        print(f"faults: {case.name}", file=sys.stderr, flush=True)
        visit.keep(case.name, tried(case, visit))


def tried(case: Case, visit: Visit) -> Entry:
    """An error of the case's own is an answer, too: the others go on."""
    begun, error = time.monotonic(), ""
    lab = Lab(visit.rehearse, case.mps)
    try:
        with _driver(lab), running(visit, settings(lab)) as lab.daemon:
            case.run(lab)
    except (Exception, NotStarted) as raised:  # noqa: BLE001 - whatever it is, it is a finding
        error = f"{type(raised).__name__}: {raised}"[:300]
        traceback.print_exc()
    return {
        "about": case.about,
        "checks": lab.checks,
        "jobs": lab.told,
        **({"failed": error} if error else {}),
        "seconds": round(time.monotonic() - begun, 1),
    }


@contextmanager
def _driver(lab: Lab) -> Iterator[None]:
    """Emulated cards have no MPS: a rehearsal of what needs it has the fake driver of the tests."""
    if not lab.faked:
        yield
        return
    with fake_driver() as env, mock.patch.dict(os.environ, env):
        yield


def blocks(visit: Visit) -> list[str]:
    kept = visit.entries()
    done = [(case, kept[case.name]) for case in CASES if case.name in kept]
    rows = [
        (case.name, check["who"], check["expected"], check["observed"], _verdict(check["met"]))
        for case, entry in done
        for check in [*entry["checks"], *_failed(entry)]
    ]
    found = [check["met"] for _, entry in done for check in [*entry["checks"], *_failed(entry)]]
    unknown = f", {found.count(None)} cannot be told here" if None in found else ""
    left = [case.name for case in CASES if case.name not in kept]
    return [
        f"{found.count(True)} of {len(found) - found.count(None)} expectations met{unknown}."
        + (f" Not tried yet: {', '.join(left)}." if left else ""),
        markdown_table(HEADINGS, rows),
        "## What was told",
        "From `carma show`: how each job ended, and why its earlier attempts did.",
        markdown_table(
            ("case", "job", "state", "attempts ended with", "said"),
            [(case.name, *_told(job)) for case, entry in done for job in entry["jobs"]],
        ),
    ]


def _failed(entry: Entry) -> list[Entry]:
    if "failed" not in entry:
        return []
    return [{"who": "the case", "expected": "ends", "observed": entry["failed"], "met": False}]


def _verdict(met: bool | None) -> str:
    return "cannot be told" if met is None else verdict(met)


def _told(job: Entry) -> tuple[str, str, str, str]:
    said = [job["evidence"], *job["neighbours"], job["advice"], *job["notes"]]
    smooth = job["attempts"] == ["success"]
    words = dict.fromkeys(word for word in said if word and not smooth)
    return job["who"], job["state"], ", ".join(job["attempts"]), "; ".join(words)


STAGE = Stage(
    "faults",
    "OOM storms, crashes beside neighbours, a killed daemon, deaf jobs, host OOM",
    tuple(Portion(case.name, case.minutes) for case in CASES),
    ("torch",),
    measure,
    blocks,
)
