"""Reads and checks the layout and stage times in a request."""

from __future__ import annotations

from collections.abc import Iterable

from carmad.api.requests import LayoutIn, StageTimesIn, SubmitIn
from carmad.core.layout import Layout, Stage
from carmad.core.types import Gpu, StageTimes
from carmad.errors import CarmaError


def layout(body: SubmitIn) -> Layout | None:
    """Raises CarmaError if it does not match the number of GPUs."""
    if body.layout is None:
        return None
    found = _layout(body.layout)
    if found.gpus != body.gpus:
        raise CarmaError(
            f"the job's layout needs {found.gpus} GPUs, but it asks for {body.gpus}",
            "A stage has one GPU per replica, or per tensor slice of each replica.",
        )
    return found


def _layout(asked: LayoutIn) -> Layout:
    return Layout(tuple(Stage(**one.model_dump()) for one in asked.stages), asked.allreduce)


def stage_times(asked: Iterable[StageTimesIn], gpus: Iterable[Gpu]) -> tuple[StageTimes, ...]:
    """One for each kind of GPU. Raises CarmaError for an unknown kind, or one given twice."""
    names = sorted({gpu.name for gpu in gpus})
    found = [StageTimes(**one.model_dump() | {"gpu": _kind(one.gpu, names)}) for one in asked]
    kinds = [one.gpu for one in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise CarmaError(
                f"stage times for {kind or 'any GPU'} are given twice",
                "Give them once for each kind of GPU: gpu=NAME.",
            )
    return tuple(found)


def _kind(asked: str, names: list[str]) -> str:
    """The full name of a kind of GPU, from a part of it, such as A100."""
    fitting = [name for name in names if asked.lower() in name.lower()]
    if not asked or asked in names:
        return asked
    if len(fitting) != 1:
        what = "several kinds of GPU that match" if fitting else "no GPU that matches"
        raise CarmaError(f"this server has {what} {asked!r:.80}", f"It has: {', '.join(names)}.")
    return fitting[0]
