"""Real servers in the simulator's hands: a journal's decisions are made again, step by step, and
the daemon is asked for its history, to try other policies on it (`carmad.sim.recorded`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from carmad import registry
from carmad.config import Settings
from carmad.core.decision import Decision
from carmad.core.history import History as CoreHistory
from carmad.core.messages import Discovered, Trained
from carmad.core.scheduler import Scheduler
from carmad.core.types import Job, JobId
from carmad.sim import recorded
from carmad.sim.failing import FailingPolicy, FailingPredictor, FailingRecovery, Script, fallback
from carmad.sim.recorded import History
from carmad.store import journal

PAGE = 2000  # jobs asked for at a time


@dataclass(frozen=True, slots=True)
class Difference:
    """A step after which the core said something else than the journal has."""

    step: int  # counted from 1, in the segment
    at: float
    recorded: tuple[Decision, ...]
    made: tuple[Decision, ...]
    error: str = ""  # what the core raised, if it did


@dataclass(frozen=True, slots=True)
class Reproduction:
    carma: str  # the version that recorded it
    policy: str
    steps: int  # that were gone through
    decisions: int  # that were made again, equal in every number
    first: Difference | None  # what follows it is not looked at: the core is in another state


def reproduce(segment: Path) -> Reproduction:
    """Feeds a new core what the journal's core was fed, under the same settings and plugins.

    Equal to the last number, as the core is a function of its events. Some things may differ where
    nothing is wrong. A segment that does not begin with the daemon has the jobs' usage as of then;
    what a running job used (`Job.usage`) may be up to a minute fresher than it was, for policies
    that look at it. Of a job that was being profiled, it does not have what was measured until
    then, nor what the policy remembered; and of the history only the latest runs
    (`carmad.core.history.RUNS`), while the daemon may know seldom jobs from before. Of a plugin
    that was failing when it began, it does not have what that had done to the line until then. Each
    question that a plugin failed at fails again, be it that it did not answer in time.

    Raises CarmaError for what is no segment, and where a plugin is missing.
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
        except Exception as raised:  # noqa: BLE001 - the file may say anything
            error = repr(raised)
        if error or made != turn.decisions:
            first = Difference(steps, turn.events[-1].at, turn.decisions, made, error)
            return Reproduction(begin.carma, begin.settings.policy, steps, decisions, first)
        decisions += len(made)
    return Reproduction(begin.carma, begin.settings.policy, steps, decisions, None)


def _core(begin: journal.Begin, script: Script) -> Scheduler:
    """One in the state that the segment begins with: its windows are filled while it has no job."""
    settings = begin.settings
    core = Scheduler(
        settings,
        FailingPolicy(registry.policy(settings), script),
        FailingRecovery(registry.recovery(settings), script),
        FailingPredictor(registry.predictor(settings), script),
        fallback(registry.fallback(settings), script),
    )
    core.handle(Discovered(0.0, begin.gpus, begin.unread))
    for sampled in begin.samples:
        core.handle(sampled)
    core.handle(Trained(0.0, begin.models))
    history = CoreHistory(begin.runs, begin.submissions)
    core.restore(begin.jobs, begin.ended, begin.drains, begin.last_placed, history)
    return core


def _news(made: tuple[Decision, ...], told: dict[JobId, Decision]) -> Iterator[Decision]:
    """Without those that were told before the segment began: the new core does not know that."""
    for decision in made:
        before = told.pop(decision.placement.job, None)
        if before is None or not before.same_story(decision):
            yield decision


def _forget(told: dict[JobId, Decision], jobs: tuple[Job, ...]) -> None:
    for job in jobs:
        if job.ended:
            told.pop(job.id, None)


def from_history(
    get: Callable[..., Any],
    user: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> History:
    """The jobs that have ended, as a workload and as what came of it.

    `get(path, **query)` asks the daemon's API, as `cli.client.get` does; `since` and `until` are
    times as the API takes them. Who is no administrator gets their own jobs. Raises CarmaError
    when no job has run yet, and what `get` raises.
    """
    ended: list[Any] = []
    query: dict[str, Any] = {"user": user, "since": since, "until": until, "attempts": True}
    while page := get("/v1/history", **query, limit=PAGE)["jobs"]:
        ended += page
        query["before"] = page[-1]["id"]
    settings = TypeAdapter(Settings).validate_python(get("/v1/config")["settings"])
    live = get("/v1/jobs")["jobs"]
    return recorded.history(ended, live, get("/v1/gpus")["gpus"], settings)
