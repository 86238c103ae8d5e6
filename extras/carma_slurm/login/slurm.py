"""Slurm's commands, run as the user, and what they say, in the words that CARMA has for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from carmad import states
from carmad.readable import clean, gpumem_count
from cli import output
from cli.problems import Problem, Refused, Unknown, Unreachable, Usage


class State(NamedTuple):
    name: str  # as in CARMA's API
    held: bool = False

    @property
    def code(self) -> str:
        return states.HELD if self.held else states.CODES[self.name]

    @property
    def ended(self) -> bool:
        return self.name in states.ENDED


class Reason(NamedTuple):
    slurm: str  # its word; "": nothing waits
    text: str  # completes "job 42 waits: "


QUEUED, HELD, FAILED = State("queued"), State("queued", held=True), State("failed")
STATES = {
    "PENDING": QUEUED,
    "REQUEUED": QUEUED,
    "REQUEUE_FED": QUEUED,
    "REQUEUE_HOLD": HELD,
    "SPECIAL_EXIT": HELD,
    "RESV_DEL_HOLD": HELD,
    "CONFIGURING": State("starting"),
    "RUNNING": State("running"),
    "RESIZING": State("running"),
    "SIGNALING": State("running"),
    "SUSPENDED": State("running"),
    "STOPPED": State("running"),
    "COMPLETING": State("stopping"),
    "STAGE_OUT": State("stopping"),
    "COMPLETED": State("succeeded"),
    "CANCELLED": State("cancelled"),
    "TIMEOUT": State("timed_out"),
    "DEADLINE": State("timed_out"),
    "OUT_OF_MEMORY": State("out_of_memory"),
}
REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "no node has the GPU memory, CPUs and memory free that it asks for; it is next",
    "Priority": "jobs before it wait for the same nodes",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise than it asks for, so it"
    " will never start: cancel it",
    "BeginTime": "the time to begin, or to try again, has not come",
    "JobHeldUser": "you hold it: carma release starts it",
    "JobHeldAdmin": "an administrator holds it, or it was requeued too often",
    "JobArrayTaskLimit": "as many tasks of its array run as --array allows with %",
    "PartitionTimeLimit": "its time limit is above that of the partition: give a lower --time",
    "PartitionNodeLimit": "the partition does not allow so many nodes",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "nodes that it could run on are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "Reservation": "its reservation has not begun",
    "QOSGrpGRES": "the jobs of this QOS use all the GPU memory that it may",
    "BadConstraints": "no node is as it asks for: see carma status, and submit it anew",
    "Licenses": "a license that it needs is in use",
    "launch failed requeued held": "it could not be started on a node, and is held: ask your"
    " administrator",
    "Cleaning": "its last run is being cleaned up",
}


def state_of(state: str, reason: str) -> State:
    """`state`: as squeue's %T writes it."""
    found = STATES.get(state.strip(), FAILED)
    return HELD if found == QUEUED and reason.startswith("JobHeld") else found


def why_of(reason: str) -> Reason:
    """`reason`: as squeue's %r writes it."""
    word = reason.strip().strip("()")
    if text := REASONS.get(word) or REASONS.get(word.partition(",")[0]):
        return Reason(word, text)
    if "Limit" in word or word.startswith(("QOS", "Assoc")):
        return Reason(word, f"a limit of your account or QOS ({word}): sshare and sacctmgr show it")
    return Reason(word, f"Slurm says {word}")


DOWN = ("Unable to contact slurm controller",)
UNSIGNED = ("Munge encode failed",)
LOST = (
    *("Socket timed out", "Message receive failure", "Zero Bytes were transmitted"),
    *("(send failure)", "(receive failure)", "(shutdown failure)", "Connection reset by peer"),
    *("Unexpected message received", "Broken pipe", "Munge decode failed"),
)
CHANGING = ("sbatch", "scancel", "scontrol")  # if the answer is lost, it may have been done
UNCONFIGURED = ("resolve_ctls_from_dns_srv", "fetch_config", "slurm.conf")
# What the user has set so that Slurm's commands show, or change, only some jobs, or write times
# in another way: it is not meant for `carma`, which would take what is left for all there is.
HABITS = ("SQUEUE_", "SCANCEL_", "SCONTROL_", "SINFO_", "SACCT_", "SLURM_TIME_FORMAT")
MISSING = "Invalid job id"
DENIED = ("Access/permission denied", "Permission denied", "Access denied")


UNKNOWN = "nobody knows whether that was done: see `carma queue --me -t all` before you repeat it"
FORGETS = "it forgets jobs minutes after their end; see `squeue --me` and `sacct`"


class Gone(Problem):
    """Slurm no longer knows the job, or never did."""


class Row(NamedTuple):
    """A job or, unless asked for its tasks, all waiting tasks of an array; as squeue has it."""

    id: int  # a task's own
    label: str  # 42, 42_3, 42_[0-9%2]
    user: str
    state: State
    why: Reason
    elapsed: str
    limit: str
    nodes: str
    gres: str
    submitted: str  # local time
    starts: str  # likewise: when it did, or is expected to
    name: str

    @property
    def never_ran(self) -> bool:
        return self.state.ended and not self.nodes

    @property
    def gpumem_gib(self) -> int | None:
        return gpumem_count(self.gres)

    @property
    def number(self) -> int:
        """That of the job, or of the whole array or heterogeneous job."""
        return int(re.split("[_+]", self.label)[0])

    @property
    def task(self) -> int:
        return task(self.label)


def task(label: str) -> int:
    """The index in the array; of several tasks, the first."""
    return int([*re.findall(r"\d+", label), "0"][1])


# The name last: it may be anything.
FIELDS = ("%A", "%i", "%u", "%T", "%r", "%M", "%l", "%N", "%b", "%V", "%S", "%j")
SEPARATOR = "\x1f"


def rows(*which: str) -> list[Row]:
    """The jobs that these options of squeue select. Raises Problem."""
    mark = os.urandom(8).hex()  # nobody can put it into a job's name to make up a row
    shape = SEPARATOR.join((mark, *FIELDS))
    try:
        text = ask("squeue", "--noheader", f"--format={shape}", *which)
    except Gone:  # so it says if it is asked for one job only
        return []
    found = []
    for line in ("\n" + text).split(f"\n{mark}{SEPARATOR}")[1:]:
        id, label, user, state, reason, *rest = line.split(SEPARATOR, len(FIELDS) - 1)
        found.append(Row(int(id), label, user, state_of(state, reason), why_of(reason), *rest))
    return sorted(found, key=lambda row: row.id)


def row(label: str) -> Row:
    """The job, also after its end, as long as Slurm remembers it; of an array, the first task.
    Raises Gone."""
    return min(all_of(label), key=lambda row: row.task)


def all_of(label: str, *options: str) -> list[Row]:
    """The job, or the tasks of the array, at least one. Raises Gone."""
    found = rows("--states=all", f"--jobs={label}", *options)
    if not found:
        raise Gone(f"Slurm does not know job {label}", FORGETS)
    return found


def details(label: str) -> dict[str, str]:
    """What `scontrol show job` says of one job: NAME=VALUE, a line's first. Raises Gone."""
    text = ask("scontrol", "show", "job", label)
    all_tasks = ("\n\n" + text).split("\n\nJobId=")  # if it is an array that has tasks
    own = next((one for one in all_tasks if one.startswith(f"{label} ")), all_tasks[-1])
    found = {}
    for line in own.splitlines():
        name, given, value = line.strip().partition("=")
        if given:  # those that a job's name could make up come first, so the real ones win
            found[name] = value
        if name == "Requeue":
            found["ExitCode"] = line.rpartition(" ExitCode=")[2]
    return found


def ask(
    *words: str,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    within_s: float | None = None,
) -> str:
    """What the command prints; `text` is its input. Raises Problem."""
    try:
        ran = subprocess.run(
            [shutil.which(words[0]) or words[0], *words[1:]],  # not by the job's PATH
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            env=own_environment() if env is None else env,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:
        raise Problem(f"{words[0]} has not answered in {within_s:g} s") from None
    except FileNotFoundError:
        raise Problem(
            f"Slurm's command {words[0]} is not here",
            "cluster.engine is slurm: install Slurm's client commands, or put them on PATH",
        ) from None
    except OSError as error:
        raise Problem(f"cannot run {words[0]}: {error.strerror}") from None
    except KeyboardInterrupt:
        if _changes(words):
            output.note(f"interrupted while {words[0]} ran: {UNKNOWN}")
        raise
    if ran.returncode < 0 and _changes(words):
        raise Unknown(f"{words[0]} was killed by signal {-ran.returncode}", UNKNOWN)
    if ran.returncode:
        raise problem(words, ran.stderr or ran.stdout)
    return ran.stdout.strip("\n")


def _changes(words: Sequence[str]) -> bool:
    return words[0] in CHANGING and "show" not in words[1:2]


def own_environment() -> dict[str, str]:
    """Of Slurm's commands. Raises Usage."""
    cluster_choice()
    return {name: value for name, value in os.environ.items() if not name.startswith(HABITS)}


def cluster_choice() -> str:
    """The one that the user has chosen among several; "": that of slurm.conf. Raises Usage."""
    name = os.environ.get("SLURM_CLUSTERS", "").strip()
    if "," in name or name == "all":
        raise Usage(
            f"SLURM_CLUSTERS is {name}, but carma asks one cluster at a time",
            "export SLURM_CLUSTERS=NAME, or unset SLURM_CLUSTERS",
        )
    return name


def problem(words: Sequence[str], said: str) -> Problem:
    """What the command's message means."""
    lines = [clean(line) for line in said.splitlines() if line.strip()]
    message = lines[0].removeprefix(f"{words[0]}: ").removeprefix("error: ") if lines else "failed"
    if any(sign in said for sign in LOST):
        if not _changes(words):
            return Unreachable(f"no answer from Slurm: {message}", "try again in a minute")
        return Unknown(f"no answer from Slurm: {message}", UNKNOWN)
    if any(sign in said for sign in DOWN):
        return Unreachable(
            "Slurm's controller does not answer",
            "running jobs continue; try again in a minute, and `scontrol ping` says whether it is"
            " up",
        )
    if any(sign in said for sign in UNSIGNED):
        return Unreachable(
            "munged does not run on this machine, without which Slurm answers nobody",
            "running jobs continue; ask your administrator to start it",
        )
    if any(sign in said for sign in UNCONFIGURED):
        return Problem(
            f"Slurm is not set up on this machine: {message}",
            "an administrator copies /etc/slurm/slurm.conf here; elsewhere, SLURM_CONF names it",
        )
    if MISSING in said:
        return Gone(f"{words[0]}: {message}", "see `carma queue --me`")
    if any(sign in said for sign in DENIED):
        return Refused(f"Slurm says: {message}", "it is another user's", "forbidden")
    return Refused(f"Slurm says: {message}", _hint(said), "error")


def _hint(said: str) -> str:
    if "Invalid job array specification" in said:
        return "the cluster allows fewer tasks (MaxArraySize): submit several arrays"
    if "Invalid account" in said or "Invalid qos" in said:
        return "`sacctmgr show associations user=$USER` lists the accounts and QOS that you have"
    if re.search(r"(Assoc|QOS)\w+Limit", said):
        return "a limit of your account or QOS: wait until jobs of it have ended, or cancel some"
    if "dependency" in said:
        return "Slurm forgets jobs minutes after their end: leave those that have ended out"
    if "Invalid generic resource" in said or "gres" in said:
        return "no node has gpumem: an administrator adds it, see CARMA's guide to Slurm"
    if "Requested node configuration is not available" in said:
        return "no node has so much: `carma status` shows what each has; ask for less"
    return ""
