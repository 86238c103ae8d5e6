"""What the core asks of others. Policy, Estimator and Recovery are the plugin protocols."""

from __future__ import annotations

from typing import Protocol

from carmad.core.decision import Proposal
from carmad.core.messages import Action, Step
from carmad.core.types import Estimate, Exit, Job, JobSpec, Retry
from carmad.core.view import View


class Policy(Protocol):
    """Chooses GPUs for queued jobs. Pure: same view, same plan."""

    @property
    def name(self) -> str: ...

    def order(self, job: Job) -> float:
        """A queued job's place in line: lowest first, ties by arrival. Asked once per change of
        the job. Jobs that recover, and less nice ones, go first in any case."""
        ...

    def plan(self, view: View) -> tuple[Proposal, ...]:
        """Proposals, in the order they are to be carried out, for the jobs it judged.

        A placement without GPUs says why that job waits. Jobs left out wait in line. What a
        preempted job held is free only in a later view, when its processes are gone.
        """
        ...


class Estimator(Protocol):
    """Predicts a job's peak memory per GPU. May take seconds and may fail; keeps no job waiting
    for long: without an answer, the job is placed without an estimate."""

    @property
    def name(self) -> str: ...

    def estimate(self, spec: JobSpec) -> Estimate | None:
        """None: no estimate for this job."""
        ...


class Recovery(Protocol):
    """Says what follows an attempt that ran out of memory. Pure."""

    @property
    def name(self) -> str: ...

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        """How to try again; None to give up. `job.failures` has the earlier attempts."""
        ...


class Store(Protocol):
    """Makes a step durable: all of it, or none (then it raises)."""

    def commit(self, step: Step) -> None: ...


class World(Protocol):
    """Carries out actions. Their outcomes come back later, as events."""

    def perform(self, action: Action) -> None: ...
