"""What is found out about a job: estimated, predicted, measured, or reported by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from carmad.core.attempt import JobId


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long the parts of an iteration take when the job runs alone (Cuckoo paper, 3.2)."""

    load_s: float  # reading and preparing a batch: CPU and disk
    forward_s: float
    backward_s: float
    communication_s: float = 0.0  # synchronising gradients, which begins with the backward pass
    # What waits for the gradients: the end of the iteration, or only the next one's forward pass.
    sync: Literal["backward", "forward"] = "forward"
    gpu: str = ""  # the kind of GPU; "": any


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted peak memory per GPU, in MiB: of the whole process, as NVML shows it."""

    mib: int
    source: str
    low: int | None = None
    high: int | None = None
    firm: bool = False  # the user's own word: promised for the job's whole life
    seconds: float = 0.0  # what it took
    notes: tuple[str, ...] = ()  # for people: what it rests on, what it leaves out
    parts: tuple[tuple[str, int], ...] = ()  # what the memory is for, in MiB; they add up to `mib`
    stack: str = ""  # what "context" among the parts depends on: the job's torch, driver, GPU
    batch_mib: int = 0  # of `mib`, what is in proportion to the batch size
    others: tuple[Estimate, ...] = ()  # what the other estimators said, to be judged by the outcome

    @property
    def safe_mib(self) -> int:
        return self.mib if self.high is None else self.high

    def accumulating(self, steps: int) -> Estimate:
        """The same job when it splits each batch into so many parts (gradient accumulation)."""
        if steps == 1 or not self.batch_mib:
            return self
        less = self.batch_mib - self.batch_mib // steps
        high = None if self.high is None else self.high - less
        low = None if self.low is None else self.low - less
        return replace(self, mib=self.mib - less, low=low, high=high, batch_mib=0, parts=())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an estimator has no number for a job, in words for its owner."""

    why: str
    source: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job was measured to use, over all its attempts; 0: nobody measured it."""

    peak_mib: int = 0  # the largest seen on any one of its GPUs
    energy_j: float = 0.0  # its share of its GPUs' energy, split evenly among residents
    sm_seconds: float = 0.0  # integral of its GPUs' SM activity while it was there
    gpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Indicator:
    """One figure of a GPU over the time that a job was alone on it."""

    name: str  # as in `GpuSample.indicators`
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What a job asks of each of its GPUs when it trains alone there."""

    seconds: float  # that it was watched for; 0: it showed no kernel
    peak_mib: int = 0
    indicators: tuple[Indicator, ...] = ()
    of: JobId | None = None  # the earlier job that it was taken from; None: this one itself

    def mean(self, name: str) -> float | None:
        return next((each.mean for each in self.indicators if each.name == name), None)


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a training step of a job takes alone, with each batch in so many parts."""

    parts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a job runs alone, from its first attempt's begin to its end."""

    seconds: float  # 0: the source has never seen the job
    source: str
    parts: tuple[tuple[str, float], ...] = ()  # what each feature contributed, as the source counts
    notes: tuple[str, ...] = ()  # for people: what it rests on
