"""CARMA's own policy: what is shortest goes first, beside others or in place of the longest."""

from __future__ import annotations

from carmad.plugin import Wording

REASONS = {
    "saturated": Wording(
        "Saturated",
        lambda r: (
            f"is busy enough (SM activity {r.have:.2f}, limit {r.need:.2f}), and {r.detail} there"
            " has not much more left than this job"
        ),
    ),
}
