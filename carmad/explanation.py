"""What estimators have found out besides the estimate, in the form in which the API answers."""

from __future__ import annotations

from typing_extensions import TypedDict


class HeldOut(TypedDict):
    name: str  # of modules that differ only in numbers: encoder.layer.*.attention; or a line
    kind: str  # the modules' class
    count: int  # of these modules
    mib: int


class RemedyOut(TypedDict):
    what: str
    saved_mib: int
    exact: bool  # as exact as the trace; else an approximation


class MomentOut(TypedDict):
    """When most is in use among several successive allocations."""

    in_use: dict[str, int]  # MiB, by part
    held_mib: int  # by the caching allocator, which includes these
    mark: str  # "step1" if that step ended then


class ExplanationOut(TypedDict):
    """What a trace found out about the memory, without the CUDA context."""

    modules: list[HeldOut]  # the largest holders of activations when most is in use
    lines: list[HeldOut]
    remedies: list[RemedyOut]  # the best first
    moments: list[MomentOut]  # from the first layer to the end of the second step


class ContextOut(TypedDict):
    """What the trace estimator adds to what it can trace."""

    stack: str  # GPU, driver, torch
    jobs: int
    context_mib: int | None  # null: too few to tell, and the setting holds
