"""What Slurm's accounts say of jobs that its controller has forgotten. They may be kept or not."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from cli.cluster import slurm
from cli.cluster.slurm import Gone, Row
from cli.cluster.states import state_of, why_of
from cli.problems import Problem, Unreachable

WITHIN_S = 10.0  # sacct waits long for accounts that do not answer
SINCE = "now-30days"  # for the last job: without it, sacct looks at today's
FIELDS = (
    *("JobIDRaw", "JobID", "User", "State", "Elapsed", "Timelimit", "NodeList", "ReqTRES"),
    *("Submit", "Start", "JobName", "End", "ExitCode", "WorkDir", "SubmitLine"),
)
DISABLED = "accounting storage is disabled"
IN_FILE = "what the job printed is in its file, carma-%j.out by default"
FORGOTTEN = f"{slurm.FORGETS}; {IN_FILE}"


class Record(NamedTuple):
    """A job that has ended; of a requeued one, its last run."""

    row: Row
    details: dict[str, str]  # named as `scontrol show job` does, as far as they are known


def record(label: str) -> Record:
    """The job as Slurm knows it, or else as its accounts do: of an array, the first task, or in the
    accounts, the first that failed. Raises Gone, or Unreachable if they do not answer."""
    try:
        row = slurm.row(label)
        return Record(row, slurm.details(str(row.id)))
    except Gone:
        return first(end_records(label))


def first(found: list[Record]) -> Record:
    return min(found, key=lambda one: (one.row.state.name == "succeeded", one.row.task))


def end_records(label: str) -> list[Record]:
    """The job, or the tasks of the array, at least one; all tasks that were cancelled while they
    waited are one. Raises Gone, Unreachable."""
    found = _records(f"job {label}", f"--jobs={label}")
    if not found:
        hint = "nor do its accounts, unless it is another user's and hidden: see `carma queue`"
        raise Gone(f"Slurm does not know job {label}", hint)
    over = [one for one in _latest(found) if one.row.state.ended]
    if not over:
        raise without_end(label)
    return over


def _latest(found: list[Record]) -> list[Record]:
    """Where Slurm has begun to count anew, sacct adds tasks of an earlier array to a later job."""
    found = sorted(found, key=lambda one: one.row.submitted)
    of_array = "_" in found[-1].row.label
    return [*{one.row.label: one for one in found if ("_" in one.row.label) == of_array}.values()]


def without_end(label: str) -> Gone:
    return Gone(
        f"Slurm has forgotten job {label}, and its accounts know of no end",
        f"if they do not in some minutes, ask your administrator; {IN_FILE}",
    )


def last() -> int | None:
    """The number of the user's last job."""
    try:
        found = _records("any job of yours", f"--starttime={SINCE}", f"--uid={os.getuid()}")
    except Problem:
        return None
    return max((one.row.number for one in found), default=None)


def _records(whom: str, *which: str) -> list[Record]:
    mark = os.urandom(8).hex()  # nobody can put it into a job's name to make up a record
    # With -p, it ends each record, too: what a record says may have lines.
    shape = ("-X", "-n", "-p", f"--delimiter={mark}", f"--format={','.join(FIELDS)}")
    if chosen := slurm.cluster_choice():  # sacct does not look at SLURM_CLUSTERS
        which += (f"--clusters={chosen}",)
    try:
        words = slurm.ask("sacct", *shape, *which, within_s=WITHIN_S).split(mark)
    except Problem as error:
        if DISABLED in error.message:
            raise Gone(f"Slurm does not know {whom}, and keeps no accounts", FORGOTTEN) from None
        raise Unreachable(
            f"Slurm does not know {whom}, and its accounts do not answer: {error.message}",
            f"try again later; {IN_FILE}",
        ) from None
    size = len(FIELDS)
    return [_record(*words[at : at + size]) for at in range(0, len(words) - size, size)]


def _record(*words: str) -> Record:
    said = dict(zip(FIELDS, words, strict=True))
    nodes = "" if said["NodeList"] == "None assigned" else said["NodeList"]
    row = Row(
        int(said["JobIDRaw"]),  # after the last one's newline
        said["JobID"],
        said["User"],
        state_of(said["State"].partition(" ")[0], ""),  # CANCELLED by 1000
        why_of("None"),  # theirs is why it once waited
        *(said["Elapsed"], said["Timelimit"], nodes, said["ReqTRES"], said["Submit"]),
        said["Start"] if nodes else "N/A",
        said["JobName"],
    )
    details = {"ExitCode": said["ExitCode"], "EndTime": said["End"], "WorkDir": said["WorkDir"]}
    out = _file(row, said, "output")
    return Record(row, details | {"StdOut": out, "StdErr": _file(row, said, "error") or out})


def _file(row: Row, said: dict[str, str], option: str) -> str:
    """That was given to sbatch as an option; "" if none was, or it cannot be told."""
    given = re.findall(rf" --{option}=(.+?)(?= --?[A-Za-z]|$)", said["SubmitLine"], re.DOTALL)
    if not given or "\\" in given[-1]:
        return ""
    _, array, task = row.label.partition("_")
    means = {"%": "%", "j": str(row.id), "A": str(row.number), "x": row.name, "u": row.user}
    means |= {"a": task} if array else {}
    # A number before the letter: at least so many digits.
    parts = re.split(r"%(\d*)(.)", given[-1], flags=re.DOTALL)
    for at in range(1, len(parts), 3):
        width, letter = parts[at : at + 2]
        if letter not in means:
            return ""
        parts[at : at + 2] = ["", means[letter].zfill(int(width or 0))]
    return os.path.join(said["WorkDir"], "".join(parts))  # noqa: PTH118
