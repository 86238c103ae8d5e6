"""Explains a trace: who holds memory when most is in use, the way there, and what would help."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, Iterable

from .allocator import Allocator, Options
from .attribution import Attribution, pattern
from .recording import Recorder
from .replay import Replay, options_here
from .report import Explanation, Held, Moment, Report
from .what_if import remedies

MOST_HELD = 12  # of modules, and of lines
POINTS = 200  # of the picture
_KINDS = ("parameters", "gradients", "optimizer")


class _Filmed(Replay):
    """Keeps the fullest moment of each of POINTS stretches of events."""

    def __init__(self, recorder: Recorder, chosen: Options) -> None:
        super().__init__(
            recorder.convs,
            recorder.kinds,
            recorder.benchmark,
            Allocator(chosen),
            recorder.memory,
        )
        events = recorder.events
        begin = next((at for at, event in enumerate(events) if event[0] == "enter"), 0)
        width = max(1, -(-(len(events) - begin) // POINTS))
        self.moments: list[Moment] = []
        self.peak = 0  # the event at which most is in use
        self._fullest: tuple[int, ...] = tuple(self.parts.values())
        self._most_reserved, self._mark_as = 0, ""
        for at, (what, how) in enumerate(events):
            if at <= begin or (at - begin) % width == 0:
                self._next()
            before = self.most_in_use
            self.take(what, how)
            self.peak = at if self.most_in_use > before else self.peak
            if what == "mark" and how.startswith("step") and how != "stepped":
                self._mark_as = how
            if at >= begin and ((at - begin) % width == width - 1 or at == len(events) - 1):
                self.moments.append(Moment(self._fullest, self._most_reserved, self._mark_as))

    def allocate(self, name: Any, nbytes: int, part: str) -> None:
        super().allocate(name, nbytes, part)
        self._most_reserved = max(self._most_reserved, self.allocator.reserved)
        if self.in_use > sum(self._fullest):
            self._fullest = tuple(self.parts.values())

    def _next(self) -> None:
        self._fullest = tuple(self.parts.values())
        self._most_reserved, self._mark_as = self.allocator.reserved, ""


def explained(report: Report, recorder: Recorder, attribution: Attribution) -> Report:
    """The report on what `recorder` saw, with an explanation."""
    chosen, _ = options_here()
    film = _Filmed(recorder, chosen)
    modules, lines = _held(recorder, attribution, film.peak)
    help = remedies(recorder, attribution, chosen, report)
    return replace(report, explanation=Explanation(modules, lines, help, tuple(film.moments)))


def _held(
    recorder: Recorder, attribution: Attribution, peak: int
) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """The activations that are live after event `peak`: by module, where those that differ only in
    numbers are one (layer.*.attn), and by line."""
    live: dict[int, int] = {}
    in_step = False
    taken: set[int] = set()  # by the optimizer's step
    for what, how in recorder.events[: peak + 1]:
        if what == "mark":
            in_step = how == "optimizer" or (in_step and how != "stepped")
        elif isinstance(what, int) and how >= 0:
            live[what] = how
            taken.update([what] if in_step else [])
        elif isinstance(what, int):
            live.pop(what, None)
    modules: dict[tuple[str, str], list[int]] = defaultdict(list)
    members: dict[tuple[str, str], set[int]] = defaultdict(set)
    lines: dict[str, list[int]] = defaultdict(list)
    for id, nbytes in live.items():
        origin = attribution.origins.get(id)
        if recorder.kinds.get(id) in _KINDS or id in taken or origin is None:
            continue
        key = ("", "the backward pass" if origin.backward else "outside of modules")
        if origin.module >= 0:
            module = attribution.modules[origin.module]
            key = (pattern(module.name), module.kind)
            members[key].add(origin.module)
        modules[key].append(nbytes)
        if origin.line:
            lines[origin.line].append(nbytes)
    by_module = (
        Held(name, kind, len(members[name, kind]), sum(sizes))
        for (name, kind), sizes in modules.items()
    )
    by_line = (Held(line, "", 0, sum(sizes)) for line, sizes in lines.items())
    return _largest(by_module), _largest(by_line)


def _largest(found: Iterable[Held]) -> tuple[Held, ...]:
    return tuple(sorted(found, key=lambda one: -one.nbytes)[:MOST_HELD])
