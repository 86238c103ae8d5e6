"""After `carma submit`: tells that the script stops by itself, and on a terminal asks what to do.

The job is in the queue by then, and the daemon tries its first steps there anyway. So nothing here
can delay or lose it: neither Ctrl-C, nor a terminal that closes, nor a daemon that does not answer.
"""

from __future__ import annotations

import contextlib
import time

from carmad.errors import CarmaError
from cli import client
from cli.problems import note

WITHIN_S = 20.0
QUIET_S = 1.0  # most jobs are known by then: nothing is said
POLL_S = 0.25


def is_wanted(label: str, first: str, asks: bool) -> bool:
    """Whether the job shall stay in the queue. `first`: itself, or the first task of the array.
    `asks`: False to warn only."""
    try:
        stops = crash(label, first, patience=True)
    except KeyboardInterrupt:
        note(f"job {label} stays in the queue; `carma why {label}` tells more")
        return True
    if not stops or not asks or _keeps(label):
        return True
    client.post("/v1/cancel", {"select": label, "user": None})
    note(f"job {label} is cancelled")
    return False


def crash(label: str, first: str, patience: bool = False) -> str:
    """Say how the script stops, and return it if the job still waits; "" if it does not stop, or if
    that is not known in time. `patience`: ask for it, if it takes long."""
    begun = time.monotonic()
    told = not patience
    with contextlib.suppress(CarmaError):
        while (waited_s := time.monotonic() - begun) < WITHIN_S:
            job = client.get(f"/v1/jobs/{first}")
            if job["state"] != "pending":
                stops: str = job.get("crash") or ""
                if stops:
                    note(f"your script stops {stops}")
                return stops if job["state"] == "queued" else ""
            if waited_s > QUIET_S and not told:
                told = True
                note("trying its first steps without a GPU; Ctrl-C leaves it to the queue")
            time.sleep(POLL_S)
        if patience:
            note(f"still being tried: `carma why {label}` will tell")
    return ""


def _keeps(label: str) -> bool:
    try:
        return input(f"Keep job {label} in the queue? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return True
