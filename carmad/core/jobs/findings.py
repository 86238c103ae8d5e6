"""What is found out about a job: estimated, predicted, measured, or reported by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


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
    firm: bool = False  # the owner's own word: promised for the job's whole life
    seconds: float = 0.0  # how long estimating took
    notes: tuple[str, ...] = ()  # for people: what it is based on, what it leaves out
    parts: tuple[tuple[str, int], ...] = ()  # what the memory is for, in MiB; they add up to `mib`
    stack: str = ""  # what "context" among the parts depends on: the job's torch, driver, GPU
    phases: tuple[tuple[str, int], ...] = ()  # what the job does, with the most in use then, in MiB
    batch_mib: int = 0  # the part of `mib` that is proportional to the batch size
    shape: str = ""  # a digest of the model's layers: equal for any batch size
    traced_mib: int | None = None  # `mib` without what similar jobs have taught; None: the same
    others: tuple[Estimate, ...] = ()  # by the other estimators, to compare with the outcome
    crash: str = ""  # as in `Refusal`

    @property
    def safe_mib(self) -> int:
        return self.mib if self.high is None else self.high

    @property
    def least_mib(self) -> int:
        return self.mib if self.low is None else self.low

    def accumulating(self, steps: int) -> Estimate:
        """The estimate if the job splits each batch into `steps` parts (gradient accumulation)."""
        if steps == 1 or not self.batch_mib:
            return self
        less = self.batch_mib - self.batch_mib // steps
        high = None if self.high is None else self.high - less
        low = None if self.low is None else self.low - less
        return replace(self, mib=self.mib - less, low=low, high=high, batch_mib=0, parts=())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an estimator has no estimate for a job, in words for its owner."""

    why: str
    source: str
    seconds: float = 0.0
    late: bool = False  # its time was up: with more there may be an estimate
    # How the job's script fails by itself when it is tried; completes "your script stops …".
    crash: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """A job's measured resource usage, over all its attempts; 0: never measured."""

    peak_mib: int = 0  # the largest seen on any one of its GPUs
    energy_j: float = 0.0  # its share of its GPUs' energy, split evenly among residents
    sm_seconds: float = 0.0  # integral of its GPUs' SM activity while it ran there
    gpu_seconds: float = 0.0
    idle_seconds: float = 0.0  # of these, in which no kernel of it ran
    # Of them, in which one other job computed there, too, and SMACT was read; and its integral.
    paired_seconds: float = 0.0
    paired_sm_seconds: float = 0.0

    @property
    def sm_active(self) -> float | None:
        """The mean activity of its GPUs; None: never measured."""
        return self.sm_seconds / self.gpu_seconds if self.gpu_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Indicator:
    """One metric of a GPU over the time that a job was alone on it."""

    name: str  # as in `GpuSample.indicators`
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A job's load on each of its GPUs when it trains alone there."""

    seconds: float  # that it was watched for; 0: it showed no kernel
    peak_mib: int = 0
    indicators: tuple[Indicator, ...] = ()
    of: int | None = None  # the id of the earlier job that was measured; None: this one itself
    gpu: str = ""  # the kind of GPU; "": not recorded

    def mean(self, name: str) -> float | None:
        return next((each.mean for each in self.indicators if each.name == name), None)

    @property
    def activity(self) -> float | None:
        """How busy it keeps each of its GPUs."""
        sm_active = self.mean("sm_active")
        return self.mean("gpu_utilization") if sm_active is None else sm_active


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a training step of a job takes alone, with each batch in `parts` parts."""

    parts: int
    seconds: float
    gpu: str = ""  # the kind of GPU; "": not recorded


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a job alone does to each of its GPUs."""

    indicators: tuple[Indicator, ...]
    memory_share: float  # its peak, of the GPU's memory


@dataclass(frozen=True, slots=True)
class Company:
    """How much a job's steps were slowed by one other job on its GPUs."""

    neighbour: int
    ratio: float  # xi: its step time beside the neighbour over that alone
    own: Loaded
    other: Loaded
    mps: bool  # how they shared: by MPS, or by time slices


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a job runs alone, from the start of its first attempt to its end."""

    seconds: float  # 0: the source has never seen the job
    source: str
    parts: tuple[tuple[str, float], ...] = ()  # each feature's contribution, in the source's units
    notes: tuple[str, ...] = ()  # for people: what it is based on
    at_most_s: float | None = None  # nine of ten such jobs took no longer; None: nobody knows
    is_guess: bool = False  # what other jobs took: it says nothing of this one
