"""Checks in the manner of the self-test's that a child of the stage carries out, one at a time.

A driver that hangs costs one of them, and in a rehearsal the child finds the fake libraries where
the driver's would be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import circumstances
from carmad import paths
from carmad.configfile import load
from carmad.errors import CarmaError
from carmad.selftest import bench
from carmad.selftest.bench import MARK, Probe, ProbeFailed
from carmad.selftest.facts import Fact
from carmad.selftest.report import Verdict
from carmad.selftest.run import run
from lab.hardware.visit import Visit
from lab.selftest import PROBE

END_S = 40.0  # for the child to end its own processes, MPS last
BUSY_S = 4.0
REHEARSED_BUSY_S = 0.7


def measure(
    visit: Visit,
    facts: Sequence[Fact],
    module: str,
    within_s: float,
    takes_s: Callable[[Fact], float] = lambda _: 0.0,
) -> None:
    """Each by `module` as a program (`serve`). A fact whose check fails is kept as such; the next
    gets a new child."""
    busy_s = REHEARSED_BUSY_S if visit.rehearse else BUSY_S
    device = "" if visit.rehearse else visit.gpu
    with contextlib.ExitStack() as stack:
        env: dict[str, str] = {}
        child: Probe | None = None
        try:
            for fact in visit.todo(facts, lambda fact: fact.name, takes_s):
                env = env or stack.enter_context(_environment(visit))
                child = child or Probe([sys.executable, "-m", module], env)
                try:
                    found = child.ask(fact.name, within_s, busy_s=busy_s, device=device)
                except ProbeFailed as error:
                    said = str(error)
                    found = {"verdict": Verdict.UNKNOWN, "detail": said, "failed": said}
                    _end(child, env)
                    child = None
                visit.keep(fact.name, found)
        finally:
            if child is not None:
                _end(child, env)


def _end(child: Probe, env: Mapping[str, str]) -> None:
    """With all that it started: one that hangs in the driver cannot do that itself."""
    child.end(END_S)
    bench.kill_leftovers(Path(env[MARK]))


@contextlib.contextmanager
def _environment(visit: Visit) -> Iterator[dict[str, str]]:
    """Of children, whose processes name its folder."""
    root = str(Path(__file__).parents[2])
    with contextlib.ExitStack() as stack:
        env = dict(os.environ)
        if visit.rehearse:
            from lab.hardware.machine import fake_driver

            env = stack.enter_context(fake_driver())
        folders = filter(None, (root, os.environ.get("PYTHONPATH")))
        folder = stack.enter_context(bench.folder())
        yield env | {"PYTHONPATH": os.pathsep.join(folders), MARK: str(folder)}


def serve(facts: Sequence[Fact]) -> None:
    """As `carmad.selftest.probe`: a line in, a line out."""
    known = {fact.name: fact for fact in facts}
    for line in sys.stdin:
        request = json.loads(line)
        found = answer(known[request["do"]], request["busy_s"], request["device"])
        print(json.dumps(found), flush=True)


def answer(fact: Fact, busy_s: float, device: str) -> dict[str, Any]:
    """What its check found, and where and when."""
    path = Path(paths.config_path())
    settings = load(path if path.exists() else None, os.environ)
    try:
        report = run(settings, device, facts=[fact], busy_s=busy_s, probe=PROBE)
    except CarmaError as error:
        return {"error": error.message, "call": f"{error.message}; {error.hint}"}
    except Exception as error:  # noqa: BLE001 - the driver is foreign code
        return {"error": type(error).__name__, "call": f"{type(error).__name__}: {error}"}
    (finding,) = report.findings
    found = asdict(report) | asdict(finding) | {"commit": circumstances()["commit"]}
    del found["findings"], found["failed"]
    return found | ({"failed": finding.detail} if finding.failed else {})
