"""What Slurm's commands may be asked to print of a job: `squeue -o` and `-O`, `sacct --format`.
Pure. Imports stay light."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from carma_slurm import CLUSTER, PARTITION
from carma_slurm.words.states import CODES, exit_code, reason_of, state_of
from carmad.readable import clean
from cli.text import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from carmad.api.job import JobOut

    Text = Callable[[JobOut], str]

HOST = os.uname().nodename.partition(".")[0]


def names_this_node(names: str) -> bool:
    """Whether this server is one of them, by its short name or a long one."""
    return HOST in [name.partition(".")[0] for name in names.split(",")]


class Field:
    """`name`, `letter`, `header`: what `squeue -O` and `squeue -o` call it, and its heading there.
    They are "" if squeue does not have it. `titles`: what sacct calls it. `width`: in sacct, unless
    another one is asked for; negative: it is flush left."""

    __slots__ = ("header", "letter", "name", "text", "titles", "width")

    def __init__(
        self, name: str, letter: str, header: str, titles: str, width: int, text: Text
    ) -> None:
        self.name = name
        self.letter = letter
        self.header = header
        self.titles = tuple(titles.split())
        self.width = width
        self.text = text


def timestamp(stamp: str | None, nothing: str) -> str:
    """The API's UTC in local time, as Slurm writes it."""
    if not stamp:
        return nothing
    from datetime import datetime

    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%dT%H:%M:%S}"


def long_clock(seconds: float | None) -> str:
    """[D-]HH:MM:SS, as sacct and scontrol write it."""
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(max(0, int(seconds)), 86_400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def cpus(job: JobOut) -> int:
    return job.get("cpus") or 1


def task_count(job: JobOut) -> int | None:
    """How many tasks it has been asked to have. None: CARMA keeps only the CPUs of all together."""
    return 1 if cpus(job) == 1 else None


def memory(job: JobOut) -> str:
    """Of the host. 0: it is not limited."""
    mib = job.get("host_memory_mib") or 0
    return f"{mib // 1024}G" if mib and mib % 1024 == 0 else f"{mib}M" if mib else "0"


def gres(job: JobOut) -> str:
    gpus = job["gpus_wanted"]
    return f"gres:gpu:{gpus}" if gpus else ""


def tres(job: JobOut) -> str:
    parts = [f"billing={cpus(job)}", f"cpu={cpus(job)}"]
    parts += [f"gres/gpu={job['gpus_wanted']}"] if job["gpus_wanted"] else []
    parts += [f"mem={memory(job)}"] if memory(job) != "0" else []
    return ",".join([*parts, "node=1"])


def has_started(job: JobOut) -> bool:
    return job["started_at"] is not None and state_of(job) != "PENDING"


def nodes(job: JobOut) -> str:
    return HOST if has_started(job) else ""


def dependency(job: JobOut) -> str:
    return ",".join(
        f"{one['kind']}:{one.get('label', one['job'])}(unfulfilled)" for one in job.get("after", ())
    )


def features(job: JobOut) -> str:
    return str(job.get("constraint") or "")


def array_of(job: JobOut) -> tuple[str, str]:
    """The array's number and the index of the task; a job of its own is its own array."""
    array, _, index = job["label"].partition("_")
    return array, index


def raw_id(job: JobOut) -> str:
    """Of one task of an array, it is the array's, as in Slurm: tools look for that."""
    array, index = array_of(job)
    return array if index and job["id"] == int(array) + 1 else str(job["id"])


def tasks_of(job: JobOut) -> str:
    """The index of the task, or of all that wait: 0-3%1."""
    return array_of(job)[1].replace("[", "").replace("]", "")


def command(job: JobOut) -> str:
    """The job script, the text of --wrap, or the whole command of a job that has neither."""
    argv = job.get("argv") or ["(null)"]
    if argv[:2] == ["/bin/sh", "-c"]:
        return clean(argv[-1])
    # A copied script stands behind its interpreter, which has one argument at most.
    scripts = [word for word in argv[1:3] if word.startswith("/") and job.get("script_bytes")]
    return clean(scripts[0]) if scripts else command_line(job)


def command_line(job: JobOut) -> str:
    return clean(" ".join(job.get("argv") or ["(null)"]))


def time_left(job: JobOut) -> str:
    limit_s = job.get("time_limit_s")
    return "UNLIMITED" if limit_s is None else clock(limit_s - job["elapsed_s"])


def accounting_state(job: JobOut) -> str:
    """With who cancelled it."""
    state = state_of(job)
    return f"CANCELLED by {_canceller(job)}" if state == "CANCELLED" else state


def _canceller(job: JobOut) -> int:
    """The uid of who cancelled it; its owner's, if that was the daemon or is not known."""
    how = job.get("exit")
    _, _, name = (how["evidence"] if how else "").partition("cancelled by ")
    return uid(name) if name and uid(name) >= 0 else uid(job["user"])


def uid(user: str) -> int:
    """-1 for a user who is no longer known here."""
    import pwd

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return -1


def gid(user: str) -> int:
    """Of the user's own group; -1 for a user who is no longer known here."""
    import pwd

    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        return -1


def group(user: str) -> str:
    import grp

    try:
        return grp.getgrgid(gid(user)).gr_name
    except (KeyError, OverflowError):
        return ""


def _seconds(job: JobOut) -> str:
    return str(int(job["elapsed_s"]))


def _limit(job: JobOut) -> str:
    limit_s = job.get("time_limit_s")
    return "UNLIMITED" if limit_s is None else clock(limit_s)


def _limit_minutes(job: JobOut) -> str:
    limit_s = job.get("time_limit_s")
    return "UNLIMITED" if limit_s is None else str(int(limit_s // 60))


def _where(job: JobOut) -> str:
    return nodes(job) if has_started(job) else f"({reason_of(job)})"


def _cpu_time(job: JobOut) -> float:
    return int(job["elapsed_s"]) * cpus(job)


def _wait_s(job: JobOut) -> float:
    return job.get("wait_s", 0.0)


def comment(job: JobOut) -> str:
    return clean(job.get("comment") or "")


def _nothing(_: JobOut) -> str:
    return ""


# What sacct has of these is empty: CARMA does not record it.
UNKNOWN = (
    "AveCPU MinCPU MinCPUNode MinCPUTask MaxRSS MaxRSSNode MaxRSSTask AveRSS"
    " MaxVMSize MaxVMSizeNode MaxVMSizeTask AveVMSize MaxPages MaxPagesNode MaxPagesTask"
    " AvePages MaxDiskRead MaxDiskReadNode MaxDiskReadTask AveDiskRead MaxDiskWrite"
    " MaxDiskWriteNode MaxDiskWriteTask AveDiskWrite AveCPUFreq ReqCPUFreq ReqCPUFreqGov"
    " ReqCPUFreqMax ReqCPUFreqMin ConsumedEnergy ConsumedEnergyRaw Suspended"
    " TRESUsageInAve TRESUsageInMax TRESUsageInMaxNode TRESUsageInMaxTask TRESUsageInMin"
    " TRESUsageInMinNode TRESUsageInMinTask TRESUsageInTot TRESUsageOutAve TRESUsageOutMax"
    " TRESUsageOutMaxNode TRESUsageOutMaxTask TRESUsageOutMin TRESUsageOutMinNode"
    " TRESUsageOutMinTask TRESUsageOutTot"
)
# Likewise: nothing here has it.
NEVER = (
    "AdminComment AssocID BlockID Container DBIndex Flags Layout McsLabel QOSRAW Reservation"
    " ReservationId SystemComment WCKeyID"
)
FIELDS = (
    Field("jobarrayid", "i", "JOBID", "JobID", -12, lambda j: j["label"]),
    Field("jobid", "A", "JOBID", "JobIDRaw", -12, raw_id),
    Field("arrayjobid", "F", "ARRAY_JOB_ID", "", 12, lambda j: array_of(j)[0]),
    Field("arraytaskid", "K", "ARRAY_TASK_ID", "", 12, lambda j: tasks_of(j) or "N/A"),
    Field("name", "j", "NAME", "JobName", 10, lambda j: clean(j["name"])),
    Field("username", "u", "USER", "User", 9, lambda j: clean(j["user"])),
    Field("userid", "U", "UID", "UID", 6, lambda j: str(uid(j["user"]))),
    Field("groupname", "g", "GROUP", "Group", 9, lambda j: group(j["user"])),
    Field("", "", "", "GID", 6, lambda j: str(gid(j["user"]))),
    Field("partition", "P", "PARTITION", "Partition", 10, lambda _: PARTITION),
    Field("account", "a", "ACCOUNT", "Account", 10, lambda _: "(null)"),
    Field("qos", "q", "QOS", "QOS", 10, lambda _: "normal"),
    Field("cluster", "", "CLUSTER", "Cluster", 10, lambda _: CLUSTER),
    Field("wckey", "w", "WCKEY", "WCKey", 10, _nothing),
    Field("comment", "k", "COMMENT", "Comment", 14, comment),
    Field("statecompact", "t", "ST", "", 2, lambda j: CODES[state_of(j)]),
    Field("state", "T", "STATE", "", 10, state_of),
    Field("", "", "", "State", 10, accounting_state),
    Field("reason", "r", "REASON", "Reason", 22, reason_of),
    Field("reasonlist", "R", "NODELIST(REASON)", "", 20, _where),
    Field("timeused", "M", "TIME", "", 10, lambda j: clock(j["elapsed_s"])),
    Field("timelimit", "l", "TIME_LIMIT", "", 10, _limit),
    Field("", "", "", "Timelimit", 10, lambda j: long_clock(j.get("time_limit_s"))),
    Field("", "", "", "TimelimitRaw", 10, _limit_minutes),
    Field("timeleft", "L", "TIME_LEFT", "", 10, time_left),
    Field("", "", "", "Elapsed", 10, lambda j: long_clock(j["elapsed_s"])),
    Field("", "", "", "ElapsedRaw", 10, _seconds),
    Field("", "", "", "CPUTime", 10, lambda j: long_clock(_cpu_time(j))),
    Field("", "", "", "CPUTimeRAW", 10, lambda j: str(_cpu_time(j))),
    Field("", "", "", "Planned Reserved", 10, lambda j: long_clock(_wait_s(j))),
    Field("", "", "", "PlannedCPU ResvCPU", 10, lambda j: long_clock(_wait_s(j) * cpus(j))),
    Field("", "", "", "PlannedCPURAW ResvCPURAW", 13, lambda j: str(int(_wait_s(j) * cpus(j)))),
    # Not recorded either. Programs want a time, and a Slurm that gathers nothing says this one.
    Field("", "", "", "TotalCPU UserCPU SystemCPU", 10, lambda _: "00:00:00"),
    Field("", "", "", UNKNOWN, 10, _nothing),
    Field("", "", "", NEVER, 10, _nothing),
    Field("nodelist", "N", "NODELIST", "", 15, nodes),
    Field("", "", "", "NodeList", 15, lambda j: nodes(j) or "None assigned"),
    Field("batchhost", "B", "EXEC_HOST", "", 15, lambda j: nodes(j) or "n/a"),
    Field("numnodes", "D", "NODES", "NNodes AllocNodes ReqNodes", 8, lambda _: "1"),
    Field("numcpus", "C", "CPUS", "AllocCPUS NCPUS", 10, lambda j: str(cpus(j))),
    Field("mincpus", "c", "MIN_CPUS", "ReqCPUS", 8, lambda j: str(cpus(j))),
    Field("numtasks", "", "TASKS", "NTasks", 8, lambda j: str(task_count(j) or "N/A")),
    Field("minmemory", "m", "MIN_MEMORY", "ReqMem", 10, memory),
    Field("tres-per-node", "b", "TRES_PER_NODE", "", 15, lambda j: gres(j) or "N/A"),
    Field("gres", "", "GRES", "", 15, lambda j: gres(j) or "N/A"),
    Field("tres-alloc", "", "TRES_ALLOC", "AllocTRES", 10, tres),
    Field("tres", "", "TRES", "ReqTRES", 10, tres),
    Field("dependency", "E", "DEPENDENCY", "", 20, lambda j: dependency(j) or "(null)"),
    Field("feature", "f", "FEATURES", "Constraints", 20, lambda j: features(j) or "(null)"),
    Field("oversubscribe", "h", "OVER_SUBSCRIBE", "", 14, lambda _: "YES"),
    Field("nice", "y", "NICE", "", 10, lambda j: str(j.get("nice", 0))),
    Field("priority", "p", "PRIORITY", "Priority", 10, lambda j: f"{priority(j) / 2**32:.14f}"),
    Field("prioritylong", "Q", "PRIORITY", "", 10, lambda j: str(priority(j))),
    Field("command", "o", "COMMAND", "", 20, command),
    Field("", "", "", "SubmitLine", 20, command_line),
    Field("workdir", "Z", "WORK_DIR", "WorkDir", 20, lambda j: clean(j.get("cwd", ""))),
    Field("stdout", "", "STDOUT", "", 20, lambda j: clean(j.get("stdout") or "")),
    Field("stderr", "", "STDERR", "", 20, lambda j: clean(j.get("stderr") or "")),
    Field("submittime", "V", "SUBMIT_TIME", "Submit", 19, lambda j: submit_time(j)),
    Field("eligibletime", "", "ELIGIBLE_TIME", "Eligible", 19, lambda j: _eligible(j)),
    Field("starttime", "S", "START_TIME", "", 19, lambda j: start_time(j, "N/A")),
    Field("endtime", "e", "END_TIME", "", 19, lambda j: timestamp(j.get("ended_at"), "N/A")),
    Field("", "", "", "Start", 19, lambda j: start_time(j, "Unknown")),
    Field("", "", "", "End", 19, lambda j: timestamp(j.get("ended_at"), "Unknown")),
    Field("exit_code", "", "EXIT_CODE", "ExitCode", 8, exit_code),
    Field("", "", "", "DerivedExitCode", 15, lambda _: "0:0"),
    Field("restartcnt", "", "RESTART_CNT", "Restarts", 8, lambda j: str(restarts(j))),
    Field("requeue", "", "REQUEUE", "", 8, lambda j: "1" if j.get("requeue", True) else "0"),
)


LETTERS = {field.letter: field for field in FIELDS if field.letter}
NAMES = {field.name: field for field in FIELDS if field.name}
TITLES = {title.lower(): (title, field) for field in FIELDS for title in field.titles}


def priority(job: JobOut) -> int:
    """The higher, the earlier; 0: it is held."""
    if job.get("held"):
        return 0
    return max(1, 1_000_000 - (job.get("position") or 1_000_000))


def submit_time(job: JobOut) -> str:
    return timestamp(job["submitted_at"], "Unknown")


def restarts(job: JobOut) -> int:
    return max(0, job.get("attempt", 1) - 1)


def _eligible(job: JobOut) -> str:
    return timestamp(job.get("begin_at") or job["submitted_at"], "Unknown")


def start_time(job: JobOut, nothing: str) -> str:
    """Of a job that waits, when it may begin if it was given a time."""
    return timestamp(job["started_at"] if has_started(job) else job.get("begin_at"), nothing)
