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
from types import MappingProxyType
from typing import Any, Iterator, List, Mapping, Tuple

import torch

from .allocator import Allocator, Options
from .convolution import Conv
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
        self._events, self.layout = recorder.events, layout
        self.peak = 0  # the event at which most is in use
        self.given: dict[Any, tuple[int, str]] = {}  # bytes and part of all that was allocated
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
        self.given[name] = nbytes, part
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


class _Case:
    def __init__(
        self, recorder: Recorder, attribution: Attribution, chosen: Options, film: _Filmed
    ) -> None:
        self._recorder, self._chosen, self._film = recorder, chosen, film
        self._events, self._convs, self._kinds = recorder.events, recorder.convs, recorder.kinds
        self._modules, self._origins = attribution.modules, attribution.origins
        live = set()
        for what, how in self._events[: film.peak + 1]:
            live.add(what) if how != -1 else live.discard(what)
        # The activations that are live when most is in use.
        self._live = {id: n for id, n in self._of("activations").items() if id in live}

    def _of(self, part: str) -> dict[int, int]:
        """The storages of a part, with their bytes."""
        given = self._film.given.items()
        return {id: n for id, (n, of) in given if of == part and isinstance(id, int)}

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
        every = (
            Remedy(what, report.reserved - reserved, exact="expandable" in what)
            for what, reserved in self._all(report.batch)
        )
        worth = (one for one in every if one.saved >= WORTH * report.reserved)
        return tuple(sorted(worth, key=lambda one: -one.saved))

    def _all(self, batch: int) -> Iterator[tuple[str, int]]:
        """What to do, and the bytes reserved then."""
        if not self._chosen.expandable:
            moved = replace(self._chosen, expandable=True)
            yield "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", self._replay({}, chosen=moved)
        activations = self._of("activations")
        dtypes: Counter[Any] = Counter()
        for id, nbytes in activations.items():
            dtypes[self._origins[id].dtype if id in self._origins else None] += nbytes
        if dtypes[torch.float32] > dtypes[torch.float16] + dtypes[torch.bfloat16]:
            yield "mixed precision: torch.autocast with bfloat16", self._in_half_precision()
        if batch > 1:
            less = {id: nbytes - nbytes // 2 for id, nbytes in activations.items()}
            convs = [
                one._replace(input=_halve(one.input), output=_halve(one.output))
                for one in self._convs
            ]
            yield f"half the batch: {batch // 2} instead of {batch}", self._replay(less, convs)
        if "optimizer" in self._kinds.values():
            # A byte per value; its kernels need no temporaries.
            of_step = self._of("optimizer").items()
            less = {id: n * 3 // 4 if id in self._kinds else n for id, n in of_step}
            yield "an 8-bit optimizer, such as bitsandbytes has", self._replay(less)
        if checkpointed := min(self._with_checkpoints(), key=lambda one: one[1], default=None):
            yield checkpointed

    def _replay(
        self,
        less: dict[int, int],
        convs: list[Conv] | None = None,
        more: Mapping[int, Events] = MappingProxyType({}),
        chosen: Options | None = None,
    ) -> int:
        """The bytes reserved if storages are `less` bytes smaller. `more`: events that come before
        that of a number."""
        events: Events = []
        for at, (what, how) in enumerate(self._events):
            events += more.get(at, ())
            is_new = isinstance(what, int) and how >= 0
            events.append((what, how - less.get(what, 0) if is_new else how))
        convs = self._convs if convs is None else convs
        recording = self._recorder.recording._replace(events=events, convs=convs)
        return figures(recording, chosen or self._chosen, self._film.layout).reserved

    def _in_half_precision(self) -> int:
        """All activations in float32 take half, but those of normalisations and losses; weights
        that are multiplied with have a copy in half precision from their first use in a forward
        pass to the end of the backward pass. Left out: casts that live for an instant."""
        less = {}
        for id, nbytes in self._of("activations").items():
            origin = self._origins.get(id)
            if origin is not None and origin.dtype is torch.float32:
                kind = self._modules[origin.module].kind if origin.module >= 0 else ""
                if (kind or origin.backward) and not _UNCHANGED.search(kind):
                    less[id] = nbytes - nbytes // 2
        more: dict[int, Events] = defaultdict(list)
        cast: set[int] = set()
        for at, (what, how) in enumerate(self._events):
            if what == "enter" and how not in cast:
                module = self._modules[how]
                if _MULTIPLIES.search(module.kind) and not module.has_children:
                    cast.add(how)
                    more[at].append((-1 - how, module.parameters // 2))
            elif what == "mark" and how == "backward":
                more[at] += [(-1 - one, -1) for one in cast]
                cast.clear()
        convs = [conv._replace(itemsize=min(2, conv.itemsize)) for conv in self._convs]
        return self._replay(less, convs, more)

    def _with_checkpoints(self) -> Iterator[tuple[str, int]]:
        """Of what a module allocates in its forward pass, only its output stays; the rest is
        computed again, in one go, just before the first of it is freed in the backward pass. Left
        out: what only lives while it is computed."""
        freed = {what: at for at, (what, how) in enumerate(self._events) if how == -1}
        turns = [at for at, event in enumerate(self._events) if event == ("mark", "forward")]
        groups: dict[tuple[str, str], set[int]] = defaultdict(set)
        held: Counter[tuple[str, str]] = Counter()
        more: dict[tuple[str, str], dict[int, Events]] = {}
        for start, end, index, left in self._calls():
            module = self._modules[index]
            key = pattern(module.name), module.kind
            turn = next((at for at in turns if at > end), len(self._events))
            again = {id: n for id, n in left.items() if freed.get(id, 0) > turn}
            if not (again and module.has_children and "." in f".{module.name}"):
                continue
            groups[key].add(index)
            held[key] += sum(again.values())
            events = more.setdefault(key, defaultdict(list))
            events[end] += [(id, -1) for id in again]
            events[min(freed[id] for id in again)] += [
                (what, how)
                for what, how in self._events[start:end]
                if what == "conv" or (what in again and how >= 0)
            ]
        ranked = [key for key, _ in held.most_common()]
        for key in [key for key in ranked if "*" in key[0]][:GROUPS] or ranked[:1]:
            (name, kind), count = key, len(groups[key])
            number = f"{count} × {kind}" if count > 1 else kind
            text = f"gradient checkpointing of {name} ({number})"
            yield text, self._replay({}, more=more[key])

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
                        yield start, at, index, self._left(start, at, outputs)
                        break

    def _left(self, start: int, end: int, outputs: tuple[int, ...]) -> dict[int, int]:
        left: dict[int, int] = {}
        for what, how in self._events[start:end]:
            if how == -1:
                left.pop(what, None)
            elif isinstance(what, int) and what not in outputs and what not in self._kinds:
                left[what] = how
        return left


def _halve(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (max(1, shape[0] // 2), *shape[1:])
