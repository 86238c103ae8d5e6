"""Lucid (Hu et al., ASPLOS 2023): profiles jobs, predicts durations and packs jobs, with
interpretable models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from carmad.plugin import Reason, System, Wording, duration

_REQUESTED = (0, 0.1, 0.3, 1, 3, 10, 30)  # GPUs in ten minutes, on small servers and clusters


@dataclass(frozen=True, slots=True)
class LucidSettings:
    """`policy = "lucid"` (Lucid paper, 3.2 to 3.4)."""

    TUNABLE: ClassVar[Mapping[str, Sequence[float]]] = {
        "profiling.gpus": (0, 1, 2),
        "profiling.run_s": (100, 200, 400),
        "policies.lucid.sharing_capacity": (0, 1, 2),
        "policies.lucid.utilization_capacity": (1.0, 1.2, 1.6, 2.0),
        "policies.lucid.apathetic_below": _REQUESTED,
        "policies.lucid.off_below": _REQUESTED,
    }

    sharing_capacity: Annotated[int, Ge(0)] = 2  # GSS: limit for the sum of sharing scores on a GPU
    utilization_capacity: Annotated[float, Ge(0)] = 1.2  # limit for the sum of GPU utilisations
    apathetic_below: Annotated[float, Ge(0)] = 0.0  # GPUs requested in 10 min: below, it is 1
    off_below: Annotated[float, Ge(0)] = 0.0  # GPUs requested in 10 min: below, sharing is off


SYSTEM = System(
    {"predictor": "additive", "profiling.gpus": "auto", "limits.preemption": True}, model="duration"
)

# Wording of the policy's own reasons.


def _outlasts(reason: Reason) -> str:
    if not reason.have:
        return f"it might run much longer than {reason.detail}: its duration is not known"
    numbers = f"{duration(reason.have)} × GPUs, limit {duration(reason.need)}"
    return f"it would run much longer than {reason.detail} ({numbers})"


def _sharing_off(reason: Reason) -> str:
    if not reason.need:
        return "sharing is off"
    asked = f"{reason.have:.0f} GPUs are requested in ten minutes"
    return f"sharing is off now: {asked}, below {reason.need:.0f}"


REASONS = {
    # of one GPU: of its neighbour there
    "sharing_score": Wording(
        "SharingScore",
        lambda r: f"the sharing scores add up to {r.have:.0f} (limit {r.need:.0f}): {r.detail}",
    ),
    "busy_pair": Wording(
        "BusyPair",
        lambda r: (
            f"GPU utilisation would add up to {r.have:.2f} with {r.detail} (limit {r.need:.2f})"
        ),
    ),
    "gpu_demand": Wording(
        "GpuDemand",
        lambda r: f"{r.detail} uses {r.have:.0f} GPUs, but the job wants {r.need:.0f}",
    ),
    "distributed": Wording("Distributed", lambda r: f"{r.detail} is spread over several servers"),
    "outlasts": Wording("Outlasts", _outlasts),
    "kept_for_profiling": Wording("ForProfiling", lambda r: "is for profiling new jobs"),
    # of the job
    "sharing_off": Wording("SharingOff", _sharing_off),
    # why it was placed there
    "affine": Wording(
        "Affine", lambda r: f"{r.detail}: scores add up to {r.have:.0f} of {r.need:.0f}"
    ),
}
