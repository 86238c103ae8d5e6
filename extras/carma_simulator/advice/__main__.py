"""A child of carmad: what CARMA's own policy would have made of this server's last month.

`python -m carma_simulator.advice DAYS` asks the daemon, simulates its past jobs, and prints an
`AdviceOut`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from carmad import apart
from carmad.errors import CarmaError

if TYPE_CHECKING:
    from carmad.api.advice import AdviceOut


def main(days: str) -> int:
    apart.limit()
    try:
        print(json.dumps(advise(int(days))))
    except CarmaError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def advise(days: int) -> AdviceOut:
    """Raises CarmaError, also if no past job can be simulated."""
    from dataclasses import replace

    from carma_simulator import recorded
    from carma_simulator.advice.compare import compare
    from carma_simulator.run import simulate
    from carmad.api.advice import OWN
    from cli import client, parse

    past = recorded.from_history(client.get, since=parse.since(f"{days}d"))
    own = past.experiment
    present = simulate(own)
    instead = simulate(replace(own, settings=replace(own.settings, policy=OWN)))
    found = compare(past.outcome, present, instead)
    return {
        "policy": own.settings.policy,
        "instead": OWN,
        "days": days,
        **found._asdict(),  # type: ignore[typeddict-item]
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
