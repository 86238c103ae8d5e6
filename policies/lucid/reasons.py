"""The words for Lucid's own reasons."""

from __future__ import annotations

from carmad.plugin import Reason, Wording, duration


def _outlasts(reason: Reason) -> str:
    if not reason.have:
        return f"nobody can say whether it would outlast {reason.detail} by far"
    numbers = f"{duration(reason.have)} × GPUs, limit {duration(reason.need)}"
    return f"it would outlast {reason.detail} by far ({numbers})"


def _sharing_off(reason: Reason) -> str:
    if not reason.need:
        return "nobody shares"
    asked = f"{reason.have:.0f} GPUs are asked for in ten minutes"
    return f"nobody shares now: {asked}, below {reason.need:.0f}"


REASONS = {
    # of one GPU: of its neighbour there
    "sharing_score": Wording(
        "SharingScore",
        lambda r: f"the sharing scores add up to {r.have:.0f}, of {r.need:.0f} allowed: {r.detail}",
    ),
    "gpu_demand": Wording(
        "GpuDemand",
        lambda r: f"{r.detail} is on {r.have:.0f} GPUs, and the job wants {r.need:.0f}",
    ),
    "distributed": Wording("Distributed", lambda r: f"{r.detail} is spread over several servers"),
    "outlasts": Wording("Outlasts", _outlasts),
    "kept_for_profiling": Wording("ForProfiling", lambda r: "is for profiling new jobs"),
    # of the job
    "sharing_off": Wording("SharingOff", _sharing_off),
    # why it was placed as it was
    "affine": Wording(
        "Affine", lambda r: f"{r.detail}: scores add up to {r.have:.0f} of {r.need:.0f}"
    ),
}
