"""CARMA's own settings and their defaults. Plain values: `carmad.configfile` reads files, and
plugins declare their own settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

DECLARED_SINCE = ("lucid", "asrpt", "cuckoo")  # in 0.1.0 their settings were CARMA's own


@dataclass(frozen=True, slots=True)
class Monitor:
    """How the GPUs are monitored (CARMA paper, 3.1 and 3.2)."""

    source: str = "auto"  # auto, nvml, gpm, dcgm, emulated:DIR
    period_s: float = 1.0
    window_s: float = 30.0  # sliding window of the risk analysis, and the settling time
    stale_s: float = 5.0  # no job is placed by an older sample
    first_kernel_timeout_s: float = 600.0  # then a GPU stops waiting for a job's first kernel
    external_mib: int = 500  # a GPU with less memory used by external processes counts as idle


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
    """A policy's conditions for sharing a GPU (CARMA paper, 3.4 and 3.6)."""

    min_free_mib: int = 2048
    utilization: bool = True  # apply the risk test
    margin_mib: int = 0  # must be free on top of a job's estimate


NO_PRECONDITIONS = Preconditions(min_free_mib=0, utilization=False)


@dataclass(frozen=True, slots=True)
class Recovery:
    name: str = "exclusive"
    retries: int = 2  # retries of a job before it ends as OUT_OF_MEMORY
    margin_mib: int = 4096  # additional free memory for the adaptive recovery's first retry


@dataclass(frozen=True, slots=True)
class Collocation:
    mps: bool = False  # launch jobs under MPS
    mps_scope: Literal["gpu", "node"] = "gpu"  # whether each GPU has an MPS server, or a node
    mps_multiuser: bool = False  # let users share one MPS server: faults and logs are shared too
    max_jobs_per_gpu: int = 8


IMPORTS_S = 120.0  # for a script's imports, and for waiting for a processor


@dataclass(frozen=True, slots=True)
class Estimation:
    """How memory needs are predicted (CARMA paper, section 2)."""

    within_s: float = 10.0  # processor time for a script's first two steps, without its imports
    patient_s: float = 60.0  # the same for `carma estimate`, and once a job waits for its turn
    host_memory_mib: int = 8192  # for the process that traces a script
    context_mib: int = 544  # CUDA context and libraries, until measured on this server
    faketensor_margin_mib: int = 4096  # on top of FakeTensor's number (the paper's 2.2)

    @property
    def longest_s(self) -> float:
        """Until a script is given up, by the clock: its imports, and waiting for a processor."""
        return self.within_s + min(2 * self.within_s, IMPORTS_S)


@dataclass(frozen=True, slots=True)
class Profiling:
    """Running new jobs alone for a while, to profile them (Lucid paper, 3.2; Castor paper, section
    7). Has no effect under policies that do not request it."""

    run_s: float = 200.0  # T_prof; `--cold-start` adds to it
    gpus: int = 0  # C_prof: the last N GPUs are reserved for it; 0: jobs stay where they are
    largest: int = 8  # N_prof: jobs with more GPUs get no profiling run


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidth between GPUs, for policies that place a job's parts by their communication (A-SRPT
    paper, III)."""

    within_mib_s: float = 280_000.0  # between two GPUs of an island; here NVLink with 300 GB/s
    between_mib_s: float = 19_000.0  # shared by an island's GPUs to reach others; here PCIe 4.0


@dataclass(frozen=True, slots=True)
class Learning:
    """Training of models from this server's own past jobs; needs `carma-gpu[policies]`."""

    retrain_days: float = 7.0  # how often they are trained (0.04: hourly); 0: only on request


@dataclass(frozen=True, slots=True)
class Host:
    """What jobs may have of the host, together. Only jobs that ask for a part (`--cpus`, `--mem`)
    are counted."""

    cpus: int | None = None  # default: all that the daemon may use
    memory_mib: int | None = None  # default: all but a twentieth, which is for the system
    cgroup: str = ""  # without systemd: a delegated cgroup (v2), in which limits can be set


@dataclass(frozen=True, slots=True)
class Limits:
    gpus_per_user: int | None = None
    queued_per_user: int = 10_000
    queued_mib_per_user: int = 32
    kill_grace_s: float = 30.0  # between SIGTERM and SIGKILL
    preemption: bool = False  # let policies take GPUs back; jobs resume from what they saved
    # How often a waiting job may be overtaken by later ones; 0: never. Not set: by those that end
    # before it can start; in simulations, never
    backfill: int | None = None
    reservation_notice_s: float = 86_400.0  # before one, no job starts there whose end is unknown


@dataclass(frozen=True, slots=True)
class Interactive:
    """Jobs at a terminal: `carma run` and `carma shell`."""

    take_s: float = 30.0  # GPUs that are not taken within this time go to others
    idle_s: float = 7200.0  # a job that has not used its GPUs for this long is ended; 0: never


@dataclass(frozen=True, slots=True)
class Fairness:
    """Who goes first among jobs of equal priority: who has used less of the server of late. A
    policy with an order of its own comes before that."""

    enabled: bool | None = (
        None  # otherwise in order of arrival; not set: on, but not in simulations
    )
    half_life_days: float = 7.0  # after which use counts half
    weights: dict[str, float] = field(default_factory=dict)  # of users and "@groups"; else 1
    urgent_gpu_hours: float = 8.0  # of jobs with --urgent, per user and seven days; 0: none


@dataclass(frozen=True, slots=True)
class Retention:
    ended_days: float = 90.0
    mib_per_user: int = 256  # disk for one user's jobs; beyond it, the oldest ended are deleted
    backups: int = 7  # daily copies kept; 0: none
    journal_mib: int = 64  # disk for the journal, for `carma daemon replay`; 0: none is kept


@dataclass(frozen=True, slots=True)
class Access:
    admin_group: str = "carma-admin"
    root_jobs: bool = False  # let root submit jobs to a system-wide daemon


@dataclass(frozen=True, slots=True)
class Notify:
    """Messages to administrators, and reports; needs `carma-gpu[notify]`. Users have files of their
    own."""

    administrators: str = ""  # a file with their addresses, readable by carmad only; "": nobody
    stuck_s: float = 1800.0  # they are told if the first in line waits so long beside an idle GPU
    report: str = ""  # a file like that: who gets the week's report on Mondays at 7; "": nobody


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures for Prometheus; on the daemon's own socket, they are always at /v1/metrics."""

    listen: str = ""  # where a process answers Prometheus, such as "127.0.0.1:9430"; "": nowhere
    users: bool = False  # also tell how many jobs each user has


@dataclass(frozen=True, slots=True)
class Cluster:
    """Who decides on which node a job runs. A login node, where no daemon runs, submits to it; the
    carmad of a node tells it how much memory its GPUs have."""

    engine: Literal["", "slurm"] = ""  # "": nobody; there is a daemon, or there are no jobs
    node: str = ""  # this node's name there; "": the host's
    gpu_gib: int = 0  # asked for per GPU if a job's memory is not known; 0: such jobs are refused


@dataclass(frozen=True, slots=True)
class Settings:
    policy: str = "magm"
    policy_fallback: str = ""  # decides while the policy fails; "": jobs wait until it answers
    estimator: str = "auto"
    predictor: str = "history"
    monitor: Monitor = field(default_factory=Monitor)
    risk: Risk = field(default_factory=Risk)
    preconditions: Preconditions | None = None  # of all policies; None: each has its own default
    policies: dict[str, Preconditions] = field(default_factory=dict)  # by policy, instead
    # Plugins' settings that differ from the default: "policies.lucid": {"sharing_capacity": 1}
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)
    estimation: Estimation = field(default_factory=Estimation)
    profiling: Profiling = field(default_factory=Profiling)
    links: Links = field(default_factory=Links)
    models: Learning = field(default_factory=Learning)
    recovery: Recovery = field(default_factory=Recovery)
    collocation: Collocation = field(default_factory=Collocation)
    host: Host = field(default_factory=Host)
    limits: Limits = field(default_factory=Limits)
    interactive: Interactive = field(default_factory=Interactive)
    fairness: Fairness = field(default_factory=Fairness)
    retention: Retention = field(default_factory=Retention)
    access: Access = field(default_factory=Access)
    notify: Notify = field(default_factory=Notify)
    metrics: Metrics = field(default_factory=Metrics)
    cluster: Cluster = field(default_factory=Cluster)

    def preconditions_for(self, policy: str) -> Preconditions:
        """Those set for the policy, or else for all policies. By default, `rr` has none (CARMA
        paper, 4.3)."""
        usual = NO_PRECONDITIONS if policy == "rr" else Preconditions()
        return self.policies.get(policy, self.preconditions or usual)
