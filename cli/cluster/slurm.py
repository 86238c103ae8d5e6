"""Slurm's commands, run as the user, and what they say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from carmad.readable import clean, counted
from cli.cluster.states import Reason, State, state_of, why_of
from cli.problems import Problem, Refused, Unknown, Unreachable

DOWN = ("Unable to contact slurm controller", "Zero Bytes were transmitted")
LOST = ("Socket timed out", "Message receive failure")  # perhaps after it was done
MISSING = "Invalid job id"
DENIED = ("Access/permission denied", "Permission denied", "Access denied")


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
    def gpumem_gib(self) -> int | None:
        return counted(self.gres)


FIELDS = [
    "%A",
    "%i",
    "%u",
    "%T",
    "%r",
    "%M",
    "%l",
    "%N",
    "%b",
    "%V",
    "%S",
    "%j",
]  # the name last: it may be anything
SEPARATOR = "\x1f"


def rows(*which: str) -> list[Row]:
    """The jobs that these options of squeue select. Raises Problem."""
    mark = os.urandom(8).hex()  # nobody can put it into a job's name to make up a row
    shape = SEPARATOR.join((mark, *FIELDS))
    text = ask("squeue", "--noheader", f"--format={shape}", *which)
    found = []
    for line in ("\n" + text).split(f"\n{mark}{SEPARATOR}")[1:]:
        id, label, user, state, reason, *rest = line.split(SEPARATOR, len(FIELDS) - 1)
        found.append(Row(int(id), label, user, state_of(state, reason), why_of(reason), *rest))
    return sorted(found, key=lambda row: row.id)


def row(label: str) -> Row:
    """The job, also after its end, as long as Slurm remembers it. Raises Gone."""
    try:
        found = rows("--states=all", f"--jobs={label}")
    except Gone:
        found = []
    if not found:
        raise gone(label)
    return found[0]


def gone(label: str) -> Gone:
    return Gone(f"Slurm does not know job {label}", _accounted(label))


def _accounted(label: str) -> str:
    """What the accounts, if there are any, say of a job that the controller has forgotten."""
    fields = "--format=JobName,State,ExitCode,Start,End,NodeList"
    try:
        line = ask("sacct", "-X", "-n", "-P", "--delimiter=\x1f", f"--jobs={label}", fields)
    except Problem:
        return (
            "it forgets jobs minutes after their end, and keeps no accounts here;"
            " what the job printed is in its file, carma-%j.out by default"
        )
    if not line:
        return "see `squeue --me` and `sacct`"
    name, state, code, start, end, nodes = line.splitlines()[0].split("\x1f")
    return clean(f"its accounts: {name}, {state}, exit {code}, {start} to {end} on {nodes}")


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
            words,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            env=env,
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
    if ran.returncode:
        raise problem(words, ran.stderr or ran.stdout)
    return ran.stdout.strip("\n")


def problem(words: Sequence[str], said: str) -> Problem:
    """What the command's message means."""
    lines = [clean(line) for line in said.splitlines() if line.strip()]
    message = lines[0].removeprefix(f"{words[0]}: ").removeprefix("error: ") if lines else "failed"
    if any(sign in said for sign in DOWN):
        return Unreachable(
            "Slurm's controller does not answer",
            "running jobs continue; try again in a minute, and `scontrol ping` says whether it is"
            " up",
        )
    if any(sign in said for sign in LOST):
        lost = Unreachable(
            f"no answer from Slurm: {message}",
            "it is not known whether that was done: see `carma queue --me` before you repeat it",
        )
        lost.code = Unknown.code
        return lost
    if MISSING in said:
        return Gone(f"{words[0]}: {message}", "see `carma queue --me`")
    if any(sign in said for sign in DENIED):
        return Refused(f"Slurm says: {message}", "it is another user's", "forbidden")
    return Refused(f"Slurm says: {message}", _hint(said), "error")


def _hint(said: str) -> str:
    if "Invalid generic resource" in said or "gres" in said:
        return "no node has gpumem: an administrator adds it, see CARMA's guide to Slurm"
    if "Requested node configuration is not available" in said:
        return "no node has so much: `carma status` shows what each has; ask for less"
    return ""
