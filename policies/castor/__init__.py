"""Castor: which two jobs share GPUs, from when, and how the newer one's batch is split."""

from __future__ import annotations

from carmad.plugin import Reason, System, Wording, duration

SYSTEM = System({"profiling.gpus": "auto"}, of_jobs=("duration",))

# Wording of the policy's own reasons.


def _beside(reason: Reason, end: str) -> str:
    return (
        f"sharing, it and {reason.detail} {end} after {duration(reason.have)} on average;"
        f" one after the other, after {duration(reason.need)}"
    )


REASONS = {
    "no_benefit": Wording("NoBenefit", lambda r: _beside(r, "would end")),
    # why it was placed there
    "sharing_benefit": Wording("SharingBenefit", lambda r: _beside(r, "end")),
    "split_batch": Wording(
        "SplitBatch",
        lambda r: f"batches of {r.need:.0f} are split into {r.detail} of {r.have:.0f}",
    ),
}
