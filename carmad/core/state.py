"""The core's state: one value, which the handlers of events change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from carmad.config import Settings
from carmad.core.gpus.fleet import Fleet
from carmad.core.gpus.idling import Idleness
from carmad.core.gpus.readings import UsageProfiler
from carmad.core.jobs.attempt import Cause, GpuId, JobId
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, stopping
from carmad.core.jobs.ledger import Ledger
from carmad.core.jobs.tasks import Outcome
from carmad.core.messages import Action, Stop
from carmad.core.placing.decision import FALLBACK, ORDER, Calls, Decision
from carmad.core.placing.view import Policy
from carmad.core.ports import Predictor, Recovery
from carmad.core.rules.limits import Limit
from carmad.core.rules.share import Shares, Standing
from carmad.learning.models import Model

FIRST_TRY_S = 5.0  # until a failed policy is asked again; doubled at each further failure


@dataclass(slots=True)
class Deciding:
    """Who decides: the policy, or the configured fallback while the policy fails. Without a
    fallback, jobs wait until the policy answers."""

    policy: Policy
    fallback: Policy | None
    stands_in: bool = False  # the fallback does
    ask_at: float = -inf  # when the policy that failed is asked again
    delay_s: float = FIRST_TRY_S
    unordered: dict[JobId, None] = field(default_factory=dict)  # `order` failed: last in the queue

    @property
    def acting(self) -> Policy:
        return self.fallback if self.fallback and self.stands_in else self.policy


@dataclass(slots=True)
class Plans:
    """What earlier plans left for the next one."""

    last_placed: GpuId | None = None  # round-robin's position
    memory: object = None  # the policy's
    asks_at: float = inf  # when the last plan asked to be called again
    blocked_until: dict[int, float] = field(default_factory=dict)  # of waiting jobs: see `View`
    decisions: dict[JobId, Decision] = field(default_factory=dict)  # the latest one on each job


class State:
    """`settings` stand here only, and are read at each use: `Reconfigured` replaces them. What the
    present step collects, `begin_step` forgets."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        recovery: Recovery,
        predictor: Predictor | None = None,
        fallback: Policy | None = None,
        make_plugins: Callable[[Settings], tuple[Policy, Predictor]] | None = None,
    ) -> None:
        self.settings = settings
        self.deciding = Deciding(policy, fallback)
        self.make_plugins = make_plugins  # that new settings name; None: the first ones stay
        self.recovery = recovery
        self.predictor = predictor
        self.models: dict[str, Model] = {}  # trained models, by name
        self.fleet = Fleet()
        self.history = History()
        self.counted = OrderedDict[JobId, None]()  # submissions that the history has lately
        self.profiler = UsageProfiler()
        self.idleness = Idleness()
        self.usage_saved_at = 0.0
        self.shares = Shares(settings.fairness)
        self.limits: dict[str, Limit] = {}
        self.calls = Calls()
        self.take_up(())
        self.begin_step()

    def take_up(
        self, jobs: Iterable[Job], ended: Iterable[Outcome] = (), last_placed: GpuId | None = None
    ) -> None:
        """These are the jobs from now on."""
        self.ledger = Ledger(self.order, jobs, ended, self.standing)
        self.plans = Plans(last_placed)

    def begin_step(self) -> None:
        """Forget the last step's changes, and the measurements of attempts that are over: that step
        is on disk, or `restore` would have been called."""
        for job in self.ledger.changes():
            if not job.holds_gpus:
                self.fleet.forget(job.id)
            if job.ended:
                self.profiler.forget(job.id)
        self.ledger.forget_changes()
        self.shares.changed.clear()
        self.calls.forget()
        self.actions: list[Action] = []
        self.news: list[Decision] = []  # those whose choice or reasons changed
        self.limited: list[Limit] = []  # as set
        self.has_new_drains = self.has_new_reservations = False

    def stop(self, job: Job, cause: Cause) -> None:
        """Begin to stop a job that holds GPUs, runs without any, or is suspended."""
        stopped = stopping(job, cause)
        self.ledger.put(stopped)
        self.actions.append(Stop(stopped))

    def named(self, first: JobId, more: int) -> list[Job]:
        """Of this job and so many whose ids follow its own, those that have not ended."""
        return self.ledger.jobs.parts(range(first, first + 1 + more))

    # -- the places in line

    def order(self, job: Job) -> float:
        """The sort key that the policy gives; infinite, so last in line, if the policy fails."""
        policy = self.deciding.acting
        question = ORDER if policy is self.deciding.policy else FALLBACK + ORDER
        self.deciding.unordered.pop(job.id, None)
        try:
            return self.calls.make(question, lambda: policy.order(job))
        except Exception:  # noqa: BLE001 - foreign code
            self.deciding.unordered[job.id] = None
            return inf

    def standing(self, job: Job) -> Standing:
        """Where others are suspended for them, jobs at a terminal go first, as urgent ones do."""
        usual, rank = self.shares.standing(job)
        waits = job.spec.interactive and self.settings.limits.preemption == "suspend"
        return usual and not waits, rank
