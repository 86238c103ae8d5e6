"""What a message says: one for all that a user is to be told at the moment; and whether the queue
is stuck, which administrators are told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from carmad.core.scene import Scene
from carmad.core.sharing import label
from carmad.core.types import ENDED, Job, JobId, JobState
from carmad.readable import clean
from carmad.store.values import Notice

MOST_LINES = 50
MOST_LINE = 300  # characters
REMEMBERED = 4096  # arrays


@dataclass(frozen=True, slots=True)
class Letter:
    title: str
    body: str


class ToldOnce:
    """Of what its owner has been told about an array. In memory: after a restart, the next task
    tells it again."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[JobId, str], None] = OrderedDict()

    def first(self, array: JobId, what: str) -> bool:
        if (array, what) in self._told:
            return False
        self._told[array, what] = None
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return True


def lines(
    notices: Iterable[Notice],
    jobs: Mapping[JobId, Job],
    tasks: Callable[[JobId], Mapping[JobState, int]],
    once: ToldOnce,
) -> list[str]:
    """What to tell: of an array, its end once all its tasks have ended, and otherwise the first
    task to start, fail, …. `tasks`: how many of an array's are in each state."""
    found: dict[str, None] = {}
    for notice in notices:
        job = jobs.get(notice.job)
        if job is None:
            continue
        array = job.spec.array
        if array is None:
            found[f"job {job.id} {job.spec.name}: {notice.words}"] = None
        elif notice.what == "end":
            counts = tasks(array.array)
            if counts.keys() <= ENDED:
                found[f"array {array.array} {job.spec.name}: {_counts(counts)}"] = None
        elif once.first(array.array, notice.what):
            first = f"job {label(job)} {job.spec.name}: {notice.words} (its array's first)"
            found[first] = None
    return list(found)


def _counts(counts: Mapping[JobState, int]) -> str:
    said = (f"{number} {state.value.replace('_', ' ')}" for state, number in sorted(counts.items()))
    return f"all {sum(counts.values())} tasks have ended: {', '.join(said)}"


def letter(said: Sequence[str], where: str) -> Letter:
    """`where`: this machine. What jobs are called and print is untrusted: no line of it becomes
    two, and none is long."""
    short = [clean(line)[:MOST_LINE] for line in said]
    title = f"[carma {where}] {short[0] if len(short) == 1 else f'{len(short)} events'}"
    if more := len(short) - MOST_LINES:
        short = [*short[:MOST_LINES], f"… and {more} more"] if more > 0 else short
    return Letter(title[:MOST_LINE], "\n".join(short))


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
    said = f"job {head.id} of {head.spec.user}, the first in line, does not start, and"
    return head.id, f"{said} {len(idle)} GPUs are idle: see `carma why {head.id}`"
