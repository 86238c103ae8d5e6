"""The folders of attempts, called ID.ATTEMPT: which there are, and what is none."""

from __future__ import annotations

from pathlib import Path

from carmad.core.types import JobId
from carmad.store.sql import MAX_ID


def found(jobs: Path) -> dict[Path, JobId]:
    """The folders of attempts in `jobs`, and whose each is."""
    return {path: job for path in sorted(jobs.glob("*")) if (job := _job(path.name)) is not None}


def strange(jobs: Path) -> list[Path]:
    """What is in `jobs` that no attempt has left there."""
    return [path for path in sorted(jobs.glob("*")) if _job(path.name) is None]


def _job(name: str) -> JobId | None:
    numbers = name.split(".")
    if len(numbers) != 2 or not all(each.isascii() and each.isdecimal() for each in numbers):
        return None
    job = int(numbers[0])
    # As it is written by the launcher: 007 is another folder than 7.
    return JobId(job) if 0 < job < MAX_ID and str(job) == numbers[0] else None
