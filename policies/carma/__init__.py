"""CARMA's own policy: what is shortest goes first, and nobody pays much for it."""

from __future__ import annotations

from carmad.plugin import Wording, duration

# Wording of the policy's own reasons. `policies.ranked`, which backfills, gives the first and the
# last but one, too.
REASONS = {
    # of one GPU
    "held_for": Wording(
        "HeldFor",
        lambda r: (
            f"is kept for {r.detail}, which needs it in {duration(r.need)}, before this"
            " job would end"
        ),
    ),
    "crowded": Wording(
        "Crowded",
        lambda r: (
            f"is busy enough (SM activity {r.have:.2f}, limit {r.need:.2f}), and {r.detail} there"
            " has not much more left than this job"
        ),
    ),
    # of the job
    "promised": Wording(
        "Promised",
        lambda r: f"GPUs kept for it: {r.have:.0f}, expected to be free in {duration(r.need)}",
    ),
    "yields": Wording("Yields", lambda r: f"is suspended for {r.detail}"),
}
