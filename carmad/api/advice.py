"""Which policy CARMA recommends instead of the one in force, on the evidence of this server's own
past jobs, simulated under both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from typing_extensions import TypedDict

OWN = "carma"  # the policy that is tried
FILE = "advice.json"  # in the state directory; the simulator writes it


class AdviceOut(TypedDict):
    policy: str  # in force
    instead: str
    days: int  # that were looked at
    jobs: int  # whose times are compared
    saved: float | None  # of their mean time from submission to end, 0–1; negative: it is longer
    longer: bool  # some user would have waited longer, but hardly
    why_not: str  # "": it is recommended
    made_at: str


def read_advice(state_dir: Path, policy: str) -> AdviceOut | None:
    """The latest, if it is about this policy, which is in force."""
    try:
        last: AdviceOut = cast(AdviceOut, json.loads((state_dir / FILE).read_text("utf-8")))
    except (OSError, ValueError):  # there is none
        return None
    return last if last["policy"] == policy else None


def words(advice: AdviceOut) -> str:
    """A sentence, without its full stop."""
    instead, jobs, days = advice["instead"], advice["jobs"], advice["days"]
    if advice["why_not"]:
        return f"nothing speaks for {instead} instead of {advice['policy']}: {advice['why_not']}"
    much = " by more than a minute, or a tenth" if advice["longer"] else ""
    return (
        f"under policy {instead}, the {jobs:,} jobs of the last {days} days would have taken"
        f" {advice['saved'] or 0:.0%} less time on average, and no user would have waited"
        f" longer{much}"
    )


def sentence(advice: AdviceOut) -> str:
    """Of a recommendation."""
    said = words(advice)
    return f"{said[0].upper()}{said[1:]}."


def command(advice: AdviceOut) -> str:
    return f"carma config set policy {advice['instead']}"
