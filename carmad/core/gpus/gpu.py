"""A GPU, and one reading of it."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.core.jobs.attempt import GpuId, JobId


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG instance (then `parent` is its GPU). `memory_mib` is what jobs may use."""

    id: GpuId
    index: int  # in PCI bus order
    name: str
    memory_mib: int
    parent: GpuId | None = None
    node: str = "local"
    island: str = ""  # a node's GPUs with the same value are close: by NVLink, or on one socket
    cpus: tuple[int, ...] = ()  # on its NUMA node; none: all are, or it is not known
    guarantees: bool = False  # its driver can limit a job's memory there, and guarantee it
    cuda_index: int | None = None  # with CUDA_DEVICE_ORDER=PCI_BUS_ID; None: not known for certain

    @property
    def is_mig(self) -> bool:
        return self.parent is not None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one GPU. None: the source does not report it."""

    pid: int
    memory_mib: int | None
    sm_util: float | None = None  # 0–1; 0 means no kernel ran in the last period
    job: JobId | None = None  # filled in by the daemon's monitor
    user: str = ""
    command: str = ""
    attempt: int | None = None  # of that job; the driver may list an earlier one's for a while
    mps_uid: int | None = None  # its user, if it is the client of an MPS server


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong with a GPU, although it works."""

    kind: str  # a word, the same as long as it lasts
    message: str  # for people; may change
    drains: bool = False  # the GPU should take no further job until an admin resumes it


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU. Fractions are 0–1; None means not available, never zero."""

    gpu: GpuId
    at: float
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    sm_active: float | None = None  # SMACT
    sm_occupancy: float | None = None  # SMOCC
    dram_active: float | None = None  # DRAMA
    utilization: float | None = None  # NVML's: time with any kernel at all
    power_w: float | None = None
    energy_mj: int | None = None  # millijoules since the driver was loaded
    temperature_c: int | None = None
    processes: tuple[ProcessUse, ...] = ()
    fault: str | None = None  # lost, driver gone, …: the GPU takes no job
    memory_utilization: float | None = None  # NVML's: time in which memory was read or written
    more: tuple[tuple[str, float], ...] = ()  # further metrics of this source, by name
    conditions: tuple[Condition, ...] = ()

    @property
    def activity(self) -> float | None:
        """SMACT, or else NVML's utilisation."""
        return self.utilization if self.sm_active is None else self.sm_active

    def indicators(self) -> tuple[tuple[str, float], ...]:
        """The metrics that profile a job, as far as they are available."""
        named = (
            ("gpu_utilization", self.utilization),
            ("memory_utilization", self.memory_utilization),
            ("sm_active", self.sm_active),
            ("sm_occupancy", self.sm_occupancy),
            ("dram_active", self.dram_active),
        )
        return (*((name, value) for name, value in named if value is not None), *self.more)
