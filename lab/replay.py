"""Replays a daemon's journal: feeds a new core the events of the old one, and compares their
decisions. If they differ, CARMA or a plugin may have been of a different version."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from carmad import registry
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.history import History as CoreHistory
from carmad.core.jobs.job import Job
from carmad.core.messages import Discovered, Trained
from carmad.core.placing.decision import FALLBACK, Decision, Failure
from carmad.core.scheduler import Scheduler
from carmad.errors import CarmaError
from carmad.store import journal

# -- plugins that fail at exactly the calls that failed when the journal was recorded, and answer
# all others

T = TypeVar("T")


class Again(Exception):
    """An error that a plugin raised, with its message."""

    def __repr__(self) -> str:
        return str(self)


class Script:
    """Which calls fail in the current step."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, int], str] = {}
        self._numbers: Counter[str] = Counter()

    def begin(self, failures: Sequence[Failure]) -> None:
        self._due = {(each.question, each.number): each.error for each in failures}
        self._numbers.clear()

    def ask(self, question: str, put: Callable[[], T]) -> T:
        self._numbers[question] += 1
        error = self._due.get((question, self._numbers[question]))
        if error is not None:
            raise Again(error)
        return put()


class _Failing:
    """A plugin whose methods are called like the questions that are recorded."""

    def __init__(self, plugin: Any, script: Script, whose: str = "") -> None:
        """`whose`: "", or FALLBACK."""
        self.name: str = plugin.name
        self._plugin, self._script, self._whose = plugin, script, whose

    def __getattr__(self, question: str) -> Any:
        answer = getattr(self._plugin, question)
        return lambda *asked: self._script.ask(self._whose + question, lambda: answer(*asked))


def failing(plugin: Any, script: Script, whose: str = "") -> Any:
    """A policy, a recovery or a predictor."""
    return _Failing(plugin, script, whose)


@dataclass(frozen=True, slots=True)
class Difference:
    """A step at which the core's output differs from the journal."""

    step: int  # counted from 1, in the segment
    at: float
    recorded: tuple[Decision, ...]
    made: tuple[Decision, ...]
    error: str = ""  # what the core raised, if it did


@dataclass(frozen=True, slots=True)
class Reproduction:
    carma: str  # the version that recorded it
    policy: str
    steps: int  # replayed
    decisions: int  # repeated, equal in every number
    first: Difference | None  # the replay stops there, as the core is in another state


def reproduce(segment: Path) -> Reproduction:
    """Feeds a new core the journal's events, under the same settings and plugins.

    The decisions are equal in every number, since the core is a function of its events. Some
    differences do not indicate a fault, in segments that do not begin with the daemon: the usage of
    a running job (`Job.usage`) may be up to a minute newer than it was, for policies that use it;
    measurements of a job that was being profiled are missing, and so is the policy's memory; the
    history has only the latest runs (`core.jobs.history.RUNS`), while the daemon may know older
    runs of rare jobs; and the effect that a failing plugin had had on the queue is missing. Every
    call to a plugin that failed fails again, including timeouts.

    Raises CarmaError if the file is not a segment, or a plugin is missing.
    """
    begin, turns = journal.read(segment)
    script = Script()
    core = _core(begin, script)
    told = {decision.placement.job: decision for decision in begin.decisions}
    steps = decisions = 0
    for steps, turn in enumerate(turns, 1):
        made: tuple[Decision, ...] = ()
        error = ""
        script.begin(turn.failures)
        try:
            step = core.handle(*turn.events)
            _forget(told, step.jobs)
            made = tuple(_news(step.decisions, told))
        except Exception as raised:  # noqa: BLE001 - the file may contain anything
            error = repr(raised)
        if error or made != turn.decisions:
            first = Difference(steps, turn.events[-1].at, turn.decisions, made, error)
            return Reproduction(begin.carma, begin.settings.policy, steps, decisions, first)
        decisions += len(made)
    return Reproduction(begin.carma, begin.settings.policy, steps, decisions, None)


def _core(begin: journal.Begin, script: Script) -> Scheduler:
    """A core in the segment's initial state: its windows are filled before it has any jobs."""
    settings, deputy = begin.settings, begin.settings.policy_fallback
    fallback = registry.bare_policy(replace(settings, policy=deputy)) if deputy else None
    core = Scheduler(
        settings,
        failing(registry.bare_policy(settings), script),
        failing(registry.bare_recovery(settings), script),
        failing(registry.bare_predictor(settings), script),
        failing(fallback, script, FALLBACK) if fallback else None,
        lambda new: (
            failing(registry.bare_policy(new), script),
            failing(registry.bare_predictor(new), script),
        ),
    )
    core.handle(Discovered(0.0, begin.gpus, begin.unread))
    for sampled in begin.samples:
        core.handle(sampled)
    core.handle(Trained(0.0, begin.models))
    history = CoreHistory(begin.runs, begin.submissions)
    core.restore(
        begin.jobs,
        begin.ended,
        begin.drains,
        begin.last_placed,
        history,
        begin.accounts,
        begin.ranks,
        begin.limits,
        begin.reservations,
    )
    return core


def _news(made: tuple[Decision, ...], told: dict[JobId, Decision]) -> Iterator[Decision]:
    """Without decisions made before the segment began, which a new core repeats."""
    for decision in made:
        before = told.pop(decision.placement.job, None)
        if before is None or not before.same_story(decision):
            yield decision


def _forget(told: dict[JobId, Decision], jobs: tuple[Job, ...]) -> None:
    for job in jobs:
        if job.ended:
            told.pop(job.id, None)


def main(arguments: Sequence[str]) -> int:
    """Says of each segment whether all decisions are the same."""
    parser = ArgumentParser(prog="python -m lab.replay", description=__doc__)
    parser.add_argument("segments", nargs="+", type=Path, help="files of a journal")
    is_equal = True
    for segment in parser.parse_args(arguments).segments:
        try:
            made = reproduce(segment)
        except (CarmaError, OSError) as error:
            print(f"{segment}: {error}", file=sys.stderr)
            return 2
        print(f"{segment.name}: {made.decisions} decisions of {made.policy} in {made.steps} steps")
        if first := made.first:
            is_equal = False
            told = first.error or f"{first.made!r:.500}"
            print(f"  at {first.at:.3f} (step {first.step}) not {first.recorded!r:.500} but {told}")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
