"""CARMA's own policy: least remaining service first, shared wherever memory suffices."""

from __future__ import annotations

from carmad.plugin import Wording, duration

# Wording of the policy's own reasons, which backfilling (`policies.ranked`) gives, too.
REASONS = {
    # of one GPU
    "held_for": Wording(
        "HeldFor",
        lambda r: (
            f"is kept for {r.detail}, which needs it in {duration(r.need)}, before this"
            " job would end"
        ),
    ),
    # of the job
    "promised": Wording(
        "Promised",
        lambda r: f"GPUs kept for it: {r.have:.0f}, expected to be free in {duration(r.need)}",
    ),
}
