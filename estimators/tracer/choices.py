"""Answers to questions about values that nothing has computed, and the other answers to them.

A program that reads a value from the GPU (`if loss < best`, `.item()`) gets one that is made up. If
it stops then, `attempts` runs it again with the other answer at one of the places that asked.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .made_up import is_loop, is_only_printed, is_repeated, truth_for

GPU = "its model and its memory"  # in place of a line
TURNS = 4  # of the first loop whose condition is such a value
MANY = 64  # the same answers between two optimizer steps: a `while` may wait for the other
_BETWEEN = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__))


@dataclass(frozen=True)
class Plan:
    """How an attempt differs from the first."""

    flipped: frozenset[str] = frozenset()  # places that get the other answer
    whole: bool = False  # no pass is left out
    more: int = 0  # batches of each loop after two steps, on top of the usual ones


class Choices:
    def __init__(self) -> None:
        self.plan = Plan()
        # Places whose answers may have decided something, the latest last; whether it was a number.
        self.asked: dict[str, bool] = {}
        self._turns: Counter[str] = Counter()  # of loops with the other answer
        self._times: Counter[str] = Counter()  # that a place has asked since the last step

    def choose(self, usual: Any, other: Any) -> Any:
        """The answer at this place of the program."""
        place = _place()
        known = self.asked.pop(place, None)
        is_number = known or type(usual) is not bool
        if type(usual) is bool and (holds := truth_for(place)) is not None:
            usual, other = holds, not holds
        else:
            self._times[place] += 1
            if self._times[place] > MANY and self._times[place] % 2 and is_repeated(place):
                usual, other = other, usual
        if known is not None or not is_only_printed():
            self.asked[place] = is_number
        if place not in self.plan.flipped:
            return usual
        if is_loop(place):  # it shall end: the first after some turns, others after one
            self._turns[place] += 1
            turns = self._turns[place] <= TURNS or self._turns[place] % 2
            return other if turns else usual
        return other

    def note_step(self) -> None:
        self._times.clear()

    def choose_of_gpu(self, usual: Any, other: Any) -> Any:
        """What the GPU may be, and how large. All such questions are asked at one place."""
        if not is_only_printed():
            self.asked[GPU] = True
        return other if GPU in self.plan.flipped else usual


def _place() -> str:
    """`/home/ann/train.py:12`: the innermost line that is neither PyTorch's nor the tracer's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
