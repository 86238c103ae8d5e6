"""Explains a trace: who holds memory when most is in use, the way there, and what would help.

Remedies are judged by what is live when most is in use, approximately; `expandable_segments` by a
replay, which is as exact as the trace itself. `tests/estimators/tracer/test_tracer_what_if.py`
compares each with a trace of a script that really does it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Iterator, List, Tuple

import torch

from .allocator import Allocator, Options
from .modules import Attribution, pattern
from .recording import Recorder
from .replay import Replay, Replays, figures, options_here
from .report import Explanation, Held, Moment, Remedy, Report

MOST_HELD = 12  # of modules, and of lines
POINTS = 200  # of the picture

Events = List[Tuple[Any, Any]]  # as in Recorder.events
WORTH = 0.02  # of what is reserved: less is not worth telling
_UNCHANGED = re.compile("Norm|Softmax|Loss")  # autocast computes these in float32
_MULTIPLIES = re.compile(r"Linear|Conv|Attention|LSTM|GRU")


class _Filmed(Replay):
    """Keeps the fullest moment of each of POINTS stretches of events, from the first module's call
    on."""

    def __init__(self, recorder: Recorder, chosen: Options, layout: int) -> None:
        super().__init__(recorder.recording, Allocator(chosen, layout=layout))
        self._events, self.layout = recorder.events, layout
        self.peak = 0  # the event at which most is in use
        begin = next((at for at, event in enumerate(self._events) if event[0] == "enter"), 0)
        width = max(1, -(-(len(self._events) - begin) // POINTS))
        self._show(0, begin)
        starts = range(begin, len(self._events), width)
        self.moments = tuple(self._show(start, start + width) for start in starts)

    def _show(self, start: int, end: int) -> Moment:
        self._fullest, self._most_reserved = tuple(self.parts.values()), self.allocator.reserved
        ended = ""
        for at, (what, how) in enumerate(self._events[start:end], start):
            before = self.most_in_use
            self.take(what, how)
            self.peak = at if self.most_in_use > before else self.peak
            ended = how if what == "mark" and how[-1].isdigit() else ended
        return Moment(self._fullest, self._most_reserved, ended)

    def allocate(self, name: Any, nbytes: int, part: str) -> None:
        super().allocate(name, nbytes, part)
        self._most_reserved = max(self._most_reserved, self.allocator.reserved)
        if self.in_use > sum(self._fullest):
            self._fullest = tuple(self.parts.values())


def with_explanation(report: Report, recorder: Recorder, attribution: Attribution) -> Report:
    """The report on what `recorder` saw, with an explanation."""
    chosen, _ = options_here()
    replays = Replays(recorder)
    replays.follow()
    film = _Filmed(recorder, chosen, replays.layout)
    case = _Case(recorder, attribution, chosen, film)
    best = case.remedies(report)
    return replace(report, explanation=Explanation(*case.holders(), best, film.moments))


def _live_activations(recorder: Recorder, peak: int) -> dict[int, int]:
    """The storages, with their bytes, that are live after event `peak`."""
    run = Replay(recorder.recording, Allocator())
    for what, how in recorder.events[: peak + 1]:
        run.take(what, how)
    live = run.live.items()
    return {id: nbytes for id, (nbytes, part) in live if part == "activations"}


class _Case:
    def __init__(
        self, recorder: Recorder, attribution: Attribution, chosen: Options, film: _Filmed
    ) -> None:
        self._recorder, self._chosen, self._film = recorder, chosen, film
        self._events, self._kinds = recorder.events, recorder.kinds
        self._modules, self._origins = attribution.modules, attribution.origins
        # The activations that are live when most is in use.
        self._live = _live_activations(recorder, film.peak)

    def holders(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """By module, where those that differ only in numbers are one (layer.*.attn), and by
        line."""
        modules: Counter[tuple[str, str]] = Counter()  # bytes
        lines: Counter[str] = Counter()
        members: dict[tuple[str, str], set[int]] = defaultdict(set)
        for id, nbytes in self._live.items():
            origin = self._origins.get(id)
            if origin is None:
                continue
            key = ("", "the backward pass" if origin.backward else "outside of modules")
            if origin.module >= 0:
                module = self._modules[origin.module]
                key = (pattern(module.name), module.kind)
                members[key].add(origin.module)
            modules[key] += nbytes
            if origin.line:
                lines[origin.line] += nbytes
        return (
            tuple(Held(*key, len(members[key]), n) for key, n in modules.most_common(MOST_HELD)),
            tuple(Held(line, "", 0, nbytes) for line, nbytes in lines.most_common(MOST_HELD)),
        )

    def remedies(self, report: Report) -> tuple[Remedy, ...]:
        """Those that free at least WORTH, the best first."""
        every = (Remedy(*one, exact="expandable" in one[0]) for one in self._all(report))
        worth = (one for one in every if one.saved >= WORTH * report.reserved)
        return tuple(sorted(worth, key=lambda one: -one.saved))

    def _all(self, report: Report) -> Iterator[tuple[str, int]]:
        """What to do, and the bytes that it saves."""
        if not self._chosen.expandable:
            text = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            moved = replace(self._chosen, expandable=True)
            found = figures(self._recorder.recording, moved, self._film.layout)
            yield text, report.reserved - found.reserved
        if saved := self._by_half_precision(report):
            yield "mixed precision: torch.autocast with bfloat16", saved
        if (batch := report.batch) > 1:
            # Of all but parameters, gradients and optimizer.
            half = (report.parts["activations"] + report.parts["workspace"]) // 2
            yield f"half the batch: {batch // 2} instead of {batch}", half
        kept = (how for what, how in self._events if self._kinds.get(what) == "optimizer")
        if state := sum(how for how in kept if how >= 0):
            saved = report.parts["optimizer"] - state // 4  # its kernels need no temporaries
            yield "an 8-bit optimizer, such as bitsandbytes has", saved
        if checkpointed := max(self._by_checkpoints(), key=lambda one: one[1], default=None):
            yield checkpointed

    def _by_half_precision(self, report: Report) -> int:
        """All activations in float32 take half, but those of normalisations and losses; weights
        that are multiplied with have a copy in half precision from their first use in a forward
        pass to the end of the backward pass. 0 if most are in half precision."""
        nbytes: Counter[Any] = Counter()
        halved = 0
        for id, n in self._live.items():
            if (origin := self._origins.get(id)) is None:
                continue
            nbytes[origin.dtype] += n
            if origin.dtype is torch.float32 and (origin.module >= 0 or origin.backward):
                kind = self._modules[origin.module].kind if origin.module >= 0 else ""
                halved += 0 if _UNCHANGED.search(kind) else n // 2
        if nbytes[torch.float32] <= nbytes[torch.float16] + nbytes[torch.bfloat16]:
            return 0
        leaves = (module for module in self._modules if not module.has_children)
        copies = sum(one.parameters // 2 for one in leaves if _MULTIPLIES.search(one.kind))
        return halved + report.parts["workspace"] // 2 - copies

    def _by_checkpoints(self) -> Iterator[tuple[str, int]]:
        """Of what a module allocates in its forward pass, only its output stays; the rest is
        computed again, of one module at a time."""
        groups: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for index, left in self._calls():
            module = self._modules[index]
            if module.has_children and "." in f".{module.name}":
                groups[pattern(module.name), module.kind][index] = left
        for (name, kind), members in groups.items():
            number = f"{len(members)} × {kind}" if len(members) > 1 else kind
            saved = sum(members.values()) - max(members.values())
            yield f"gradient checkpointing of {name} ({number})", saved

    def _calls(self) -> Iterator[tuple[int, int]]:
        """The last forward pass of each module: which one, and how many bytes it leaves besides its
        output that are live when most is in use."""
        open_: list[tuple[int, int]] = []
        for at, (what, how) in enumerate(self._events):
            if what == "enter":
                open_.append((how, at))
            elif what == "exit":
                index, outputs = how
                while open_:
                    entered, start = open_.pop()
                    if entered == index:
                        left = {id for id, _ in self._events[start:at]} & self._live.keys()
                        yield index, sum(self._live[id] for id in left.difference(outputs))
                        break
