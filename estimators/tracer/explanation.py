"""Explains a trace: who holds memory when most is in use, the way there, and what would help.

For most remedies, the recording is changed and replayed. `expandable_segments` is as exact as the
trace itself, because nothing else changes. The others are approximations; each says what it leaves
out. `tests/estimators/tracer/test_tracer_what_if.py` compares each with a trace of a
script that really does it.
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
GROUPS = 3  # of modules, whose checkpointing is tried
_UNCHANGED = re.compile("Norm|Softmax|Loss")  # autocast computes these in float32
_MULTIPLIES = re.compile(r"Linear|Conv|Attention|LSTM|GRU")


class _Filmed(Replay):
    """Keeps the fullest moment of each of POINTS stretches of events, from the first module's call
    on."""

    def __init__(self, recorder: Recorder, chosen: Options, layout: int) -> None:
        super().__init__(recorder.recording, Allocator(chosen, layout=layout))
        self._events = recorder.events
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
    case = _Case(recorder, attribution, chosen, replays.layout)
    best = case.remedies(report)
    return replace(report, explanation=Explanation(*case.holders(film.peak), best, film.moments))


def _left(events: Events) -> dict[int, int]:
    """The storages, with their bytes, that these events leave."""
    left: dict[int, int] = {}
    for what, how in events:
        if isinstance(what, int):
            left.pop(what, None)
            if how >= 0:
                left[what] = how
    return left


def _parts(recorder: Recorder) -> dict[int, str]:
    """What each storage is for: those that only an optimizer's step needs are its own."""
    parts: dict[int, str] = {}
    others = "activations"
    for what, how in recorder.events:
        if what == "mark" and how in ("optimizer", "stepped"):
            others = "optimizer" if how == "optimizer" else "activations"
        elif isinstance(what, int) and how >= 0:
            parts[what] = recorder.kinds.get(what, others)
    return parts


class _Case:
    def __init__(
        self, recorder: Recorder, attribution: Attribution, chosen: Options, layout: int
    ) -> None:
        self._recording, self._chosen, self._layout = recorder.recording, chosen, layout
        self._events, self._kinds = recorder.events, recorder.kinds
        self._modules, self._origins = attribution.modules, attribution.origins
        self._parts = _parts(recorder)

    def holders(self, peak: int) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """The activations that are live after event `peak`: by module, where those that differ only
        in numbers are one (layer.*.attn), and by line."""
        modules: Counter[tuple[str, str]] = Counter()  # bytes
        lines: Counter[str] = Counter()
        members: dict[tuple[str, str], set[int]] = defaultdict(set)
        for id, nbytes in _left(self._events[: peak + 1]).items():
            origin = self._origins.get(id)
            if self._parts[id] != "activations" or origin is None:
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
        every = (
            Remedy(what, report.reserved - reserved, exact="expandable" in what)
            for what, reserved in self._all(report)
        )
        worth = (one for one in every if one.saved >= WORTH * report.reserved)
        return tuple(sorted(worth, key=lambda one: -one.saved))

    def _all(self, report: Report) -> Iterator[tuple[str, int]]:
        """What to do, and the bytes reserved then."""
        if not self._chosen.expandable:
            text = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            yield text, self._bytes_reserved(replace(self._chosen, expandable=True))
        if self._is_float32():
            yield "mixed precision: torch.autocast with bfloat16", self._in_half()
        if (batch := report.batch) > 1:
            # Of all but parameters, gradients and optimizer.
            half = (report.parts["activations"] + report.parts["workspace"]) // 2
            yield f"half the batch: {batch // 2} instead of {batch}", report.reserved - half
        kept = (how for what, how in self._events if self._kinds.get(what) == "optimizer")
        if state := sum(how for how in kept if how >= 0):
            saved = report.parts["optimizer"] - state // 4  # its kernels need no temporaries
            yield "an 8-bit optimizer, such as bitsandbytes has", report.reserved - saved
        if checkpointed := min(self._with_checkpoints(), key=lambda one: one[1], default=None):
            yield checkpointed

    def _bytes_reserved(self, chosen: Options | None = None, **changed: Any) -> int:
        recording = self._recording._replace(**changed)
        return figures(recording, chosen or self._chosen, self._layout).reserved

    # -- mixed precision

    def _is_float32(self) -> bool:
        """Whether most of what modules put out is in float32 so far."""
        nbytes: Counter[Any] = Counter()
        for what, how in self._events:
            if isinstance(what, int) and how > 0 and what not in self._kinds:
                nbytes[self._origins[what].dtype if what in self._origins else None] += how
        return nbytes[torch.float32] > nbytes[torch.float16] + nbytes[torch.bfloat16]

    def _in_half(self) -> int:
        """All activations in float32 take half, but those of normalisations and losses; weights
        that are multiplied with have a copy in half precision from their first use in a forward
        pass to the end of the backward pass. Left out: casts that live for an instant."""

        def size(id: int, nbytes: int) -> int:
            origin = self._origins.get(id)
            if origin is None or id in self._kinds or origin.dtype is not torch.float32:
                return nbytes
            if origin.module < 0:
                return nbytes // 2 if origin.backward else nbytes
            return nbytes if _UNCHANGED.search(self._modules[origin.module].kind) else nbytes // 2

        events: Events = []
        cast: set[int] = set()
        for what, how in self._events:
            is_new = isinstance(what, int) and how >= 0
            events.append((what, size(what, how) if is_new else how))
            if what == "enter" and how not in cast:
                module = self._modules[how]
                if _MULTIPLIES.search(module.kind) and not module.has_children:
                    cast.add(how)
                    events.append((-1 - how, module.parameters // 2))
            elif what == "mark" and how == "backward":
                events += [(-1 - one, -1) for one in cast]
                cast.clear()
        convs = [conv._replace(itemsize=min(2, conv.itemsize)) for conv in self._recording.convs]
        return self._bytes_reserved(events=events, convs=convs)

    # -- gradient checkpointing

    def _with_checkpoints(self) -> Iterator[tuple[str, int]]:
        """Of what a module allocates in its forward pass, only its output stays; the rest is
        computed again, in one go, just before the first of it is freed in the backward pass. Left
        out: what only lives while it is computed."""
        groups: dict[tuple[str, str], set[int]] = defaultdict(set)
        for index, module in enumerate(self._modules):
            if module.has_children and "." in f".{module.name}":
                groups[pattern(module.name), module.kind].add(index)
        held: Counter[tuple[str, str]] = Counter()
        for _, _, index, left in self._calls():
            module = self._modules[index]
            held[pattern(module.name), module.kind] += sum(left.values())
        ranked = sorted(groups, key=lambda key: -held[key])
        for name, kind in [key for key in ranked if "*" in key[0]][:GROUPS] or ranked[:1]:
            members = groups[name, kind]
            number = f"{len(members)} × {kind}" if len(members) > 1 else kind
            text = f"gradient checkpointing of {name} ({number})"
            yield text, self._bytes_reserved(events=self._recompute(members))

    def _calls(self) -> Iterator[tuple[int, int, int, dict[int, int]]]:
        """The forward passes of modules: first and last event, module, and the storages, with their
        bytes, that it leaves besides its output."""
        open_: list[tuple[int, int]] = []
        for at, (what, how) in enumerate(self._events):
            if what == "enter":
                open_.append((how, at))
            elif what == "exit":
                index, outputs = how
                while open_:
                    entered, start = open_.pop()
                    if entered == index:
                        left = _left(self._events[start:at])
                        kept = {*outputs, *self._kinds}
                        yield start, at, index, {i: n for i, n in left.items() if i not in kept}
                        break

    def _recompute(self, members: set[int]) -> Events:
        """The events if these modules are checkpointed."""
        freed = {what: at for at, (what, how) in enumerate(self._events) if how == -1}
        turns = [at for at, event in enumerate(self._events) if event == ("mark", "forward")]
        insert: dict[int, Events] = defaultdict(list)  # before the event with this number
        for start, end, index, left in self._calls():
            turn = next((at for at in turns if at > end), len(self._events))
            again = {id: nbytes for id, nbytes in left.items() if freed.get(id, 0) > turn}
            if index in members and again:
                insert[end] += [(id, -1) for id in again]
                insert[min(freed[id] for id in again)] += [
                    (what, how)
                    for what, how in self._events[start:end]
                    if what == "conv" or (what in again and how >= 0)
                ]
        events: Events = []
        for at, event in enumerate(self._events):
            events += insert.get(at, ())
            events.append(event)
        return events
