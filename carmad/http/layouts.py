"""How a job is spread over its GPUs and what its iterations take, from a request; checked."""

from __future__ import annotations

from collections.abc import Iterable

from carmad.api.requests import LayoutIn, StageTimesIn, SubmitIn
from carmad.core.layout import Layout, Stage
from carmad.core.types import Gpu, StageTimes
from carmad.errors import CarmaError


def layout(body: SubmitIn) -> Layout | None:
    """Raises CarmaError for one of another number of GPUs."""
    if body.layout is None:
        return None
    found = _layout(body.layout)
    if found.gpus != body.gpus:
        raise CarmaError(
            f"the job's layout is one of {found.gpus} GPUs, and it wants {body.gpus}",
            "A stage has a GPU for each replica, or for each tensor slice of each replica.",
        )
    return found


def _layout(asked: LayoutIn) -> Layout:
    return Layout(tuple(Stage(**one.model_dump()) for one in asked.stages), asked.allreduce)


def stage_times(asked: Iterable[StageTimesIn], gpus: Iterable[Gpu]) -> tuple[StageTimes, ...]:
    """One for each kind of GPU. Raises CarmaError for a kind that the server has not, or twice."""
    names = sorted({gpu.name for gpu in gpus})
    found = [StageTimes(**one.model_dump() | {"gpu": _kind(one.gpu, names)}) for one in asked]
    kinds = [one.gpu for one in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise CarmaError(
                f"stage times are there twice for {kind or 'any GPU'}",
                "Give them once for each kind of GPU: gpu=NAME.",
            )
    return tuple(found)


def _kind(asked: str, names: list[str]) -> str:
    """The full name of a GPU of which a part is given, such as A100."""
    fitting = [name for name in names if asked.lower() in name.lower()]
    if not asked or asked in names:
        return asked
    if len(fitting) != 1:
        what = "several kinds of GPU that are called" if fitting else "no GPU called"
        raise CarmaError(f"this server has {what} {asked!r:.80}", f"It has: {', '.join(names)}.")
    return fitting[0]
