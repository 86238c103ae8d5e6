"""Answers about memory estimates, and how accurate they have been."""

from __future__ import annotations

from typing_extensions import TypedDict

from carmad.api.responses.decisions import ReasonOut, VerdictOut


class EstimateOut(TypedDict):
    """One estimator's answer: a number, or `why` it has none."""

    source: str
    mib: int | None  # per GPU, of the whole process
    low: int | None
    high: int | None  # a GPU with this much free is safe; null: no other than `mib`
    seconds: float
    chosen: bool
    why: str | None
    notes: list[str]
    parts: dict[str, int]  # what it is made of, in MiB; empty if the estimator cannot tell


class FitOut(TypedDict):
    gpu: int
    free_mib: int
    fits: bool | None


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


class EstimatesOut(TypedDict):
    schema: int
    crash: str | None  # how the script stops by itself; completes "your script stops …"
    estimates: list[EstimateOut]
    fits: list[FitOut]
    verdicts: list[VerdictOut]
    reasons: list[ReasonOut]
    explanation: ExplanationOut | None  # null: not asked for, or there is no trace


class CalibrationOut(TypedDict):
    """Errors are those of `mib` against the measured peak; the bias is their median."""

    name: str
    jobs: int
    bias_mib: float | None  # above 0: it says too much
    p50_mib: int | None
    p95_mib: int | None
    early_p50_mib: int | None  # of the older half of the jobs
    recent_p50_mib: int | None  # of the newer half
    untaught_p50_mib: int | None  # without what similar jobs have taught
    under: float | None  # share of jobs that used more than `high`


class ContextOut(TypedDict):
    """What the trace estimator adds to what it can trace."""

    stack: str  # GPU, driver, torch
    jobs: int
    context_mib: int | None  # null: too few to tell, and the setting holds


class EstimatorsOut(TypedDict):
    schema: int
    estimator: str  # the one in use
    jobs: int
    estimators: list[CalibrationOut]
    contexts: list[ContextOut]
