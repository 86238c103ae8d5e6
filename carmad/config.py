"""CARMA's own settings, each stated once: its type with its limits, its default, whether a reload
changes it (`AtOnce`), and as a comment what it means. `carmad.configfile` reads them from files and
the environment; the reload, `carma config show` and the reference are derived from them. Plugins
declare theirs the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from annotated_types import Ge, Gt, Interval

T = TypeVar("T")

_AT_ONCE = "a reload changes it"
# For settings that are read at each use, and those that name the policy and the predictor, which
# are made anew. All others are used only at startup, and need a restart.
AtOnce = Annotated[T, _AT_ONCE]

Number = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Count = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]

KNOWN_WINDOW_S = 5.0
POLICY = "policy"  # the origin of a setting that the policy's system has


@dataclass(frozen=True, slots=True)
class Monitor:
    """How the GPUs are monitored (CARMA paper, 3.1 and 3.2)."""

    source: str = "auto"  # auto, nvml, gpm, dcgm, emulated:DIR
    period_s: Positive = 1.0  # how often the GPUs are read
    window_s: Positive = 30.0  # sliding window of the risk analysis, and the settling time
    # the settling time for a job whose memory is known, beside jobs whose memory is known; not
    # set: 5 s, or `window_s` if that is less, and `window_s` in simulations
    known_window_s: Positive | None = None
    stale_s: Number = 5.0  # no job is placed by an older sample
    first_kernel_timeout_s: Number = 600.0  # then a GPU stops waiting for a job's first kernel
    external_mib: Count = 500  # a GPU with less memory used by external processes counts as idle

    @property
    def known_s(self) -> float:
        known_s = KNOWN_WINDOW_S if self.known_window_s is None else self.known_window_s
        return min(known_s, self.window_s)


@dataclass(frozen=True, slots=True)
class Risk:
    """Weights and thresholds of the collocation risk (CARMA paper, 3.3).

    The paper prints weights that add up to 0.70; its artifact puts the rest on the median.
    """

    mean: Share = 0.20  # weight of the mean; the four weights must add up to 1
    median: Share = 0.30  # weight of the median
    p95: Share = 0.30  # weight of the 95th percentile
    ema: Share = 0.20  # weight of the exponential moving average
    # SMACT risk from which a GPU is risky, together with one of the next two
    sm_active: Share = 0.80
    sm_occupancy: Share = 0.45  # SMOCC risk from which a GPU counts as full
    dram_active: Share = 0.40  # DRAMA risk from which a GPU counts as memory-bound
    # risk of NVML's utilisation from which a job that kept its own GPU as busy in earlier runs, or
    # had none, does not join without MPS: they would take turns; 0: it joins
    utilization: Share = 0.0


@dataclass(frozen=True, slots=True)
class Preconditions:
    """A policy's conditions for sharing a GPU (CARMA paper, 3.4 and 3.6)."""

    min_free_mib: Count = 2048  # memory that must be free, whatever a job needs; 0: none
    utilization: bool = True  # apply the risk test
    margin_mib: Count = 0  # must be free on top of a job's estimate


NO_PRECONDITIONS = Preconditions(min_free_mib=0, utilization=False)


@dataclass(frozen=True, slots=True)
class Recovery:
    name: str = "exclusive"  # what follows an out-of-memory crash
    retries: AtOnce[Count] = 2  # retries of a job before it ends as OUT_OF_MEMORY
    margin_mib: Count = 4096  # additional free memory for the adaptive recovery's first retry
    # for how many s a job that has printed an out-of-memory error may show no sign of life: then it
    # hangs, and is recovered as if it had ended; 0: it is left alone
    hung_s: AtOnce[Number] = 300.0


@dataclass(frozen=True, slots=True)
class Collocation:
    mps: bool = False  # launch jobs under MPS
    mps_scope: Literal["gpu", "node"] = "gpu"  # whether each GPU has an MPS server, or a node
    mps_multiuser: bool = False  # let users share one MPS server: faults and logs are shared too
    max_jobs_per_gpu: AtOnce[Annotated[int, Gt(0)]] = 8  # no GPU gets more jobs than this
    # what CUDA_VISIBLE_DEVICES has: indices, which more programs can read, where they are certain
    # to name the job's GPUs, and UUIDs elsewhere; or UUIDs everywhere
    visible_devices: AtOnce[Literal["index", "uuid"]] = "index"
    # let the driver guarantee each job the memory that it was promised, and limit it to what nobody
    # else was ([guaranteed memory](../admins.md#guaranteed-memory)); needs driver R615
    guarantee_memory: AtOnce[bool] = False


CONTEXT_MIB = 544  # CUDA context and libraries, where nothing is known of the GPU
IMPORTS_S = 120.0  # for a script's imports, and for waiting for a processor


@dataclass(frozen=True, slots=True)
class Estimation:
    """How memory needs are predicted (CARMA paper, section 2)."""

    within_s: Number = 10.0  # processor time for a script's first two steps, without its imports
    patient_s: Number = 60.0  # the same for `carma estimate`, and once a job waits for its turn
    rest_s: Number = 0.3  # for what follows these steps, unless they took longer; 0: none of it
    host_memory_mib: Count = 8192  # for the process that traces a script
    # CUDA context and libraries, until measured on this server; by default as
    # [measured on such a GPU](../estimators/trace.md#the-context), or else 544
    context_mib: Count | None = None
    faketensor_margin_mib: Count = 4096  # on top of FakeTensor's number (the paper's 2.2)

    @property
    def any_context_mib(self) -> int:
        """Where nothing is known of the GPU."""
        return CONTEXT_MIB if self.context_mib is None else self.context_mib

    @property
    def longest_s(self) -> float:
        """Until a script is given up, by the clock: its imports, and waiting for a processor."""
        return self.within_s + min(2 * self.within_s, IMPORTS_S)


ENOUGH = 8  # GPUs of which one may be reserved, with "auto"


@dataclass(frozen=True, slots=True)
class Profiling:
    """Running new jobs alone for a while, to profile them (Lucid paper, 3.2; Castor paper, section
    7). Has no effect under policies that do not request it."""

    run_s: AtOnce[Number] = 200.0  # T_prof; `--cold-start` adds to it
    # C_prof: the last N GPUs are reserved for it; 0: jobs stay where they are; "auto": one of eight
    # or more, none of fewer
    gpus: AtOnce[Count | Literal["auto"]] = 0
    largest: AtOnce[Count] = 8  # N_prof: jobs with more GPUs get no profiling run

    def pool_size(self, total: int) -> int:
        """The number of a server's GPUs that are reserved for profiling: never all of them."""
        return min(total // ENOUGH, 1) if self.gpus == "auto" else max(0, min(self.gpus, total - 1))


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidth between GPUs, for policies that place a job's parts by their communication (A-SRPT
    paper, III)."""

    within_mib_s: Number = 280_000.0  # between two GPUs of an island; here NVLink with 300 GB/s
    between_mib_s: Number = 19_000.0  # shared by an island's GPUs to reach others; here PCIe 4.0


@dataclass(frozen=True, slots=True)
class Learning:
    """Training of models from this server's own past jobs: the optional part `policies`."""

    retrain_days: Number = 7.0  # how often they are trained (0.04: hourly); 0: only on request


@dataclass(frozen=True, slots=True)
class Host:
    """What jobs may have of the host, together. Only jobs that ask for a part (`--cpus`, `--mem`)
    are counted."""

    # CPUs that jobs may have together; by default all that the daemon may use
    cpus: AtOnce[Count | None] = None
    # MiB of the host's memory that jobs may have together; by default all but a twentieth, which is
    # for the system
    memory_mib: AtOnce[Count | None] = None
    # a delegated cgroup (v2) in which the limits of jobs are set on a machine without systemd, such
    # as `/sys/fs/cgroup/carma`; empty: jobs' shares are counted, but not enforced
    cgroup: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    gpus_per_user: AtOnce[Count | None] = None  # GPUs that one user's jobs may hold at once
    queued_per_user: AtOnce[Count] = 10_000  # jobs that one user may have in the queue
    # MiB that the commands and environments of one user's waiting jobs may take up; identical
    # environments count once
    queued_mib_per_user: AtOnce[Count] = 32
    kill_grace_s: Number = 30.0  # between SIGTERM and SIGKILL
    # let GPUs be taken back from running jobs. true: by policies that preempt; the job is requeued,
    # and goes on from what it saved. "suspend": also for urgent jobs, jobs at a terminal and
    # reservations; the job is [suspended](../guides/suspend.md), and loses nothing
    preemption: AtOnce[bool | Literal["suspend"]] = False
    # how often a waiting job may be overtaken by later ones, whenever they end; 0: never; not set:
    # by those that [end before it can start](../concepts/placement.md), in simulations by none
    backfill: AtOnce[Count | None] = None
    # how long a waiting job may be overtaken while nobody knows when it can start; then GPUs are
    # [kept for it](../concepts/placement.md). Only where `backfill` is not set
    overtaken_s: AtOnce[Number] = 60.0
    # before a reservation, no job starts there whose end is unknown
    reservation_notice_s: AtOnce[Number] = 86_400.0


@dataclass(frozen=True, slots=True)
class Suspending:
    """Suspending jobs: a job's GPU memory moves to the host's, and back when it resumes. `carma
    doctor --gpu` finds out whether this server's driver can do that, and how fast."""

    # MiB of the host's memory for what suspended jobs held on GPUs; 0: no job is suspended
    host_memory_mib: AtOnce[Count] = 0
    # the part of it that jobs which one user has suspended may take together; one may take more
    per_user: AtOnce[Share] = 0.5
    # s that a job which somebody has suspended is left alone. Then its time limit goes on, and it
    # is requeued if its part of the host's memory is needed to suspend others
    parked_s: AtOnce[Number] = 28800.0
    moves: AtOnce[bool] = False  # let a job resume on another GPU of the same kind
    # for a job's running kernels to finish; one that takes longer is not suspended
    lock_within_s: AtOnce[Positive] = 10.0
    out_mib_s: AtOnce[Positive] = 1900.0  # bandwidth to the host, as measured on an H100
    in_mib_s: AtOnce[Positive] = 4300.0  # and back
    fixed_s: AtOnce[Number] = 0.5  # that each way takes besides
    most_per_hour: AtOnce[Count] = 6  # suspensions of one job


@dataclass(frozen=True, slots=True)
class Interactive:
    """Jobs at a terminal: `carma run` and `carma shell`."""

    take_s: Number = 30.0  # GPUs that are not taken within this time go to others
    idle_s: Number = 7200.0  # a job that has not used its GPUs for this long is ended; 0: never


@dataclass(frozen=True, slots=True)
class Idle:
    """Batch jobs that hold GPUs without running a kernel on any of them. Jobs with `--idle-ok` are
    left alone."""

    # what is done, and after how long, such as "warn 30m, suspend 2h"; also "requeue" and "end";
    # "": nothing ([more](../admins.md#idle-jobs))
    batch: AtOnce[str] = ""
    # jobs that keep less than this from others, on all their GPUs together, are left alone by
    # `batch`
    floor_mib: AtOnce[Count] = 4096
    # as `batch`, for jobs that show no sign of life: no kernel, no output, no processor time; such
    # as "warn 1m, requeue 30m". They are warned while others wait, and if they have run kernels,
    # only of what follows
    hung: AtOnce[str] = "warn 1m"


@dataclass(frozen=True, slots=True)
class Fairness:
    """Who goes first among jobs of equal priority: users who have used less recently. A policy
    with an order of its own comes before that."""

    # order jobs of equal priority by what their users have used, otherwise by arrival; not set:
    # yes, but not in simulations
    enabled: AtOnce[bool | None] = None
    half_life_days: AtOnce[Positive] = 7.0  # after which use counts half
    # users count as equal, and go by arrival, while their use differs by less than all GPUs of the
    # server give in so many hours; 0: any difference counts
    band_hours: AtOnce[Number] = 1.0
    # of users and "@groups", otherwise 1, such as `{ada = 2.0, "@vision" = 3.0}`: who has twice the
    # weight may use twice as much. The users of a group with a weight share it as one
    weights: AtOnce[dict[str, Positive]] = field(default_factory=dict)
    # of jobs with --urgent, per user and seven days; 0: none
    urgent_gpu_hours: AtOnce[Number] = 8.0


@dataclass(frozen=True, slots=True)
class Retention:
    ended_days: AtOnce[Number] = 90.0  # how long ended jobs are kept
    # disk for one user's jobs; beyond it, the oldest ended ones are deleted
    mib_per_user: AtOnce[Count] = 256
    backups: Count = 7  # daily copies kept; 0: none
    journal_mib: Count = 64  # disk for the journal, the inputs of every decision; 0: none is kept


@dataclass(frozen=True, slots=True)
class Submit:
    # variables of the user's shell that jobs do not get unless `--export` names them: shell
    # patterns, separated by commas, such as "*_TOKEN, AWS_*"
    env_exclude: AtOnce[str] = ""


@dataclass(frozen=True, slots=True)
class Access:
    # its members, and root, may manage every job and drain GPUs
    admin_group: str = "carma-admin"
    root_jobs: bool = False  # let root submit jobs to a system-wide daemon


@dataclass(frozen=True, slots=True)
class Notify:
    """Messages to users and administrators."""

    # mail addresses, separated by commas, or a file with addresses, readable by carmad only;
    # "": nobody
    administrators: str = ""
    # how long the first in line may wait beside an idle GPU before they get a message
    stuck_s: Number = 1800.0
    # by which of this machine's programs mail is sent to users without addresses of their own;
    # "": no mail
    mail: Literal["", "sendmail"] = ""
    domain: str = ""  # of users' addresses, USER@domain; "": this host's full name


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures for Prometheus; on the daemon's own socket, they are always at /v1/metrics."""

    listen: str = ""  # where a process answers Prometheus, such as "127.0.0.1:9430"; "": nowhere
    users: AtOnce[bool] = False  # publish also how many jobs each user has
    jobs: AtOnce[bool] = False  # publish also series for each job on a GPU, with its user


@dataclass(frozen=True, slots=True)
class Cluster:
    """Who decides on which node a job runs. A login node, where no daemon runs, submits to it; the
    carmad of a node tells it how much memory its GPUs have."""

    engine: Literal["", "slurm"] = ""  # "": nobody; there is a daemon, or there are no jobs
    node: str = ""  # this node's name there; "": the host's
    gpu_gib: Count = 0  # asked for per GPU if a job's memory is not known; 0: such jobs are refused


@dataclass(frozen=True, slots=True)
class Settings:
    policy: AtOnce[str] = "magm"  # places jobs on GPUs
    policy_fallback: str = ""  # decides while the policy fails; "": jobs wait until it answers
    estimator: str = "auto"  # estimates memory (`auto`: the best that has an answer)
    predictor: AtOnce[str] = "history"  # predicts how long a job will run
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
    suspend: Suspending = field(default_factory=Suspending)
    interactive: Interactive = field(default_factory=Interactive)
    idle: Idle = field(default_factory=Idle)
    fairness: Fairness = field(default_factory=Fairness)
    retention: Retention = field(default_factory=Retention)
    submit: Submit = field(default_factory=Submit)
    access: Access = field(default_factory=Access)
    notify: Notify = field(default_factory=Notify)
    metrics: Metrics = field(default_factory=Metrics)
    cluster: Cluster = field(default_factory=Cluster)
    # Which part of what is set here comes from where, by full name: "file", "environment",
    # POLICY, an option. What has none is the default, or was set by a program.
    origins: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def preconditions_for(self, policy: str) -> Preconditions:
        """Those set for the policy, or else for all policies. By default, `rr` has none (CARMA
        paper, 4.3)."""
        usual = NO_PRECONDITIONS if policy == "rr" else Preconditions()
        return self.policies.get(policy, self.preconditions or usual)


def sections() -> Iterator[tuple[str, type]]:
    """The tables of a settings file, except those of plugins, by name."""
    for name, hint in get_type_hints(Settings).items():
        for each in (hint, *get_args(hint)):
            if is_dataclass(each) and isinstance(each, type) and name != "policies":
                yield name, each


def at_once() -> Iterator[tuple[str, str]]:
    """Section ("": none) and name of each setting that a reload changes."""
    for section, kind in (("", Settings), *sections()):
        hints = get_type_hints(kind, include_extras=True)
        for each in fields(kind):
            if _AT_ONCE in getattr(hints[each.name], "__metadata__", ()):
                yield section, each.name
