"""Jobs of a cluster: which ones words select, waiting for their end, their exit codes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cli import output
from cli.client import SLURM
from cli.cluster import accounts, slurm
from cli.problems import Problem, Unreachable, Usage

LOOK_S = 1.0  # the first look for the end; each asks Slurm's controller
LOOK_MOST_S = 15.0
_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})")
_JOB = re.compile(r"\d{1,9}(_\d{1,9})?")
MOST = 10_000


def resolve(word: str) -> str:
    """The number of a job; for `last`, of your last one: of an array, that of all tasks. Raises
    Usage."""
    if word == "last":
        mine = [row.number for row in slurm.rows("--me", "--states=all")]
        latest = max(mine, default=None) or accounts.last()
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
    """Each job's end, in the order of the ends; an array's is that of its last task. A controller
    that goes away is waited for, from the beginning if the jobs are `known` to exist."""
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
            for row, more in accounts.end_records(self._label):
                code = 0 if row.state.name == "succeeded" else exit_code(more["ExitCode"])
                self._seen.setdefault(row.label, End(row.label, row.state.name, code))
        except (slurm.Gone, Unreachable):
            if lost or not self._seen:
                raise
        lost -= self._seen.keys()
        if lost and not any("[" in label for label in self._seen):  # cancelled while they waited
            raise accounts.without_end(min(lost, key=slurm.task))

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
