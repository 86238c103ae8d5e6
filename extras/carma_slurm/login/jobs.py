"""Jobs of a cluster: which ones words select; `cancel`, `hold`, `release`, `requeue` and `wait`;
their exit codes; and what Slurm's accounts say of jobs that its controller has forgotten.

Whose jobs may be changed is for Slurm to say: everything is asked of it as the user.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from carma_slurm.login import slurm
from carma_slurm.login.slurm import Gone, Row, state_of, why_of
from carmad.errors import CarmaError
from cli import output
from cli.client import SLURM, outcomes
from cli.problems import Problem, Unknown, Unreachable, Usage

if TYPE_CHECKING:
    from argparse import Namespace

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


LOOK_S = 1.0  # the first look for the end; each asks Slurm's controller
LOOK_MOST_S = 15.0
_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})")
_JOB = re.compile(r"\d{1,9}(_\d{1,9})?")
MOST = 10_000


def resolve(word: str) -> str:
    """The number of a job; for `last`, the number of your last job or array. Raises Usage."""
    if word == "last":
        mine = [row.number for row in slurm.rows("--me", "--states=all")]
        latest = max(mine, default=None) or last()
        if latest is None:
            raise Usage("Slurm knows no job of yours", "name a job by its number")
        return str(latest)
    if word.startswith(SLURM):
        number = word.removeprefix(SLURM)
        raise Usage(f"{word} is for a node, where a carmad runs", f"here, the job is {number}")
    if not _JOB.fullmatch(word):
        raise Usage(f"{word!r} is not a job", "give its number: 42, 42_3 or last")
    return word


def select(words: Sequence[str], user: str | None = None) -> Iterator[str]:
    """42, 1,3,5-8, 42_3, last and all, which is yours that have not ended, or the user's. Raises
    Usage."""
    for word in ",".join(words).split(","):
        if word == "all":
            whose = f"--user={user}" if user else "--me"
            yield from dict.fromkeys(str(row.number) for row in slurm.rows(whose))
        elif match := _SPAN.fullmatch(word):
            first, last = int(match[1]), int(match[2])
            if not first <= last < first + MOST:
                raise Usage(f"{word!r} is not a range of jobs", "such as 5-8")
            yield from map(str, range(first, last + 1))
        elif word == "last" or _JOB.fullmatch(word):
            yield resolve(word)
        else:
            raise Usage(f"{word!r} is not a job", "give numbers: 42, 1,3,5-8, 42_3, last or all")


class End(NamedTuple):
    label: str
    state: str  # of an array, that of the first task that failed
    exit_code: int  # 0 only for success; 128+N if signal N ended it


def ends(labels: Sequence[str], known: bool = False) -> Iterator[End]:
    """Each job's end, in the order of the ends; an array ends with its last task. Waits for a
    controller that goes away, and if the jobs are `known` to exist, for one that is away at first.
    """
    waiting = {label: _Tasks(label) for label in labels}
    look_s = LOOK_S
    said = False
    while waiting:
        for label, tasks in list(waiting.items()):
            try:
                over = tasks.over()
            except Unreachable as error:
                if not known:
                    raise
                if not said:
                    output.note(f"{error.message}; still waiting")
                said = True
                break
            known = True
            if over:
                del waiting[label]
                yield tasks.end()
        else:
            said = False
        if waiting:
            time.sleep(look_s)
            look_s = min(LOOK_MOST_S, look_s * 1.5)


class _Tasks:
    """Of an array, or a job as its only one. Slurm forgets each minutes after its end, perhaps
    while others still run: what was seen stays, and of what was not, its accounts are asked."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._seen: dict[str, End] = {}
        self._running: set[str] = set()  # at the last look that found them

    def over(self) -> bool:
        found = slurm.rows("--states=all", f"--jobs={self._label}", "--array")
        for row in found:
            if not row.state.ended:
                self._seen.pop(row.label, None)  # it was requeued
                self._running.add(row.label)
            elif row.label not in self._seen:
                self._seen[row.label] = _end(row)
        if not all(row.state.ended for row in found):
            return False
        self._recall()
        return True

    def _recall(self) -> None:
        """Raises Gone, or Unreachable, if the end of a task is needed that nobody tells."""
        of_array = any("_" in label for label in self._seen) and "_" not in self._label
        lost = self._running - self._seen.keys()
        if self._seen and not lost and not of_array:
            return
        try:
            for row, more in end_records(self._label):
                code = 0 if row.state.name == "succeeded" else exit_code(more["ExitCode"])
                self._seen.setdefault(row.label, End(row.label, row.state.name, code))
        except (slurm.Gone, Unreachable):
            if lost or not self._seen:
                raise
        lost -= self._seen.keys()
        if lost and not any("[" in label for label in self._seen):  # cancelled while they waited
            raise without_end(min(lost, key=slurm.task))

    def end(self) -> End:
        found = sorted(self._seen.values(), key=lambda end: slurm.task(end.label))
        first = next((end for end in found if end.state != "succeeded"), found[0])
        return End(self._label, first.state, first.exit_code)


def _end(row: slurm.Row) -> End:
    if row.state.name == "succeeded":
        return End(row.label, row.state.name, 0)
    try:
        said = slurm.details(str(row.id)).get("ExitCode", "")
    except slurm.Gone:
        said = ""
    return End(row.label, row.state.name, exit_code(said))


def exit_code(said: str) -> int:
    """Of Slurm's CODE:SIGNAL, for a job that did not succeed."""
    code, _, signum = said.partition(":")
    if signum.isdecimal() and int(signum):
        return 128 + int(signum)
    return (int(code) if code.isdecimal() else 0) or 1


def of_user(label: str, user: str) -> None:
    """Raises Problem unless it is this user's job."""
    if (owner := slurm.row(label).user) != user:
        raise Problem(f"is {owner}'s, not {user}'s")


def cancel(options: Namespace) -> int:
    return _each(options.jobs, options.user, options.json, ("scancel", "--quiet"), "cancelled")


def hold(jobs: Sequence[str], user: str | None = None, json: bool = False) -> int:
    return _each(jobs, user, json, ("scontrol", "hold"), "held")


def release(jobs: Sequence[str], user: str | None = None, json: bool = False) -> int:
    return _each(jobs, user, json, ("scontrol", "release"), "released")


def requeue(
    jobs: Sequence[str], user: str | None = None, all: bool = False, json: bool = False
) -> int:
    return _each(jobs, user, json, ("scontrol", "requeue"), "queued again")


def _each(
    jobs: Sequence[str], user: str | None, json: bool, words: Sequence[str], done: str
) -> int:
    results: list[dict[str, Any]] = []
    for label in select(jobs, user):
        try:
            if user:
                of_user(label, user)
            _refuse(done, slurm.all_of(label))
            slurm.ask(*words, label)
            results.append({"label": label, "ok": True, "message": done})
        except Unreachable as error:
            if not results and not isinstance(error, Unknown):
                raise
            # What was done before, and to which job it is not known, has to be told.
            results.append(_failure(label, f"{error.message}: {error.hint}"))
            _tell(results, json)
            return error.exit_code
        except slurm.Gone:
            results.append(_failure(label, f"Slurm does not know it: {slurm.FORGETS}"))
        except CarmaError as error:
            results.append(_failure(label, error.message))
    if not results:
        raise Problem("no job is selected", "see `carma queue --me`")
    _tell(results, json)
    return 0 if all(result["ok"] for result in results) else 1


def _failure(label: str, message: str) -> dict[str, Any]:
    return {"label": label, "ok": False, "message": message}


def _tell(results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.print_json({"schema": 1, "results": results})
        return
    import sys

    for name, ok, message in outcomes(results):
        print(f"job {name}: {message}", file=sys.stdout if ok else sys.stderr)


def _refuse(done: str, tasks: Sequence[slurm.Row]) -> None:
    """What Slurm's commands do without a word, though it has no effect. Raises Problem."""
    if done == "cancelled" and all(row.state.ended for row in tasks):
        raise Problem("has ended already")
    if done == "held" and all(row.state.name == "running" for row in tasks):
        raise Problem("runs already")


def wait(options: Namespace) -> int:
    ended = []
    for end in ends([*select(options.jobs)]):
        ended.append(end)
        if not options.json:
            print(f"job {end.label}: {end.state.replace('_', ' ')}", flush=True)
        if options.any:
            break
    if options.json:
        output.print_json({"schema": 1, "jobs": [end._asdict() for end in ended]})
    return next((end.exit_code for end in ended if end.exit_code), 0)
