"""Wording of Castor's own reasons."""

from __future__ import annotations

from carmad.plugin import Wording, duration

REASONS = {
    "no_benefit": Wording(
        "NoBenefit",
        lambda r: (
            f"sharing, it and {r.detail} would end after {duration(r.have)} on average;"
            f" one after the other, after {duration(r.need)}"
        ),
    ),
    # why it was placed there
    "sharing_benefit": Wording(
        "SharingBenefit",
        lambda r: (
            f"sharing, it and {r.detail} end after {duration(r.have)} on average;"
            f" one after the other, after {duration(r.need)}"
        ),
    ),
    "split_batch": Wording(
        "SplitBatch",
        lambda r: f"batches of {r.need:.0f} are split into {r.detail} of {r.have:.0f}",
    ),
}
