"""The states of a job, and their codes in listings; `carmad.core.jobs.states` says what they mean
and which follows which. Nothing is imported here: `carma` must start quickly.
"""

from __future__ import annotations

CODES = {
    "pending": "PD",
    "queued": "PD",
    "starting": "CF",  # Slurm's CONFIGURING; its ST is STOPPED
    "running": "R",
    "suspending": "SG",
    "suspended": "S",
    "resuming": "RG",
    "stopping": "CG",
    "succeeded": "CD",
    "failed": "F",
    "cancelled": "CA",
    "timed_out": "TO",
    "out_of_memory": "OOM",
}
NEW = frozenset({"pending", "queued"})  # waiting for the next attempt to begin
FAILURES = ("failed", "timed_out", "out_of_memory")
ENDED = frozenset({"succeeded", "cancelled", *FAILURES})
HELD, RETRIED = "H", "RQ"  # codes of new jobs: the owner held it; it waits for another attempt

ENDED_CODES = frozenset(CODES[state] for state in ENDED)


def named_by(word: str) -> frozenset[str]:
    """The states with this name or this code, in any case; empty: it is neither."""
    name, code = word.lower(), word.upper()
    return frozenset(state for state, its in CODES.items() if state == name or its == code)
