"""A trace's result: the only value passed from the job's Python to the estimators.

Types are written as Python 3.8 evaluates them: `loads` reads them.
"""

import functools
import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Optional, Sequence, Tuple, Union, get_args, get_origin, get_type_hints

ANSWER_FD = 3
LONGER = "`carma estimate --within SECONDS` waits longer"
MOST_LETTERS = 1000
MOST_BYTES = 1 << 60
CONTEXT_MIB = 544  # as in carmad.config, which the job's Python may not have; a test compares them
_UNITS = {"M": 1 << 20, "MB": 10**6, "MIB": 1 << 20, "G": 1 << 30, "GB": 10**9, "GIB": 1 << 30}
PHASES = ("evaluation", "saving")  # that most scripts have, besides training
TIME_UP = "the time for it was up"
# What memory is for, at the moment when most is in use; "cached" is what the allocator holds more.
PARTS = ("parameters", "gradients", "optimizer", "activations", "cached", "workspace")


@dataclass(frozen=True)
class Layer:
    """A module that has no children or parameters of its own, in the order of its first call."""

    kind: str  # its class: Conv2d, Linear, GELU
    activations: int  # elements it puts out per sample
    parameters: int
    inner: bool = False  # it has children, which are layers of their own


@dataclass(frozen=True)
class Held:
    """What one module, or one line, has allocated of the activations that are live at the peak."""

    name: str  # of modules that differ only in numbers: encoder.layer.*.attention; or train.py:12
    kind: str  # the modules' class
    count: int  # of these modules
    nbytes: int


@dataclass(frozen=True)
class Remedy:
    """Something that would lower what the allocator reserves."""

    what: str
    saved: int  # bytes
    exact: bool  # as exact as the trace; else an approximation


@dataclass(frozen=True)
class Moment:
    """When most is in use among several successive events."""

    in_use: Tuple[int, ...]  # bytes, by PARTS
    reserved: int
    mark: str  # "step1" if that step ended then


@dataclass(frozen=True)
class Explanation:
    modules: Tuple[Held, ...]  # the largest
    lines: Tuple[Held, ...]
    remedies: Tuple[Remedy, ...]  # the best first
    moments: Tuple[Moment, ...]  # from the first module's call to the end of the trace

    def __post_init__(self) -> None:
        if not self.moments or any(len(one.in_use) != len(PARTS) for one in self.moments):
            raise ValueError("no moments, or of other parts")


@dataclass(frozen=True)
class Rest:
    """What a script does after two steps, as far as it was followed."""

    phases: Dict[str, int]  # the most bytes in use in each: training, evaluation, saving, …
    end: str = ""  # why it was not followed to its end
    crash: str = ""  # completes "your script stops …", if it does so then

    @property
    def missing(self) -> Tuple[str, ...]:
        """The phases that it may have, and that were not reached."""
        return tuple(one for one in PHASES if self.end and one not in self.phases)


@dataclass(frozen=True)
class Report:
    """Memory of one GPU in bytes, without the CUDA context and the libraries."""

    torch: str  # its version
    steps: int  # optimizer steps seen; fewer than 2 when the script ended by itself
    floor: int  # most bytes that were live at once
    reserved: int  # most that the caching allocator held, workspaces included
    most: int  # the same, where its segments lie in the worst way of those that were tried
    parts: Dict[str, int]  # of `reserved`, by PARTS, when most of it was in use
    autotune: int  # what cudnn.benchmark may take above `reserved`, earlier; 0 when it is off
    faketensor: int  # most live bytes by the first backward's end: the paper's FakeTensor reading
    batch: int  # the first dimension of what the model was called with
    layers: Tuple[Layer, ...]
    notes: Tuple[str, ...]  # what was left out or assumed
    seconds: float  # from the tracer's start to its end
    explanation: Optional[Explanation] = None  # of the first two steps, if it was asked for
    rest: Optional[Rest] = None  # None: there was none, or no time for it
    processes: int = 1  # on this GPU: each has a context of its own

    @property
    def safe(self) -> int:
        """Bytes for the allocator that should be free: 4 % and 300 MiB above the expected value, or
        what cudnn.benchmark takes if that is more, since it is done before the peak, or what the
        worst layout takes. Few of the timm runs exceed it; `lab/memory/timm.py` shows how many."""
        margin = max(self.reserved // 25 + (300 << 20), self.autotune)
        return max(self.reserved + margin, self.most)

    def fits(self, memory: str, context_mib: int = CONTEXT_MIB) -> bool:
        """Whether a GPU with so much memory has room for `safe` bytes, and `context_mib` for CUDA
        and its libraries. `memory`: "24GB" is 24·10⁹ bytes, "24G" and "24GiB" are 24·2³⁰. Raises
        ValueError if it is not a size."""
        return self.safe + self.processes * (context_mib << 20) <= _bytes(memory)

    def dumps(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def _bytes(size: str) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", size)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{size!r} is not a size: write 24GB or 24GiB")
    return int(float(found[1]) * unit)


def together(reports: Sequence[Report]) -> Report:
    """Of processes that are on one GPU at the same time: the memory of all; what else it says is of
    the one with most steps."""
    first = max(reports, key=lambda one: (one.steps, one.reserved))
    if len(reports) == 1:
        return first
    sums = ("floor", "reserved", "most", "faketensor")
    total = {name: sum(getattr(one, name) for one in reports) for name in sums}
    rest, others = first.rest, total["floor"] - first.floor
    if rest is not None:
        rest = replace(rest, phases={name: most + others for name, most in rest.phases.items()})
    more = (note for one in reports for note in one.notes if note not in first.notes)
    return replace(
        first,
        **total,
        parts={part: sum(one.parts.get(part, 0) for one in reports) for part in PARTS},
        autotune=max(one.autotune for one in reports),
        notes=(
            f"{len(reports)} processes on one GPU, with a context each",
            *first.notes,
            *(f"another process: {note}" for note in dict.fromkeys(more)),
        ),
        seconds=max(one.seconds for one in reports),
        rest=rest,
        processes=len(reports),
    )


@dataclass(frozen=True)
class No:
    """Why there is no report: what is sent instead."""

    why: str
    late: bool = False  # its time was up
    crash: str = ""  # completes "your script stops …", if that is why, as it would be on a GPU

    def dumps(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class Stop:
    """How a script ended before the tracer stopped it."""

    why: str  # for a refusal
    crash: str = ""  # completes "your script stops …", if it would, had a GPU the same values
    certain: bool = False  # whatever was made up
    provable: bool = False  # by attempts with other answers that stop as well
    asked: Dict[str, bool] = field(default_factory=dict)  # as in `Choices`
    skipped: bool = False  # passes were left out
    progress: int = 0  # operators until then
    assumed: str = ""  # what may have caused it


@dataclass(frozen=True)
class Message:
    """A line that a process of an attempt writes: its answer, or that it is at work."""

    is_first: bool  # it is the process that runs the script
    born: float  # when it put something on a GPU: by the monotonic clock, as `said`
    said: float
    own_s: float  # of a processor
    gpu: str  # as CUDA_VISIBLE_DEVICES names it; "": it has put nothing on a GPU
    trains: bool  # it has an optimizer
    report: Optional[Report] = None
    no: Optional[No] = None
    stop: Optional[Stop] = None

    @property
    def decides(self) -> bool:
        """Whether it is more than a helper, which may fail."""
        return self.is_first or bool(self.gpu)

    @property
    def steps(self) -> int:
        return self.report.steps if self.report else 0

    def dumps(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def loads(text: bytes) -> Union[Report, No]:
    """The report, or why there is none. Raises ValueError for anything else."""
    answer: Union[Report, No] = read(No if text.startswith(b'{"why"') else Report, text)
    return answer


def read(kind: Any, text: bytes) -> Any:
    """Raises ValueError for anything else than a `kind`."""
    try:
        return _read(kind, json.loads(text))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a tracer's report: {error}") from error


_find_hints = functools.lru_cache(maxsize=None)(get_type_hints)


def _read(kind: Any, value: Any) -> Any:
    """What was sent as a `kind`, within limits, as a script may forge it."""
    of, kinds = get_origin(kind), get_args(kind)
    if of is Union:  # Optional
        return None if value is None else _read(kinds[0], value)
    if of is tuple:
        return tuple(_read(kinds[0], one) for one in value)
    if of is dict:
        return {_read(str, name): _read(kinds[1], one) for name, one in value.items()}
    if kind is str:
        return str(value)[:MOST_LETTERS].encode(errors="replace").decode()
    if kind in (int, float, bool):
        if not abs(value) <= MOST_BYTES:
            raise ValueError(f"{value!r:.80} is out of range")
        return kind(value)
    hints = _find_hints(kind)
    return kind(**{name: _read(hints[name], value[name]) for name in value})
