"""Tries a job's script: turns its command into the tracer's, runs it briefly, reads the report.

The tracer runs in the job's own Python, with the same interpreter options, a leading `env A=b`,
`-m` and `-c`. Nothing that the command names is opened or looked for here, as the daemon is root:
which Python a script's `#!` line names, or which command a shell script has, is found out in the
trial, as the user (`tracer.find`).
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

from carmad.plugin import Estimate, JobSpec, Refusal, Server, Settings, Trial
from estimators.tracer import command
from estimators.tracer.command import Options, Program, Unreadable
from estimators.tracer.report import LONGER, Report, loads

TRACER = Path(__file__).parent / "tracer"

log = logging.getLogger(__name__)


def look(spec: JobSpec, settings: Settings, server: Server) -> Report | Refusal:
    """Run two optimizer steps of the job's script without a GPU, and what follows."""
    began = time.monotonic()
    try:
        program = parse(spec)
        options = Options(
            within_s=settings.estimation.within_s,
            longest_s=settings.estimation.longest_s,
            rest_s=settings.estimation.rest_s,
            host_memory_mib=settings.estimation.host_memory_mib,
            gpu=server.gpu,
            gpus=spec.gpus,
            has_uuids=_has_uuids(spec, settings),
            explain=server.explain,
            patches=patches(),
        )
        argv = (*program.python, str(TRACER), options.dumps(), *program.script)
        return report(server.trial(spec, argv, options.longest_s), options.longest_s)
    except Unreadable as error:
        seconds = time.monotonic() - began
        return Refusal(str(error), "look", seconds, late=error.late, crash=error.crash)


@cache
def patches(*libraries: str) -> tuple[tuple[str, str], ...]:
    """The installed patches, of all libraries or of these. They are entry points of the group
    `carma.tracer_patches`: the library (a module) whose import has one applied, and its file. None
    is imported here: they are for the job's Python."""
    points = entry_points(group="carma.tracer_patches")
    found = [(each.name, _file(each.module)) for each in points]
    for library in (library for library, path in found if not path):
        log.error("no patch for %s: its file is missing; reinstall the package", library)
    asked = libraries or {library for library, _ in found}
    return tuple(sorted((library, path) for library, path in found if path and library in asked))


def _file(module: str) -> str:
    """The path of a module's file, found without importing the module or its package."""
    folders: list[str] | None = None
    path, name = "", ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return ""
        folders, path = spec.submodule_search_locations, spec.origin or ""
    return path


def _has_uuids(spec: JobSpec, settings: Settings) -> bool:
    """Whether the job will see its GPUs named by UUIDs, as far as that is known before it runs."""
    shared = settings.collocation
    under_mps = shared.mps and not spec.exclusive
    return bool(shared.visible_devices == "uuid" or under_mps or spec.container or spec.allocation)


@dataclass(frozen=True, slots=True)
class Reader:
    """An estimator that reads its estimate off the report on a job's script."""

    name: str
    settings: Settings
    server: Server
    read: Callable[[Report, Settings], Estimate | Refusal]

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        seen = look(spec, self.settings, self.server)
        if isinstance(seen, Refusal):
            return replace(seen, source=self.name)
        return replace(self.read(seen, self.settings), seconds=seen.seconds)


def report(trial: Trial, longest_s: float) -> Report:
    """The trial's report. Raises Unreadable with the reason if there is none."""
    if trial.error:
        raise Unreadable(f"its Python did not start: {trial.error}")
    if trial.answer:
        try:
            answer = loads(trial.answer)
        except ValueError:
            raise Unreadable("its tracer was cut short") from None
        if isinstance(answer, Report):
            return answer
        why = f"{answer.why}; {LONGER}" if answer.late else answer.why
        raise Unreadable(why, late=answer.late, crash=answer.crash)
    if trial.beyond:
        raise Unreadable(trial.beyond)
    if trial.timed_out:
        why = f"it took no two optimizer steps within {longest_s:g} s"
        raise Unreadable(f"{why}; {LONGER}", late=True)
    said = next((line for line in reversed(trial.output.splitlines()) if line.strip()), "")
    words = f": {said.strip()[:200]}" if said else ""
    if trial.signal is not None:
        known = {int(one): one.name for one in signal.Signals}  # not the real-time ones between
        name = known.get(trial.signal, f"signal {trial.signal}")
        raise Unreadable(f"{name} ended it before two optimizer steps{words}")
    raise Unreadable(f"it left with status {trial.code} before two optimizer steps{words}")


def parse(spec: JobSpec) -> Program:
    """Raises Unreadable."""
    if spec.argv[0].startswith("timm:"):
        return _timm(spec.argv)
    return command.parse(spec.argv)


def _timm(argv: Sequence[str]) -> Program:
    missing = [name for name in ("torch", "timm") if importlib.util.find_spec(name) is None]
    if missing:
        lacks = " and ".join(missing)
        raise Unreadable(f"CARMA's Python has no {lacks}, of the optional part estimators")
    name = argv[0].removeprefix("timm:")
    return Program((sys.executable,), (str(TRACER / "timm_model.py"), name, *argv[1:]))
