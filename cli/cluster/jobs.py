"""Jobs of a cluster: which ones words select, waiting for their end, their exit codes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cli import output
from cli.cluster import slurm
from cli.jobs import SLURM
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
        mine = slurm.rows("--me", "--states=all")
        if not mine:
            raise Usage("Slurm knows no job of yours", "name a job by its number")
        return str(max(row.number for row in mine))
    if word.startswith(SLURM):
        number = word.removeprefix(SLURM)
        raise Usage(f"{word} is for a node, where a carmad runs", f"here, the job is {number}")
    if not _JOB.fullmatch(word):
        raise Usage(f"{word!r} is not a job", "give its number: 42, 42_3 or last")
    return word


def selected(words: Sequence[str], user: str | None = None) -> Iterator[str]:
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
    while others still run: what was seen stays."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._seen: dict[str, End] = {}

    def over(self) -> bool:
        try:
            found = slurm.all_of(self._label, "--array")
        except slurm.Gone:
            if self._seen:
                return True
            raise
        for row in found:
            if not row.state.ended:
                self._seen.pop(row.label, None)  # it was requeued
            elif row.label not in self._seen:
                self._seen[row.label] = _end(row)
        return all(row.state.ended for row in found)

    def end(self) -> End:
        found = sorted(self._seen.values(), key=lambda end: int(end.label.partition("_")[2] or 0))
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
