"""The options of a job, each defined once: flags, value, limits, help, default, what it affects.

Derived from this table: the command line and `#CARMA` lines (`cli.options`), the
request (`carmad.api.requests`), the stored form (`JobSpec`), the answer (`carmad.api.job`),
`carma show`, the reference, and which jobs share a memory estimate (`carmad.estimates.asking`).
Imports stay light: `carma submit` must start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


MAX_TASKS = 10_000
MAX_AFTER = 1000  # other jobs that one waits for
MAX_TIME_S = 10 * 365 * 86_400.0
MAX_WITHIN_S = 600.0  # of a processor, for a trace
MAX_MIB = 100_000_000
AUTO_MIB = 0  # as `memory_mib`: what earlier runs were measured to use
MAX_GPUS = 1024
MAX_CPUS = 8192
LEAST_HOST_MIB = 64  # some of it is for the process that supervises the job
MAX_BATCH = 1_000_000_000
MAX_NICE = 10_000
TOLD_OF = ("start", "end", "fail", "oom", "limit80", "suspend")
MAX_PARAMS = 32  # of a sweep
MAX_METRICS = 32  # of a job
MAX_SCRIPT_BYTES = 1 << 20

# Sections of the help text.
RESOURCES = "resources"
HINTS = "hints for placement policies"
START = "start"
RUN = "execution"

# How jobs are named in lists of words: 42, 42_3, 42_[1-3,7]; the lists' commas are not in brackets.
JOB = r"[0-9]{1,15}(?:_(?:[0-9]{1,7}|\[[0-9,-]+\]))?"
COMMA = r",(?![^\[]*\])"
EXIT_CODE = "(?:[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])"

# Until when `carma update` may change an option.
UNTIL_START = "start"
UNTIL_END = "end"


class Option:
    """One option. The suffix of its name is its unit: `_s` seconds, `_mib` MiB, `_at` a time."""

    name = ""  # the field in the request, in `JobSpec` and in the answer

    def __init__(
        self,
        *flags: str,
        default: Any,
        section: str,
        help: str,
        read: str = "",
        metavar: str = "",
        limits: dict[str, Any] | None = None,
        show: str = "",
        memory: bool = True,
        repeated: bool = False,
        change: str = "",
        rare: bool = False,
    ) -> None:
        self.flags = flags
        self.default = default  # a bool makes the option a switch
        self.section = section
        self.help = help
        self.read = read  # the function in `cli.parse` that parses its value
        self.metavar = metavar
        self.limits = limits or {}  # of its value, for pydantic's `Field`
        self.show = show  # its label in `carma show`; "": another line has the value already
        self.memory = memory  # False: it does not affect how much GPU memory the job needs
        self.repeated = repeated  # each use of the flag adds a value to a list
        self.change = change  # `UNTIL_START`, `UNTIL_END`; "": it cannot be changed
        self.rare = rare  # only `--help-all` lists it

    @property
    def flag(self) -> str:
        """The flag that messages name."""
        return next(flag for flag in self.flags if flag.startswith("--"))


OPTIONS: dict[str, Option] = {}  # in the order of the help text
PLAIN: dict[str, Option] = {}  # those with the same value in the request and in `JobSpec`


def option(*flags: str, default: Any, **stated: Any) -> Any:
    return Option(*flags, default=default, **stated)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def table(cls: type[T]) -> type[T]:
    """Collect the options of a class. Those with a type become fields: their defaults stay in the
    class, which `carmad.core.jobs.job` turns into a dataclass, the base of `JobSpec`."""
    for name, stated in list(vars(cls).items()):
        if isinstance(stated, Option):
            stated.name = name
            OPTIONS[name] = stated
            if name in cls.__annotations__:
                PLAIN[name] = stated
                setattr(cls, name, stated.default)
            else:
                delattr(cls, name)
    return cls


@table
class JobOptions:
    """Options without a type here have different forms in the request and in `JobSpec`, and are
    defined there."""

    __slots__ = ()

    gpus: int = option(
        "-G",
        "--gpus",
        "--gpus-per-node",
        default=1,
        section=RESOURCES,
        read="gpus_of_kind",
        metavar="[KIND:]N",
        limits={"ge": 0, "le": MAX_GPUS},
        help="number of GPUs (default 1), of a kind if one is given, such as a100:2; 0: the job"
        " runs on CPUs alone",
    )
    constraint: str | None = option(
        "-C",
        "--constraint",
        default=None,
        section=RESOURCES,
        read="constraint",
        metavar="LIST",
        limits={"pattern": r"^[A-Za-z0-9][A-Za-z0-9.|&-]{0,127}$"},
        show="GPUs with",
        change=UNTIL_START,
        help="what the GPUs must be: words of their name and their least size, joined by & (all"
        " hold) or | (alternatives), such as 'a100&80g' or 'rtx3090|rtx4090'",
    )
    on: str | None = option(
        "--on",
        default=None,
        section=RESOURCES,
        read="numbers",
        metavar="GPU[,GPU]",
        limits={"pattern": r"^[0-9]{1,4}(,[0-9]{1,4}){0,63}$"},
        memory=False,
        show="on GPUs",
        change=UNTIL_START,
        help="use no other GPUs than these, by their numbers in `carma gpus`",
    )
    not_on: str | None = option(
        "--not-on",
        default=None,
        section=RESOURCES,
        rare=True,
        read="numbers",
        metavar="GPU[,GPU]",
        limits={"pattern": r"^[0-9]{1,4}(,[0-9]{1,4}){0,63}$"},
        memory=False,
        show="not on GPUs",
        change=UNTIL_START,
        help="do not use these GPUs",
    )
    memory_mib: int | None = option(
        "--gpu-mem",
        default=None,
        section=RESOURCES,
        read="gpu_memory",
        metavar="SIZE",
        limits={"ge": AUTO_MIB, "le": MAX_MIB},
        change=UNTIL_START,
        help="peak memory on each GPU, such as 12G or 900M; auto: what earlier runs of the same job"
        " used, with a margin; estimated if not given",
    )
    batch_size: int | None = option(
        "--batch-size",
        default=None,
        section=RESOURCES,
        rare=True,
        read="whole",
        metavar="N",
        limits={"ge": 1, "le": MAX_BATCH},
        help="batch size per GPU of a job that can accumulate gradients: CARMA may start it with"
        " a fraction of N, passed as CARMA_BATCH_SIZE, CARMA_ACCUMULATION_STEPS and in place of"
        " {batch_size} in the command",
    )
    cpus: int | None = option(
        "-c",
        "--cpus",
        "--cpus-per-task",
        default=None,
        section=RESOURCES,
        read="whole",
        metavar="N",
        limits={"ge": 1, "le": MAX_CPUS},
        memory=False,
        show="CPUs",
        help="number of CPUs that the job may use; it starts once so many are free (default: not"
        " counted and not limited, or 1 with --gpus 0)",
    )
    host_memory_mib: int | None = option(
        "--mem",
        default=None,
        section=RESOURCES,
        read="host_memory",
        metavar="SIZE",
        limits={"ge": LEAST_HOST_MIB, "le": MAX_MIB},
        memory=False,
        show="host memory",
        help="memory of the host that the job may use, such as 32G; it starts once so much is free"
        " (default: not counted and not limited)",
    )
    exclusive: bool = option(
        "--exclusive",
        default=False,
        section=RESOURCES,
        memory=False,
        change=UNTIL_START,
        help="do not share the job's GPUs with other jobs",
    )
    time_limit_s: float | None = option(
        "-t",
        "--time",
        default=None,
        section=RESOURCES,
        read="seconds",
        metavar="TIME",
        limits={"gt": 0, "le": MAX_TIME_S},
        memory=False,
        change=UNTIL_END,
        help="stop the job after this time: MM, MM:SS, HH:MM:SS, D-HH[:MM[:SS]] or 2h30m",
    )
    warn = option(
        "--signal",
        default=None,
        section=RESOURCES,
        rare=True,
        read="signal_before",
        metavar="SIG[@SECONDS]",
        memory=False,
        show="signal",
        help="send this signal SECONDS before the time limit (default 60)",
    )
    expected_s: float | None = option(
        "--expect",
        default=None,
        section=HINTS,
        rare=True,
        read="seconds",
        metavar="TIME",
        limits={"gt": 0, "le": MAX_TIME_S},
        memory=False,
        show="expected time",
        change=UNTIL_START,
        help="expected run time, for policies that start short jobs first; not a limit",
    )
    deadline_at: float | None = option(
        "--deadline",
        default=None,
        section=HINTS,
        rare=True,
        read="deadline",
        metavar="WHEN",
        memory=False,
        change=UNTIL_START,
        help="finish by this time, for policies that plan for deadlines: 8h (from now), 22:30 or"
        " 2026-11-22T08:00; the job is not killed",
    )
    amp: bool = option(
        "--amp",
        default=False,
        section=HINTS,
        rare=True,
        show="mixed precision",
        help="the job trains in mixed precision",
    )
    cold_start_s: float = option(
        "--cold-start",
        default=0.0,
        section=HINTS,
        rare=True,
        read="seconds",
        metavar="TIME",
        limits={"ge": 0, "le": MAX_TIME_S},
        memory=False,
        show="cold start",
        help="setup time before training starts; a profiling run lasts that much longer",
    )
    layout = option(
        "--layout",
        default=None,
        section=HINTS,
        rare=True,
        read="stage",
        metavar="STAGE",
        repeated=True,
        help="a pipeline stage, such as '2x forward=20ms backward=40ms in=12M out=12M"
        " weights=320M': its replicas, then times and sizes per iteration; also exposed=,"
        " tensor=, tensor-data=, experts= and microbatches=. Give one for each stage, in order",
    )
    stage_times = option(
        "--stages",
        default=(),
        section=HINTS,
        rare=True,
        read="stage_times",
        metavar="TIMES",
        repeated=True,
        memory=False,
        help="how long the parts of an iteration take when the job runs alone: 'load=10ms"
        " forward=37ms backward=76ms communication=98ms'; sync=backward if an iteration waits for"
        " its own gradients; optionally, at the end, gpu=NAME. Give one for each type of GPU",
    )
    watch_stages: bool = option(
        "--watch-stages",
        default=False,
        section=HINTS,
        rare=True,
        show="watch stages",
        help="measure --stages while the job runs: PyTorch's profiler records a few iterations",
    )
    array = option(
        "-a",
        "--array",
        default=None,
        section=START,
        read="array",
        metavar="LIST",
        memory=False,
        change=UNTIL_END,  # its limit
        help="submit one job for each index: 0-15, 0-15:4 or 1,3,7; %N runs at most N at a time",
    )
    after = option(
        "-d",
        "--dependency",
        default=(),
        section=START,
        read="dependency",
        metavar="LIST",
        memory=False,
        change=UNTIL_START,
        help="wait for other jobs: afterok:ID[:ID],afterany:ID,afternotok:ID; all must be met",
    )
    begin_at: float | None = option(
        "-b",
        "--begin",
        default=None,
        section=START,
        read="moment",
        metavar="TIME",
        memory=False,
        show="begins after",
        change=UNTIL_START,
        help="do not start before this time: now+2h, 22:30 or 2026-11-20T22:30",
    )
    held = option(
        "-H",
        "--hold",
        default=False,
        section=START,
        memory=False,
        help="do not start before `carma release`",
    )
    unless_running = option(
        "--unless-running",
        default=None,
        section=START,
        read="not_empty",
        metavar="NAME",
        memory=False,
        help="submit nothing while a job of yours with this name waits or runs; otherwise it is the"
        " new job's name. For crontabs and timers",
    )
    nice: int = option(
        "--nice",
        default=0,
        section=START,
        read="whole",
        metavar="N",
        limits={"ge": -MAX_NICE, "le": MAX_NICE},
        memory=False,
        show="nice",
        change=UNTIL_START,
        help="yield to jobs with a lower N (default 0)",
    )
    urgent: bool = option(
        "--urgent",
        default=False,
        section=START,
        memory=False,
        show="urgent",
        help="start before all jobs that are not urgent; the GPU time counts against your weekly"
        " budget, which `carma share` shows",
    )
    name = option(
        "-J",
        "--job-name",
        "--name",
        default=None,
        section=RUN,
        read="not_empty",
        metavar="NAME",
        memory=False,
        change=UNTIL_START,
        help="name of the job in the queue",
    )
    stdout = option(
        "-o",
        "--output",
        default=None,
        section=RUN,
        read="not_empty",
        metavar="FILE",
        memory=False,
        help="file for standard output; %j id, %x name, %u user, %A array, %a index"
        " (default carma-%j.out)",
    )
    stderr: str | None = option(
        "-e",
        "--error",
        default=None,
        section=RUN,
        read="not_empty",
        metavar="FILE",
        memory=False,
        help="file for standard error (default: that of --output)",
    )
    conda_env: str | None = option(
        "--conda",
        default=None,
        section=RUN,
        read="not_empty",
        metavar="ENV",
        show="environment",
        help="activate this conda environment",
    )
    container: str | None = option(
        "--container",
        default=None,
        section=RUN,
        read="not_empty",
        metavar="IMAGE",
        limits={"pattern": r"^[^\s-]\S*$"},
        show="container",
        help="run the command in a container of this image, which your podman (or apptainer) has",
    )
    requeue: bool = option(
        "--requeue",
        default=True,
        section=RUN,
        memory=False,
        show="requeue",
        change=UNTIL_END,
        help="let CARMA restart the job after a reboot or a preemption (default)",
    )
    retry_on: str | None = option(
        "--retry-on",
        default=None,
        section=RUN,
        rare=True,
        read="exit_codes",
        metavar="CODE[,CODE]",
        limits={"pattern": rf"^{EXIT_CODE}(,{EXIT_CODE}){{0,63}}$"},
        memory=False,
        show="retries on",
        change=UNTIL_END,
        help="run the job again if it ends with one of these exit codes, such as 75,137 (128+N:"
        " ended by signal N); at most twice, unless the server's settings say otherwise",
    )
    requeue_ok: bool = option(
        "--requeue-ok",
        default=False,
        section=RUN,
        rare=True,
        memory=False,
        show="requeue ok",
        change=UNTIL_END,
        help="where the job cannot be suspended to make room for others, it may be ended instead,"
        " and started again later",
    )
    notify: str | None = option(
        "--notify",
        default=None,
        section=RUN,
        read="happenings",
        metavar="LIST",
        limits={"pattern": f"^({'|'.join(TOLD_OF)})(,({'|'.join(TOLD_OF)}))*$"},
        memory=False,
        show="notifies at",
        help="send a message at start, end, fail (any bad end), oom, limit80 (80 % of --time),"
        " suspend (and when it resumes): a list such as end,limit80; `carma doctor --notify` says"
        " where to",
    )
    mail_user: str | None = option(
        "--mail-user",
        default=None,
        section=RUN,
        rare=True,
        read="mail_address",
        metavar="ADDRESS",
        limits={
            "pattern": r"^[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,253})?$"
        },
        memory=False,
        show="mails to",
        help="where --notify sends mail, if the server sends any (default: the addresses of"
        " `carma doctor --notify`, or else you at the server's domain)",
    )
    comment: str | None = option(
        "--comment",
        default=None,
        section=RUN,
        rare=True,
        read="one_line",
        metavar="TEXT",
        limits={"pattern": r"^[^\x00-\x1f\x7f]+$", "max_length": 1024},
        memory=False,
        show="comment",
        change=UNTIL_END,
        help="words to find the job by; everybody who sees the job sees them",
    )
    idle_ok: str | None = option(
        "--idle-ok",
        default=None,
        section=RUN,
        rare=True,
        read="not_empty",
        metavar="REASON",
        limits={"pattern": r"^[^\x00-\x1f\x7f]+$", "max_length": 200},
        memory=False,
        show="may idle",
        change=UNTIL_END,
        help="why the job may hold its GPUs without using them: it is neither warned nor suspended"
        " for that; everybody who sees the job sees the reason",
    )
