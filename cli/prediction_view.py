"""Renders a job's profile and predictions, for `why`."""

from __future__ import annotations

from carmad.readable import clean
from cli.format import memory, span
from cli.table import Table, columns

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carmad.api.job import JobOut, PredictionOut, ProfileOut
    from cli.table import Block

MOST_PARTS = 8  # of a prediction that are listed: the largest
LEAST_PART = 0.005  # smaller ones would show as zero


def prediction(job: JobOut) -> Iterator[Block]:
    """Its profile and predicted duration, if there are any."""
    if profile := job.get("profile"):
        yield f"profile: {_about_profile(profile)}"
        yield from _table(
            (one["name"], f"{one['mean']:.2f}  (variance {one['variance']:.3g})")
            for one in profile["indicators"]
        )
    if prediction := job.get("prediction"):
        seconds, source = prediction["seconds"], clean(prediction["source"])
        told = f"expected to run for {span(seconds)}" if seconds else "duration unknown"
        yield f"{told} ({source})"
        yield from (f"  · {clean(note)}" for note in prediction["notes"])
        yield from _table((name, f"{part:+.2f}") for name, part in _greatest(prediction))
    if (parts := job.get("accumulation", 1)) > 1:
        yield f"each batch is split into {parts} parts"


def _about_profile(profile: ProfileOut) -> str:
    words = f"alone for {span(profile['seconds'])}, peak {memory(profile['peak_mib'] or None)}"
    return words if profile["of"] is None else f"taken from job {profile['of']}: {words}"


def _greatest(prediction: PredictionOut) -> list[tuple[str, float]]:
    parts = sorted(prediction["parts"].items(), key=lambda part: -abs(part[1]))
    return [part for part in parts[:MOST_PARTS] if abs(part[1]) >= LEAST_PART]


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[Block]:
    made = Table(columns("- -"), header=False)
    for name, value in rows:
        made.add(f"  {clean(name)}", value)
    if made.rows:
        yield made
