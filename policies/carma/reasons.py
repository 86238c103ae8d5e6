"""Wording of the policy's own reasons."""

from __future__ import annotations

from carmad.plugin import Reason, Wording, duration


def _later(reason: Reason) -> str:
    gap_s = reason.have - reason.need
    return (
        f"if it joined {reason.detail} now, jobs would end {duration(gap_s)} later, in sum, than if"
        " it waits"
    )


REASONS = {
    # of one GPU
    "later_together": Wording("LaterTogether", _later),
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
        lambda r: f"{r.have:.0f} GPUs are kept for it, expected to be free in {duration(r.need)}",
    ),
    # why it was placed there
    "sooner_together": Wording(
        "SoonerTogether",
        lambda r: f"beside {r.detail}: so they all end sooner, in sum, than if it waited",
    ),
}
