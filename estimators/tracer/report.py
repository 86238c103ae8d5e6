"""A trace's result: the only value passed from the job's Python to the estimators."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Sequence

LONGER = "`carma estimate --within SECONDS` waits longer"
MOST_HOLDERS, MOST_MOMENTS = 64, 1024
MOST_LETTERS = 300
MOST_BYTES = 1 << 60
CONTEXT_MIB = 544  # as in carmad.config, which the job's Python may not have; a test compares them
_UNITS = {"M": 1 << 20, "MB": 10**6, "MIB": 1 << 20, "G": 1 << 30, "GB": 10**9, "GIB": 1 << 30}
PHASES = ("evaluation", "saving")  # that most scripts have, besides training
MOST_PHASES = 8
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

    in_use: tuple[int, ...]  # bytes, by PARTS
    reserved: int
    mark: str  # "step1" if that step ended then


@dataclass(frozen=True)
class Explanation:
    modules: tuple[Held, ...]  # the largest
    lines: tuple[Held, ...]
    remedies: tuple[Remedy, ...]  # the best first
    moments: tuple[Moment, ...]  # from the first module's call to the end of the trace

    @classmethod
    def of(cls, fields: Any) -> Explanation | None:
        """What the tracer has sent, within limits, as a script may forge it. None if it is no
        explanation."""
        try:
            moments = tuple(map(_moment, fields["moments"][:MOST_MOMENTS]))
            if not moments:
                return None
            return cls(
                modules=tuple(map(_holder, fields["modules"][:MOST_HOLDERS])),
                lines=tuple(map(_holder, fields["lines"][:MOST_HOLDERS])),
                remedies=tuple(
                    Remedy(_text(one["what"]), _number(one["saved"]), bool(one["exact"]))
                    for one in fields["remedies"][:MOST_HOLDERS]
                ),
                moments=moments,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


def _holder(one: Any) -> Held:
    name, kind = _text(one["name"]), _text(one["kind"])
    return Held(name, kind, _number(one["count"]), _number(one["nbytes"]))


def _moment(one: Any) -> Moment:
    in_use = tuple(map(_number, one["in_use"]))
    if len(in_use) != len(PARTS):
        raise ValueError(f"{len(in_use)} parts")
    return Moment(in_use, _number(one["reserved"]), _text(one["mark"]))


def _text(said: object) -> str:
    return str(said)[:MOST_LETTERS].encode(errors="replace").decode()


def _number(said: Any) -> int:
    """Raises TypeError, ValueError or OverflowError."""
    if not 0 <= said <= MOST_BYTES:
        raise ValueError(f"{said!r:.80} is out of range")
    return int(said)


@dataclass(frozen=True)
class Rest:
    """What a script does after two steps, as far as it was followed."""

    phases: dict[str, int]  # the most bytes in use in each: training, evaluation, saving, …
    end: str = ""  # why it was not followed to its end
    crash: str = ""  # completes "your script stops …", if it does so then

    @property
    def missing(self) -> tuple[str, ...]:
        """The phases that it may have, and that were not reached."""
        return tuple(one for one in PHASES if self.end and one not in self.phases)

    @classmethod
    def of(cls, fields: Any) -> Rest | None:
        """What the tracer has sent, within limits. None if it is none."""
        try:
            phases = list(fields["phases"].items())[:MOST_PHASES]
            return cls(
                {_text(name): _number(most) for name, most in phases},
                _text(fields["end"]),
                _text(fields["crash"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclass(frozen=True)
class Report:
    """Memory of one GPU in bytes, without the CUDA context and the libraries."""

    torch: str  # its version
    steps: int  # optimizer steps seen; fewer than 2 when the script ended by itself
    floor: int  # most bytes that were live at once
    reserved: int  # most that the caching allocator held, workspaces included
    most: int  # the same, where its segments lie in the worst way of those that were tried
    parts: dict[str, int]  # of `reserved`, by PARTS, when most of it was in use
    autotune: int  # what cudnn.benchmark may take above `reserved`, earlier; 0 when it is off
    faketensor: int  # most live bytes by the first backward's end: the paper's FakeTensor reading
    batch: int  # the first dimension of what the model was called with
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]  # what was left out or assumed
    seconds: float  # from the tracer's start to its end
    explanation: Explanation | None = None  # of the first two steps, if it was asked for
    rest: Rest | None = None  # None: there was none, or no time for it
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
    rest, others = first.rest, sum(one.floor for one in reports) - first.floor
    if rest is not None:
        rest = replace(rest, phases={name: most + others for name, most in rest.phases.items()})
    return replace(
        first,
        floor=first.floor + others,
        reserved=sum(one.reserved for one in reports),
        most=sum(one.most for one in reports),
        parts={part: sum(one.parts.get(part, 0) for one in reports) for part in PARTS},
        autotune=max(one.autotune for one in reports),
        faketensor=sum(one.faketensor for one in reports),
        notes=(
            f"{len(reports)} processes on one GPU, with a context each",
            *first.notes,
            *dict.fromkeys(
                f"another process: {note}"
                for one in reports
                for note in one.notes
                if note not in first.notes
            ),
        ),
        seconds=max(one.seconds for one in reports),
        rest=rest,
        processes=len(reports),
    )


@dataclass(frozen=True)
class No:
    """Why there is no report."""

    why: str
    late: bool = False  # its time was up
    crash: str = ""  # completes "your script stops …", if that is why, as it would be on a GPU


def refusal(why: str, *, late: bool = False, crash: str = "") -> bytes:
    """What is sent instead of a report."""
    return json.dumps({"refused": why, "late": late, "crash": crash}).encode()


def loads(text: bytes) -> Report | No:
    """The report, or why there is none. Raises ValueError for anything else."""
    try:
        fields: dict[str, Any] = json.loads(text)
        if "refused" in fields:
            crash = str(fields.get("crash", ""))
            return No(str(fields["refused"]), bool(fields.get("late")), crash)
        fields["layers"] = tuple(Layer(**layer) for layer in fields["layers"])
        fields["notes"] = tuple(fields["notes"])
        fields["explanation"] = Explanation.of(fields.get("explanation"))
        fields["rest"] = Rest.of(fields.get("rest"))
        return Report(**fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a tracer's report: {error}") from error
