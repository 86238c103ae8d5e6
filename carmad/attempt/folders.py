"""The directories of attempts, named ID.ATTEMPT: which exist, and what else is among them."""

from __future__ import annotations

from pathlib import Path

from carmad.core.types import JobId
from carmad.store.sql import MAX_ID


def found(jobs: Path) -> dict[Path, JobId]:
    """The directories of attempts in `jobs`, with the job of each."""
    return {path: job for path in sorted(jobs.glob("*")) if (job := _job(path.name)) is not None}


def strange(jobs: Path) -> list[Path]:
    """Whatever in `jobs` is not the directory of an attempt."""
    return [path for path in sorted(jobs.glob("*")) if _job(path.name) is None]


def _job(name: str) -> JobId | None:
    numbers = name.split(".")
    if len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
        return None
    job = int(numbers[0])
    # Only as the launcher writes it: 007 is not job 7's directory.
    return JobId(job) if 0 < job < MAX_ID and str(job) == numbers[0] else None
