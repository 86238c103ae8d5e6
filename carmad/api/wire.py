"""How times, states and names of jobs are written in requests and answers.

Jobs are named `42`, `42_3`, `42_[1-3,7]`, `1,3,5-8`, `last`, `all`; or `42_[1-3%2]`, as a folded
listing has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from types import UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import to_json
from typing_extensions import is_typeddict

from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import ids_of, overlap, part
from carmad.core.placing.decision import Reason
from carmad.errors import CarmaError
from carmad.options import COMMA
from carmad.states import CODES, HELD, NEW, RETRIED, named_by

T = TypeVar("T")
Way = Callable[[Any], Any]
Fields = Sequence[tuple[str, Way]]

SCHEMA = 1  # raised when a field changes its meaning or goes away

MAX_IDS = 10_000
MAX_SPANS = 256  # each is looked at for every job there is
HINT = "Jobs are named like 42, 1,3,5-8, 42_3, 42_[1-3], last or all."
MOST_NAMED = 8  # words that are no ids

_ITEM = re.compile(
    r"(?P<low>\d{1,15})(?:-(?P<high>\d{1,15})|_(?P<index>\d{1,7})|_\[(?P<indices>[\d,-]+)(?:%\d+)?\])?",
    re.ASCII,
)
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


def as_json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")  # a rank may be infinite, JSON's numbers may not


def pick(shape: type[T], value: object, **others: object) -> T:
    """An answer of this shape, in the shape's order: `others`, and for the rest what `fields` finds
    in `value`."""
    ways = _fields(cast(type, shape))
    return cast(T, {name: others[name] if name in others else of(value) for name, of in ways})


def fields(shape: type, get: Callable[[str], Way] = attrgetter) -> Fields:
    """How each field of an answer is found in a value: by the function that its type is annotated
    with, or else as the attribute of its name (`get`), written as its type says."""
    found = []
    for name, hint in get_type_hints(shape, include_extras=True).items():
        its = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
        said = next(filter(callable, getattr(its, "__metadata__", ())), None)
        found.append((name, _way(said or get(name), _writing(its, name.endswith("_at")))))
    return found


_fields = cache(fields)


@dataclass(frozen=True, slots=True)
class Digits:
    """Annotates a field's type: how many digits are written after the point."""

    count: int


def _way(get: Way, write: Way | None) -> Way:
    if write is None:
        return get
    return lambda value: None if (found := get(value)) is None else write(found)


def _writing(hint: Any, is_time: bool) -> Way | None:
    """How a value is written as one of this type, if it is not None; None: as it is."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        digits = next((each.count for each in args if isinstance(each, Digits)), None)
        return _writing(args[0], is_time) if digits is None else partial(round, ndigits=digits)
    if origin in (Union, UnionType):
        return _writing(args[0], is_time)
    if origin is list:
        write = _writing(args[0], is_time)
        return (lambda values: [write(each) for each in values]) if write else None
    if is_typeddict(hint):
        return partial(pick, hint)
    return stamp if is_time and hint is str else dict if origin is dict else None


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def iso(at: float | None) -> str | None:
    return None if at is None else stamp(at)


def unix(text: object) -> float:
    """Raises ValueError for what has no zone, or is too far away to be written in another one."""
    with suppress(ValueError):
        found = datetime.fromisoformat(text) if isinstance(text, str) else datetime.min
        if found.tzinfo is not None and 1970 <= found.year <= 9000:
            return found.timestamp()
    raise ValueError("a time has a zone, and looks like 2026-11-20T23:12:00Z")


Time = Annotated[
    float, BeforeValidator(unix), WithJsonSchema({"type": "string", "format": "date-time"})
]


def with_labels(reason: Reason, live: Mapping[JobId, Job]) -> Reason:
    """With the jobs in it named by their labels: people take a bare id for a whole array."""

    def name(found: re.Match[str]) -> str:
        job = live.get(JobId(int(found[1])))
        return f"job {label(job)}" if job else found[0]

    return replace(reason, detail=re.sub(r"\bjob (\d+)\b", name, reason.detail))


def state_code(job: Job) -> str:
    if job.state in NEW:
        if job.held:
            return HELD
        if job.retry is not None:
            return RETRIED
    return CODES[job.state]


def parse_states(text: str | None) -> frozenset[JobState] | None:
    """Parse `running,queued`, or the codes in listings: `R,PD`."""
    if not text:
        return None
    found = {word: named_by(word) for word in text.lower().split(",")}
    if unknown := [word for word, states in found.items() if not states]:
        hint = f"Job states: {', '.join(CODES)}."
        raise CarmaError(f"{unknown[0]!r:.80} is not a job state", hint)
    return frozenset(map(JobState, chain.from_iterable(found.values())))


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids as ranges, never spelt out: `1-999999` costs nothing."""

    last: bool = False
    all: bool = False
    ids: frozenset[JobId] = frozenset()  # named one by one: a missing one is worth a word
    ranges: tuple[range, ...] = ()
    tasks: tuple[tuple[JobId, range], ...] = ()  # (array, indices)

    def has_array_of(self, job: Job) -> bool:
        """Whether the job is a task of an array that is named as a whole."""
        if job.spec.array is None:
            return False
        id = job.spec.array.array
        return id in self.ids or any(id in ids for ids in self.ranges)

    def parts(self, job: Job) -> Iterator[Job]:
        """What is named of the job, which may stand for several tasks of an array."""
        array = job.spec.array
        if self.has_array_of(job):
            yield job
            return
        within = [each for id in self.ids if (each := overlap(range(id, id + 1), job.ids))]
        within += [each for ids in self.ranges if (each := overlap(ids, job.ids))]
        if array is not None:
            named = [range_ for id, range_ in self.tasks if id == array.array]
            within += [each for range_ in named if (each := ids_of(job, range_))]
        end = job.id
        for ids in sorted(within, key=lambda ids: ids.start):
            if ids.stop > end:
                yield part(job, range(max(end, ids.start), ids.stop))
                end = JobId(ids.stop)


def parse_selection(text: str) -> Selection:
    last = everything = False
    ids: list[JobId] = []
    ranges: list[range] = []
    tasks: list[tuple[JobId, range]] = []
    wrong: list[str] = []
    for item in re.split(COMMA, text.replace(" ", "")):
        found = _ITEM.fullmatch(item)
        if item in ("last", "all"):
            last, everything = last or item == "last", everything or item == "all"
        elif found is None:
            wrong.append(f"{item!r:.40}")
        elif found["high"]:
            ranges.append(_span(int(found["low"]), int(found["high"]), item))
        elif found["index"]:
            index = int(found["index"])
            tasks.append((JobId(int(found["low"])), range(index, index + 1)))
        elif found["indices"]:
            array = JobId(int(found["low"]))
            tasks.extend((array, indices) for indices in _indices(found["indices"], item))
        else:
            ids.append(JobId(int(found["low"])))
    if wrong:
        what = "are not job IDs" if len(wrong) > 1 else "is not a job ID"
        raise CarmaError(f"{', '.join(wrong[:MOST_NAMED])} {what}", HINT)
    if len(ids) > MAX_IDS or len(ranges) + len(tasks) > MAX_SPANS:
        raise CarmaError("The selection is too long", f"Select at most {MAX_SPANS} ranges.")
    return Selection(last, everything, frozenset(ids), tuple(ranges), tuple(tasks))


def _indices(text: str, item: str) -> list[range]:
    spans = []
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise CarmaError(f"{item!r:.80} names no tasks", HINT)
        spans.append(_span(int(found[1]), int(found[2] or found[1]), item))
    return spans


def _span(low: int, high: int, item: str) -> range:
    if high < low:
        raise CarmaError(f"{item!r:.80} runs backwards", HINT)
    return range(low, high + 1)
