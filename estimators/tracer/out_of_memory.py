"""Runs out of memory where the script waits for that: it looks for the largest batch that fits.

Any other script is traced as if the GPU were larger, and told how much it needs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

import torch

from .recording import Recorder
from .report import Report

_NAME, _WORDS = "OutOfMemoryError", "out of memory"
_NAMES = frozenset((_NAME, "should_reduce_batch_size", "is_oom_error"))  # Accelerate, Lightning
NOTE = "it tries until the GPU is full, as it would on the server: what it takes is what there is"


def raiser(recorder: Recorder) -> Callable[[int], None]:
    """Called from the main thread; what it returns, from any."""
    main = threading.get_ident()
    kind: Any = getattr(torch, _NAME, None) or torch.cuda.OutOfMemoryError  # torch 2.5

    def full(nbytes: int) -> None:
        if any(map(_waits, _stack(sys._current_frames().get(main)))):
            recorder.note(NOTE)
            mib, has_mib = (round(size / 2**20, 2) for size in (nbytes, recorder.memory))
            raise kind(
                f"CUDA out of memory. Tried to allocate {mib} MiB. GPU 0 has a total capacity of "
                f"{has_mib} MiB"
            )

    return full


def within(report: Report, recorder: Recorder) -> Report:
    """A GPU that was full once: the allocator gave its cache back before it failed."""
    above = report.reserved - int(min(recorder.memory, report.reserved))
    if NOTE not in recorder.notes or above <= 0:
        return report
    parts = {**report.parts, "cached": report.parts["cached"] - above}
    return replace(report, reserved=report.reserved - above, parts=parts)


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _waits(code: CodeType) -> bool:
    """Whether the function names the error, or what it says, and may catch it."""
    may_catch = getattr(code, "co_exceptiontable", True)  # Python 3.11
    named = not _NAMES.isdisjoint(code.co_names)
    return bool(may_catch) and (named or any(_WORDS in text for text in _texts(code.co_consts)))


def _texts(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value.lower()
        elif isinstance(value, tuple):
            yield from _texts(value)
