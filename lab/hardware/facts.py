"""Stage `facts`: the self-test of `carma doctor --gpu`, an entry per fact.

The checks are run by a child, which this module is as a program, too: a driver that hangs costs one
fact, and in a rehearsal the child finds the fake libraries where the driver's would be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carmad import paths
from carmad.configfile import load
from carmad.errors import CarmaError
from carmad.selftest import bench
from carmad.selftest.bench import MARK, Probe, ProbeFailed
from carmad.selftest.facts import FACTS
from carmad.selftest.report import Verdict
from carmad.selftest.run import run
from lab.hardware.visit import Portion, Stage, Visit

FACT_S = 180.0  # the longest takes half a minute; a first import of PyTorch some more
END_S = 40.0  # for the child to end its own processes, MPS last
BUSY_S = 4.0
REHEARSED_BUSY_S = 0.7
CHECKED = [fact for fact in FACTS if fact.check is not None]


def measure(visit: Visit) -> None:
    """A fact whose check fails is kept as such; the next gets a new child."""
    busy_s = REHEARSED_BUSY_S if visit.rehearse else BUSY_S
    device = "" if visit.rehearse else visit.gpu
    with _environment(visit) as env, bench.folder() as folder:
        env[MARK] = str(folder)
        child: Probe | None = None
        try:
            for fact in visit.todo(CHECKED, lambda fact: fact.name):
                child = child or Probe([sys.executable, "-m", "lab.hardware.facts"], env)
                try:
                    found = child.ask(fact.name, FACT_S, busy_s=busy_s, device=device)
                except ProbeFailed as error:
                    said = str(error)
                    found = {"verdict": Verdict.UNKNOWN, "detail": said, "failed": said}
                    _end(child, folder)
                    child = None
                visit.keep(fact.name, found)
        finally:
            if child is not None:
                _end(child, folder)


def _end(child: Probe, folder: Path) -> None:
    """With all that it started: one that hangs in the driver cannot do that itself."""
    child.end(END_S)
    bench.kill_leftovers(folder)


@contextlib.contextmanager
def _environment(visit: Visit) -> Iterator[dict[str, str]]:
    root = str(Path(__file__).parents[2])
    here = {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    if not visit.rehearse:
        yield dict(os.environ) | here
        return
    from lab.hardware.machine import fake_driver

    with fake_driver() as env:
        yield env | here


def answer(name: str, busy_s: float, device: str) -> dict[str, Any]:
    """One fact's finding, and where and when it was found."""
    path = Path(paths.config_path())
    settings = load(path if path.exists() else None, os.environ)
    try:
        facts = [fact for fact in FACTS if fact.name == name]
        report = run(settings, device, facts=facts, busy_s=busy_s)
    except CarmaError as error:
        return {"error": error.message, "call": f"{error.message}; {error.hint}"}
    except Exception as error:  # noqa: BLE001 - the driver is foreign code
        return {"error": type(error).__name__, "call": f"{type(error).__name__}: {error}"}
    (finding,) = report.findings
    found = asdict(report) | asdict(finding)
    del found["findings"], found["failed"]
    return found | ({"failed": finding.detail} if finding.failed else {})


def blocks(visit: Visit) -> list[str]:
    found = visit.entries()
    rows = [
        f"| {fact.relies_on} | {entry['verdict']} | {_cell(entry['detail'])} |"
        for fact in CHECKED
        if (entry := found.get(fact.name))
    ]
    counts = [sum(e["verdict"] == word for e in found.values()) for word in ("holds", "differs")]
    return [
        f"Of {len(CHECKED)} facts with a check, {counts[0]} hold and {counts[1]} differ.",
        "\n".join(["| CARMA relies on | | seen |", "|---|---|---|", *rows]),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """As `carmad.selftest.probe`: a line in, a line out."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request["do"], request["busy_s"], request["device"])), flush=True)


STAGE = Stage(
    name="facts",
    about="what CARMA relies on, checked on this GPU",
    parts=(Portion(f"{len(CHECKED)} facts", 3.0),),
    packages=(),
    measure=measure,
    blocks=blocks,
)

if __name__ == "__main__":
    main()
