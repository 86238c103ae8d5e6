"""The core's interfaces. Policy, Predictor, Estimator and Recovery are the plugin protocols."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from carmad.core.jobs.attempt import Exit
from carmad.core.jobs.findings import Estimate, Prediction, Refusal
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.explanation import ContextOut, ExplanationOut
from carmad.learning.models import Model


class Predictor(Protocol):
    """Predicts how long a job will run alone. Pure and quick: called for every job that joins the
    queue, and again once the job has a profile."""

    @property
    def name(self) -> str: ...

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        """None: no prediction, so the declared duration counts, if any. 0 s: it has never seen the
        job; then `job.expected_s` is None."""
        ...


class Estimator(Protocol):
    """Predicts a job's peak memory per GPU. May take seconds and may fail; a job does not wait for
    it for long: without an answer, it is placed without an estimate.

    Its factory takes the settings and a `Server`, and is called anew for every job.
    """

    @property
    def name(self) -> str: ...

    def estimate(self, spec: JobSpec) -> Estimate | Refusal: ...


@dataclass(frozen=True, slots=True)
class Run:
    """A job that succeeded, and its measured memory."""

    spec: JobSpec
    peak_mib: int  # per GPU
    estimate: Estimate | None
    gpu: str  # the model of the GPU that it ran on
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial run of a program."""

    answer: bytes  # what it wrote to file descriptor `ANSWER_FD`
    output: str  # the end of its stdout and stderr
    code: int | None = None  # None when a signal ended it
    signal: int | None = None
    timed_out: bool = False
    beyond: str = ""  # the limit that it was killed for: too many processes, too much memory
    error: str = ""  # why it could not be started, or its answer not be read to the end


ANSWER_FD = 3


class Server(Protocol):
    """What an estimator may use of the machine that a job will run on."""

    @property
    def gpu(self) -> str:
        """The model of its GPUs, the most common one if they differ; "" if unknown."""
        ...

    @property
    def driver(self) -> str:
        """The version of the NVIDIA driver; "" if there is none."""
        ...

    @property
    def explain(self) -> bool:
        """Whether a person wants to know what the memory is for, and waits a little longer."""
        ...

    def users(self) -> Collection[Owner]:
        """The users whose jobs succeeded here recently."""
        ...

    def runs(self, owner: Owner) -> Sequence[Run]:
        """A user's jobs that succeeded here recently, the newest first. Users control what is
        measured of their jobs: give another user no more than one vote among many."""
        ...

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        """Run a program as the job's user, in the job's directory and environment, without access
        to GPUs, and kill all that is left of it after `within_s`. Never raises. The result is
        cached: the same question is not run again."""
        ...


@runtime_checkable
class Measures(Protocol):
    """An estimator that knows what earlier runs of the same command used."""

    def measured(self, spec: JobSpec, looks: bool) -> Estimate | Refusal:
        """`looks`: a process of the user's looks whether the job's files were changed since; runs
        from before do not count then. Otherwise no process is started, and all runs count."""
        ...


@runtime_checkable
class Explains(Protocol):
    """An estimator that finds out what a job's memory is for."""

    def explain(self, spec: JobSpec) -> ExplanationOut | None: ...


@runtime_checkable
class Learns(Protocol):
    """An estimator that learns from measured runs how much memory every process takes."""

    def contexts(self, runs: Mapping[Owner, Sequence[Run]], owner: Owner) -> list[ContextOut]:
        """What it goes by for this user's jobs. `runs`: of each user."""
        ...


class Recovery(Protocol):
    """Decides what follows an attempt that ran out of memory. Pure."""

    @property
    def name(self) -> str: ...

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        """How to retry; None to give up. `job.failures` has the ends of earlier attempts."""
        ...
