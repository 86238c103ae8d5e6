"""Cuckoo: which two jobs share GPUs, and in what order groups run, to meet deadlines. Its
dependencies (numpy, scipy, rustworkx) are loaded with `policies.cuckoo.policy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval

from carmad.plugin import Reason, System, Wording, duration, first_few

_Share = Annotated[float, Interval(ge=0, le=1)]
_Slowdown = Annotated[float, Ge(1)]


@dataclass(frozen=True, slots=True)
class CuckooSettings:
    """`policy = "cuckoo"` (Cuckoo paper, 3)."""

    weight: _Share = 0.6  # w: of a pair's efficiency; the rest is for close deadlines
    lambda_gpu: _Slowdown = 1.3  # λ: how many times as long two jobs take that compute at once
    lambda_network: _Slowdown = 2.0  # λ: how many times as long if they communicate at once


# Apart, as the paper profiles, mean JCT is much longer on eight busy GPUs (`lab.differs`).
SYSTEM = System(of_jobs=("duration", "stages"))

# Wording of the policy's own reasons.


def _start(reason: Reason) -> str:
    turn = "" if reason.need <= 1 else f", as number {reason.need:.0f} on its GPUs"
    after = f", after {first_few(reason.detail)}" if reason.detail else ""
    return f"its start is planned in {duration(reason.have)}{turn}{after}"


def _deadline(reason: Reason) -> str:
    gone = "has passed" if reason.need <= 0 else f"is in {duration(reason.need)}"
    return f"planned to end in {duration(reason.have)}, but its deadline {gone}"


REASONS = {
    "partner": Wording(
        "Partner", lambda r: f"it will join {r.detail} as soon as the GPUs there can take it"
    ),
    "no_partner": Wording(
        "NoPartner", lambda r: "no job to pack it with: none would gain, or it must be alone"
    ),
    "planned_start": Wording("Planned", _start),
    "deadline": Wording("Deadline", _deadline),
    # why it was placed there
    "packed": Wording(
        "Packed",
        lambda r: (
            f"packed with {r.detail}: together {r.have:.2f} times as efficient as one after the"
            " other"
        ),
    ),
    "close_deadlines": Wording(
        "CloseDeadlines",
        lambda r: (
            f"of its deadline and {r.detail}'s, the nearer is {r.have:.2f} times as far off as the"
            " other"
        ),
    ),
    "planned_end": Wording(
        "PlannedEnd",
        lambda r: f"planned to end in {duration(r.have)}; its deadline is in {duration(r.need)}",
    ),
}
