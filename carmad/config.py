"""CARMA's own settings and their defaults. Plain values: `carmad.configfile` reads files, and
plugins declare what they can be set to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DECLARED_SINCE = ("lucid", "asrpt", "cuckoo")  # in 0.1.0 their settings were CARMA's own


@dataclass(frozen=True, slots=True)
class Monitor:
    """How the GPUs are watched (CARMA paper, 3.1 and 3.2)."""

    source: str = "auto"  # auto, nvml, gpm, dcgm, emulated:DIR
    period_s: float = 1.0
    window_s: float = 30.0  # sliding window of the risk analysis, and the settling time
    stale_s: float = 5.0  # an older sample is no ground to place a job on
    first_kernel_timeout_s: float = 600.0  # then a GPU stops waiting for a job's first kernel
    external_mib: int = 500  # memory of external processes, below which a GPU counts as idle


@dataclass(frozen=True, slots=True)
class Risk:
    """Weights and thresholds of the collocation risk (CARMA paper, 3.3).

    The paper prints weights that add up to 0.70; its artifact puts the rest on the median.
    """

    mean: float = 0.20
    median: float = 0.30
    p95: float = 0.30
    ema: float = 0.20
    sm_active: float = 0.80
    sm_occupancy: float = 0.45
    dram_active: float = 0.40


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What a policy asks of a GPU before it shares it (CARMA paper, 3.4 and 3.6)."""

    min_free_mib: int = 2048
    utilization: bool = True  # apply the risk test
    margin_mib: int = 0  # wanted free on top of a job's estimate


@dataclass(frozen=True, slots=True)
class Recovery:
    name: str = "exclusive"
    retries: int = 2  # attempts after the first, for one job, before it ends OUT_OF_MEMORY
    margin_mib: int = 4096  # the adaptive ladder's first rung: this much more free memory


@dataclass(frozen=True, slots=True)
class Collocation:
    mps: bool = False  # start one MPS control daemon per GPU and launch jobs under it
    mps_multiuser: bool = False  # let users share one MPS server: faults and logs are shared too
    max_jobs_per_gpu: int = 8


@dataclass(frozen=True, slots=True)
class Estimation:
    """How memory needs are predicted (CARMA paper, section 2)."""

    within_s: float = 10.0  # a script that has not done two steps by then is given up
    host_memory_mib: int = 8192  # for the process that traces a script
    context_mib: int = 544  # CUDA context and libraries, until this server has taught better
    faketensor_margin_mib: int = 4096  # on top of FakeTensor's number (the paper's 2.2)


@dataclass(frozen=True, slots=True)
class Profiling:
    """Running new jobs alone for a while to know them (Lucid paper, 3.2; Castor paper, section 7).
    Of no effect under a policy that does not ask for it."""

    run_s: float = 200.0  # T_prof; `--cold-start` adds to it
    gpus: int = 0  # C_prof: so many, the last ones, are for that alone; 0: jobs stay where they are
    largest: int = 8  # N_prof: jobs of more GPUs are not made to be profiled


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidth between GPUs, for policies that place a job's parts by what they say to each other
    (A-SRPT paper, III)."""

    within_mib_s: float = 280_000.0  # two GPUs of one island; here an NVLink of 300 GB/s
    between_mib_s: float = 19_000.0  # what an island's GPUs share to reach others; here PCIe 4.0


@dataclass(frozen=True, slots=True)
class Learning:
    """Training of models from this server's own past jobs; needs `carma[policies]`."""

    retrain_days: float = 7.0  # how often they are trained (0.04: hourly); 0: only when asked to


@dataclass(frozen=True, slots=True)
class Limits:
    gpus_per_user: int | None = None
    queued_per_user: int = 10_000
    queued_mib_per_user: int = 32
    kill_grace_s: float = 30.0  # between SIGTERM and SIGKILL
    preemption: bool = False  # may a policy take GPUs back? Jobs go on from what they saved
    backfill: int = 0  # how often a job that waits may be overtaken by one behind it; 0: never


@dataclass(frozen=True, slots=True)
class Retention:
    ended_days: float = 90.0
    mib_per_user: int = 256  # disk for one user's jobs; beyond it the oldest ended are forgotten
    samples_hours: float = 48.0
    backups: int = 7  # daily copies kept; 0: none
    journal_mib: int = 64  # disk for the record that `carmad.sim.shadow` replays; 0: none is kept


@dataclass(frozen=True, slots=True)
class Access:
    admin_group: str = "carma-admin"
    root_jobs: bool = False  # may root submit jobs to a system-wide daemon?


@dataclass(frozen=True, slots=True)
class Settings:
    policy: str = "magm"
    policy_fallback: str = ""  # decides while the policy fails; "": jobs wait until it answers
    estimator: str = "auto"
    predictor: str = "history"
    monitor: Monitor = field(default_factory=Monitor)
    risk: Risk = field(default_factory=Risk)
    preconditions: Preconditions = field(default_factory=Preconditions)
    policies: dict[str, Preconditions] = field(default_factory=dict)  # by policy, instead
    # Of plugins what is not their default: "policies.lucid": {"sharing_capacity": 1}
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)
    estimation: Estimation = field(default_factory=Estimation)
    profiling: Profiling = field(default_factory=Profiling)
    links: Links = field(default_factory=Links)
    models: Learning = field(default_factory=Learning)
    recovery: Recovery = field(default_factory=Recovery)
    collocation: Collocation = field(default_factory=Collocation)
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    access: Access = field(default_factory=Access)

    def preconditions_for(self, policy: str) -> Preconditions:
        return self.policies.get(policy, self.preconditions)
