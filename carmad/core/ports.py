"""What the core asks of others. Policy, Estimator and Recovery are the plugin protocols."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from carmad.core.decision import Proposal
from carmad.core.history import History
from carmad.core.messages import Action, Step
from carmad.core.types import Estimate, Exit, Job, JobSpec, Prediction, Refusal, Retry
from carmad.core.view import View
from carmad.models import Model


class Policy(Protocol):
    """Chooses GPUs for queued jobs. Pure: same view, same plan. What one plan has to tell the next
    it proposes to `Remember`."""

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


class Predictor(Protocol):
    """Says how long a job will run alone. Pure and quick: every job that joins the line waits for
    it, and is asked about again once it has a profile."""

    @property
    def name(self) -> str: ...

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        """None: it cannot say. Then the owner's word stands, if there is one. 0 s: it has never
        seen the job; `job.expected_s` is None then."""
        ...


class Estimator(Protocol):
    """Predicts a job's peak memory per GPU. May take seconds and may fail; keeps no job waiting
    for long: without an answer, the job is placed without an estimate.

    Its factory takes the settings and a `Server`, and is called for every job anew.
    """

    @property
    def name(self) -> str: ...

    def estimate(self, spec: JobSpec) -> Estimate | Refusal: ...


@dataclass(frozen=True, slots=True)
class Run:
    """A job that ended well, and what it was measured to use."""

    spec: JobSpec
    peak_mib: int  # per GPU
    estimate: Estimate | None
    gpu: str  # the model of the GPU that it ran on
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a program that was tried."""

    answer: bytes  # what it wrote to file descriptor `ANSWER_FD`
    output: str  # the end of its stdout and stderr
    code: int | None = None  # None when a signal ended it
    signal: int | None = None
    timed_out: bool = False
    beyond: str = ""  # which bound it was ended for: too many processes, too much memory
    error: str = ""  # why it could not be started, or not be heard to its end


ANSWER_FD = 3


class Server(Protocol):
    """What an estimator may ask of the machine that a job is for, while it looks at that job."""

    @property
    def gpu(self) -> str:
        """The model of its GPUs, the commonest if they differ; "" if it is not known."""
        ...

    @property
    def driver(self) -> str:
        """The version of the NVIDIA driver; "" if there is none."""
        ...

    def users(self) -> Collection[int]:
        """The uids of those whose jobs ended well here lately."""
        ...

    def runs(self, uid: int) -> Sequence[Run]:
        """What ended well here lately of one user, the newest first. What it shows of others is
        that user's word: take no more from it than one vote among many."""
        ...

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        """Run a program as the job's user, in its directory and environment, with no GPU to be
        seen, and kill all that is left of it after `within_s`. Never raises. The same question
        gets the same answer, without a second run."""
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
