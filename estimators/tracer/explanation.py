"""Explains a trace: who holds memory when most is in use, the way there, and what would help.

For the remedies, the recording is changed and replayed. `expandable_segments` is as exact as the
trace itself, because nothing else changes. The others are approximations; each function says what
it leaves out. `tests/estimators/tracer/test_tracer_what_if.py` compares each with a trace of a
script that really does it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Callable, Iterator, List, Tuple

import torch

from .allocator import Allocator, Options
from .convolution import Conv
from .modules import Attribution, pattern
from .recording import Recorder
from .replay import Replay, Replays, figures, options_here
from .report import Explanation, Held, Moment, Remedy, Report

MOST_HELD = 12  # of modules, and of lines
POINTS = 200  # of the picture
_KINDS = ("parameters", "gradients", "optimizer")

Events = List[Tuple[Any, Any]]  # as in Recorder.events
WORTH = 0.02  # of what is reserved: less is not worth telling
QUANTISED = 4 * 4096  # bytes of a state in float32 from which bitsandbytes quantises it
BLOCK = 256  # values that share a scale there
GROUPS = 3  # of modules, whose checkpointing is tried
_UNCHANGED = re.compile("Norm|Softmax|Loss")  # autocast computes these in float32
_MULTIPLIES = re.compile(r"Linear|Conv|Attention|LSTM|GRU")


class _Filmed(Replay):
    """Keeps the fullest moment of each of POINTS stretches of events."""

    def __init__(self, recorder: Recorder, chosen: Options, layout: int) -> None:
        super().__init__(
            recorder.convs,
            recorder.kinds,
            recorder.benchmark,
            Allocator(chosen, layout=layout),
            recorder.memory,
        )
        events = recorder.events
        begin = next((at for at, event in enumerate(events) if event[0] == "enter"), 0)
        width = max(1, -(-(len(events) - begin) // POINTS))
        self.moments: list[Moment] = []
        self.peak = 0  # the event at which most is in use
        for at, event in enumerate(events):
            if at <= begin or (at - begin) % width == 0:
                self._fullest = tuple(self.parts.values())
                self._most_reserved, mark = self.allocator.reserved, ""
            before = self.most_in_use
            self.take(*event)
            self.peak = at if self.most_in_use > before else self.peak
            mark = event[1] if event[0] == "mark" and event[1][-1].isdigit() else mark
            if at >= begin and ((at - begin) % width == width - 1 or at == len(events) - 1):
                self.moments.append(Moment(self._fullest, self._most_reserved, mark))

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
    modules, lines = _holders(recorder, attribution, film.peak)
    best = _Case(recorder, attribution, chosen, replays.layout).remedies(report)
    return replace(report, explanation=Explanation(modules, lines, best, tuple(film.moments)))


def _holders(
    recorder: Recorder, attribution: Attribution, peak: int
) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """The activations that are live after event `peak`: by module, where those that differ only in
    numbers are one (layer.*.attn), and by line."""
    live = _left(recorder.events[: peak + 1])
    taken = _of_steps(recorder.events)
    modules: Counter[tuple[str, str]] = Counter()  # bytes
    lines: Counter[str] = Counter()
    members: dict[tuple[str, str], set[int]] = defaultdict(set)
    for id, nbytes in live.items():
        origin = attribution.origins.get(id)
        if recorder.kinds.get(id) in _KINDS or id in taken or origin is None:
            continue
        key = ("", "the backward pass" if origin.backward else "outside of modules")
        if origin.module >= 0:
            module = attribution.modules[origin.module]
            key = (pattern(module.name), module.kind)
            members[key].add(origin.module)
        modules[key] += nbytes
        if origin.line:
            lines[origin.line] += nbytes
    return (
        tuple(Held(*key, len(members[key]), n) for key, n in modules.most_common(MOST_HELD)),
        tuple(Held(line, "", 0, nbytes) for line, nbytes in lines.most_common(MOST_HELD)),
    )


def _left(events: Events) -> dict[int, int]:
    """The storages, with their bytes, that these events leave."""
    left: dict[int, int] = {}
    for what, how in events:
        if isinstance(what, int):
            left.pop(what, None)
            if how >= 0:
                left[what] = how
    return left


def _of_steps(events: Events) -> set[int]:
    """What is allocated in the optimizer's steps."""
    found: set[int] = set()
    in_step = False
    for what, how in events:
        if what == "mark":
            in_step = how == "optimizer" or (in_step and how != "stepped")
        elif in_step and isinstance(what, int) and how >= 0:
            found.add(what)
    return found


class _Case:
    def __init__(
        self, recorder: Recorder, attribution: Attribution, chosen: Options, layout: int
    ) -> None:
        self._recorder, self._chosen, self._layout = recorder, chosen, layout
        self._events, self._convs, self._kinds = recorder.events, recorder.convs, recorder.kinds
        self._modules, self._origins = attribution.modules, attribution.origins

    def remedies(self, report: Report) -> tuple[Remedy, ...]:
        """Those that free at least WORTH, the best first."""
        every = (
            Remedy(what, report.reserved - reserved, exact)
            for what, exact, reserved in self._all(report.batch)
        )
        worth = (one for one in every if one.saved >= WORTH * report.reserved)
        return tuple(sorted(worth, key=lambda one: -one.saved))

    def _all(self, batch: int) -> Iterator[tuple[str, bool, int]]:
        """What to do, whether its figure is exact, and the bytes reserved then."""
        if not self._chosen.expandable:
            moved = replace(self._chosen, expandable=True)
            text = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            yield text, True, self._bytes_reserved(self._events, chosen=moved)
        if self._is_float32():
            yield "mixed precision: torch.autocast with bfloat16", False, self._in_half()
        if batch > 1:
            yield f"half the batch: {batch // 2} instead of {batch}", False, self._half_batch()
        if "optimizer" in self._kinds.values():
            yield "an 8-bit optimizer, such as bitsandbytes has", False, self._in_8_bits()
        if checkpointed := min(self._with_checkpoints(), key=lambda one: one[1], default=None):
            yield checkpointed[0], False, checkpointed[1]

    def _bytes_reserved(
        self, events: Events, convs: list[Conv] | None = None, chosen: Options | None = None
    ) -> int:
        seen, convs = self._recorder, self._convs if convs is None else convs
        how = chosen or self._chosen, seen.memory, self._layout
        return figures(events, convs, self._kinds, seen.benchmark, *how).reserved

    def _resize(self, size: Callable[[int, int], int]) -> Events:
        return [
            (what, size(what, how)) if isinstance(what, int) and how >= 0 else (what, how)
            for what, how in self._events
        ]

    # -- mixed precision

    def _is_float32(self) -> bool:
        """Whether most of what modules put out is in float32 so far."""
        full = half = 0
        for what, how in self._events:
            if isinstance(what, int) and how > 0 and what not in self._kinds:
                dtype = self._origins[what].dtype if what in self._origins else None
                full += how if dtype is torch.float32 else 0
                half += how if dtype in (torch.float16, torch.bfloat16) else 0
        return full > half

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
        for what, how in self._resize(size):
            events.append((what, how))
            if what == "enter" and how not in cast:
                module = self._modules[how]
                if _MULTIPLIES.search(module.kind) and not module.has_children:
                    cast.add(how)
                    events.append((-1 - how, module.parameters // 2))
            elif what == "mark" and how == "backward":
                events += [(-1 - one, -1) for one in cast]
                cast.clear()
        convs = [conv._replace(itemsize=min(2, conv.itemsize)) for conv in self._convs]
        return self._bytes_reserved(events, convs)

    # -- a smaller batch

    def _half_batch(self) -> int:
        """All but parameters, gradients, optimizer and temporaries of its step take half."""
        in_step = _of_steps(self._events)

        def size(id: int, nbytes: int) -> int:
            fixed = id in self._kinds or id in in_step
            return nbytes if fixed else nbytes // 2

        def halve(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (max(1, shape[0] // 2), *shape[1:])

        convs = [
            conv._replace(input=halve(conv.input), output=halve(conv.output))
            for conv in self._convs
        ]
        return self._bytes_reserved(self._resize(size), convs)

    # -- an 8-bit optimizer

    def _in_8_bits(self) -> int:
        """A byte per value, and a scale in float32 per block; its kernels need no temporaries."""
        in_step = _of_steps(self._events)

        def size(id: int, nbytes: int) -> int:
            if self._kinds.get(id) == "optimizer" and nbytes >= QUANTISED:
                return nbytes // 4 + nbytes // BLOCK
            return 0 if id in in_step and id not in self._kinds else nbytes

        return self._bytes_reserved(self._resize(size))

    # -- gradient checkpointing

    def _with_checkpoints(self) -> Iterator[tuple[str, int]]:
        """Of what a module allocates in its forward pass, only its output stays; the rest is
        computed again, in one go, just before the first of it is freed in the backward pass."""
        groups: dict[tuple[str, str], set[int]] = defaultdict(set)
        for index, module in enumerate(self._modules):
            if module.has_children and "." in f".{module.name}":
                groups[pattern(module.name), module.kind].add(index)
        held = dict.fromkeys(range(len(self._modules)), 0)
        for start, end, index, outputs in self._calls():
            held[index] += sum(self._leftovers(start, end, outputs).values())
        ranked = sorted(groups, key=lambda key: -sum(held[index] for index in groups[key]))
        for name, kind in [key for key in ranked if "*" in key[0]][:GROUPS] or ranked[:1]:
            members = groups[name, kind]
            number = f"{len(members)} × {kind}" if len(members) > 1 else kind
            text = f"gradient checkpointing of {name} ({number})"
            yield text, self._bytes_reserved(self._recompute(members))

    def _calls(self) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
        """The forward passes of modules: first and last event, module, storages of the output."""
        open_: list[tuple[int, int]] = []
        for at, (what, how) in enumerate(self._events):
            if what == "enter":
                open_.append((how, at))
            elif what == "exit":
                index, outputs = how
                while open_:
                    entered, start = open_.pop()
                    if entered == index:
                        yield start, at, index, outputs
                        break

    def _leftovers(self, start: int, end: int, outputs: tuple[int, ...]) -> dict[int, int]:
        """The storages, with their bytes, that a forward pass leaves besides its output."""
        left = _left(self._events[start:end])
        return {id: n for id, n in left.items() if id not in outputs and id not in self._kinds}

    def _once_more(
        self, start: int, end: int, again: dict[int, int], outputs: tuple[int, ...]
    ) -> Events:
        """The events of a forward pass that is repeated; what only lives in it has other names."""
        events: Events = []
        live: set[Any] = set()
        for what, how in self._events[start:end]:
            if what == "conv" or (what in again and how >= 0):
                events.append((what, how))
            elif isinstance(what, int) and what not in outputs and what not in self._kinds:
                name = ("again", what)
                if how >= 0 or name in live:
                    events.append((name, how))
                    live.add(name) if how >= 0 else live.discard(name)
        return [*events, *((name, -1) for name in live)]

    def _recompute(self, members: set[int]) -> Events:
        """The events if these modules are checkpointed."""
        freed = {what: at for at, (what, how) in enumerate(self._events) if how == -1}
        turns = [at for at, event in enumerate(self._events) if event == ("mark", "forward")]
        insert: dict[int, Events] = defaultdict(list)  # before the event with this number
        for start, end, index, outputs in self._calls():
            if index not in members:
                continue
            turn = next((at for at in turns if at > end), None)
            if turn is None:
                continue
            kept = self._leftovers(start, end, outputs)
            again = {id: nbytes for id, nbytes in kept.items() if freed.get(id, 0) > turn}
            if again:
                first = min(freed[id] for id in again)
                insert[end] += [(id, -1) for id in again]
                insert[first] += self._once_more(start, end, again, outputs)
        events: Events = []
        for at, event in enumerate(self._events):
            events += insert.get(at, ())
            events.append(event)
        return events
