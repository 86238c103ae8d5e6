"""What is told of a job that starts, by all who ask how long it takes."""

from __future__ import annotations

from carmad.plugin import Job, Reason


def expected(job: Job) -> tuple[Reason, ...]:
    """How long it should run, and who says so; nothing where nobody does."""
    if job.expected_s is None:
        return ()
    source = job.prediction.source if job.prediction else "its owner"
    return (Reason("predicted", have=job.expected_s, unit="s", detail=source),)
