"""A-SRPT: queue order from a virtual single machine, placement by communication between parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from carmad.plugin import Reason, System, Wording, clock, detail, duration

_NotNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class AsrptSettings:
    """`policy = "asrpt"` (A-SRPT paper, IV)."""

    reserve: bool = True  # keep GPUs idle for shorter jobs that may come; false: CARMA's variant
    patience: _NotNegative = 0.5  # τ: wait for GPUs close together, × the server's time for the job


SYSTEM = System({"predictor": "forest"}, model="forest")

# Wording of the policy's own reasons.


def _few_idle(reason: Reason) -> str:
    if reason.need > 1:
        return f"{reason.have:.0f} of the {reason.need:.0f} GPUs that it needs are idle"
    return "no GPU that it could use is idle"


REASONS = {
    "few_idle": Wording("FewIdle", _few_idle),
    "line_held": Wording(
        "LineHeld", lambda r: f"{r.detail} is ahead of it and waits for GPUs", detail
    ),
    "better_gpus": Wording(
        "BetterGpus",
        lambda r: (
            f"on the idle GPUs it would be {r.have:.1f} times as slow as on the best: it waits for"
            f" better ones until {clock(r.need)}"
        ),
    ),
    "slices_apart": Wording(
        "SlicesApart",
        lambda r: (
            f"the slices of a replica need {r.need:.0f} GPUs on one server, and no server has more"
            f" than {r.have:.0f} free"
        ),
    ),
    "reserved": Wording(
        "Reserved",
        lambda r: f"GPUs are kept for shorter jobs, for {duration(r.need)} more if none comes",
    ),
    # why it was placed there
    "mapped": Wording(
        "Mapped",
        lambda r: (
            f"an iteration takes {1000 * r.have:.0f} ms there, {1000 * r.need:.0f} ms on the fewest"
            f" servers ({r.detail})"
        ),
    ),
}
