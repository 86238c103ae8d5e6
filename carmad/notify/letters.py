"""What a message says: one for all that a user is to be told at the moment; and whether the queue
is stuck, which administrators are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import ENDED, JobState
from carmad.core.scene import Scene
from carmad.readable import clean
from carmad.store.values import Notice

MOST_LINES = 50
MOST_LINE = 300  # characters
MOST_TITLE = 120
CUT = "…"
ENOUGH = 30  # characters at the end of a title that is cut, to find the rest of it by
MOST_EXPLAINED = 5  # events with more than their line
REMEMBERED = 4096  # arrays


@dataclass(frozen=True, slots=True)
class Letter:
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Item:
    """An event in one line, and further lines that explain it."""

    line: str
    more: tuple[str, ...] = ()


class ToldOnce:
    """Of what its owner has been told about an array. In memory: after a restart, the next task
    tells it again."""

    def __init__(self) -> None:
        self._told: dict[tuple[JobId, str], int] = {}

    def is_first(self, array: JobId, notice: Notice) -> bool:
        """Also if it is told again, as its message was not taken."""
        first = self._told.setdefault((array, notice.what), notice.id)
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        return first == notice.id


def lines(
    notices: Iterable[Notice],
    jobs: Mapping[JobId, Job],
    tasks: Callable[[JobId], Mapping[JobState, int]],
    once: ToldOnce,
    explain: Callable[[Job], Iterable[str]] = lambda job: (),
) -> list[Item]:
    """What to tell: of an array, its end once all its tasks have ended, and otherwise the first
    task to start, fail, …. `tasks`: how many of an array's are in each state; `explain`: what is
    to be known of a job besides."""
    found: dict[str, Item] = {}

    def tell(line: str, job: Job) -> None:
        if line not in found:
            more = explain(job) if len(found) < MOST_EXPLAINED else ()
            found[line] = Item(line, tuple(more))

    for notice in notices:
        job = jobs.get(notice.job)
        if job is None:
            continue
        array = job.spec.array
        if array is None:
            tell(f"job {job.id} {job.spec.name}: {notice.words}", job)
        elif notice.what == "end":
            counts = tasks(array.array)
            if counts.keys() <= ENDED:
                line = f"array {array.array} {job.spec.name}: {_counts(counts)}"
                found[line] = Item(line, (f"more: carma show {array.array}",))
        elif once.is_first(array.array, notice):
            tell(f"job {label(job)} {job.spec.name}: {notice.words} (its array's first)", job)
    return list(found.values())


def _counts(counts: Mapping[JobState, int]) -> str:
    said = (f"{number} {state.value.replace('_', ' ')}" for state, number in sorted(counts.items()))
    return f"all {sum(counts.values())} tasks have ended: {', '.join(said)}"


def letter(said: Sequence[Item], where: str, last: Sequence[str] = ()) -> Letter:
    """`where`: this machine; `last`: lines at the end. What jobs are called and print is untrusted:
    no line of it becomes two, and none is long. The body repeats no title that says all."""
    if len(said) == 1:
        (item,) = said
        title = _cut(f"[carma {where}] {item.line}", MOST_TITLE)
        body = [*item.more, *last]
        is_cut = title.endswith(CUT) and not any(title[-ENOUGH:-1] in line for line in body)
        if is_cut or not body:
            body.insert(0, item.line)
        return Letter(title, _lines(body))
    body = []
    for item in said[:MOST_LINES]:
        body += [item.line, *(f"  {line}" for line in item.more)]
    if more := len(said[MOST_LINES:]):
        body.append(f"and {more} more")
    return Letter(f"[carma {where}] {len(said)} events", _lines([*body, *last]))


def _lines(body: Iterable[str]) -> str:
    return "\n".join(_cut(line, MOST_LINE) for line in body)


def _cut(text: str, most: int) -> str:
    text = clean(text)
    return text if len(text) <= most else text[: most - 1] + CUT


def find_stuck(scene: Scene) -> tuple[JobId, str] | None:
    """The first in line of those that may start, if it waits although as many GPUs as it wants are
    idle; and that in words."""
    head = scene.live.get(scene.head) if scene.head is not None else None
    external_mib = scene.view.settings.monitor.external_mib
    idle = [
        view
        for view in scene.view.gpus
        if view.sample
        and not (view.sample.fault or view.drained or view.residents)
        and view.external_mib <= external_mib
    ]
    if head is None or len(idle) < head.spec.gpus:
        return None
    said = f"job {label(head)} of {head.spec.user}, the first in line, does not start, and"
    return head.id, f"{said} {len(idle)} GPUs are idle: see `carma why {label(head)}`"
