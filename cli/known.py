"""Renders a job's profile and predictions with rich, for `why`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from carmad.readable import clean
from cli.format import memory, span

if TYPE_CHECKING:
    from carmad.api.responses.jobs import JobOut, PredictionOut, ProfileOut

MOST_PARTS = 8  # of a prediction that are listed: the largest
LEAST_PART = 0.005  # smaller ones would show as zero


def of_job(job: JobOut) -> Iterator[RenderableType]:
    """Its profile and predicted duration, if there are any."""
    if profile := job.get("profile"):
        yield Text(f"profile: {_about_profile(profile)}")
        yield from _listed(
            (one["name"], f"{one['mean']:.2f}  (variance {one['variance']:.3g})")
            for one in profile["indicators"]
        )
    if prediction := job.get("prediction"):
        seconds, source = prediction["seconds"], clean(prediction["source"])
        told = f"expected to run for {span(seconds)}" if seconds else "duration unknown"
        yield Text(f"{told} ({source})")
        yield from (Text(f"  · {clean(note)}") for note in prediction["notes"])
        yield from _listed((name, f"{part:+.2f}") for name, part in _greatest(prediction))
    if (parts := job.get("accumulation", 1)) > 1:
        yield Text(f"each batch is split into {parts} parts")


def _about_profile(profile: ProfileOut) -> str:
    words = f"alone for {span(profile['seconds'])}, peak {memory(profile['peak_mib'] or None)}"
    return words if profile["of"] is None else f"taken from job {profile['of']}: {words}"


def _greatest(prediction: PredictionOut) -> list[tuple[str, float]]:
    parts = sorted(prediction["parts"].items(), key=lambda part: -abs(part[1]))
    return [part for part in parts[:MOST_PARTS] if abs(part[1]) >= LEAST_PART]


def _listed(rows: Iterable[tuple[str, str]]) -> Iterator[RenderableType]:
    made = Table(box=None, pad_edge=False, show_header=False)
    for name, value in rows:
        made.add_row(Text(f"  {clean(name)}"), Text(value))
    if made.row_count:
        yield made
