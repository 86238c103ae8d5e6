"""A user's week in a mail: what their jobs held of the GPUs, what they used, what was idle, and
what they should ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum

from carmad.core.gpus.sharing import label, overlaps
from carmad.core.jobs.job import Job
from carmad.core.rules.promises import advice_of
from carmad.notify.letters import MOST_LINE, Letter
from carmad.readable import clean

HOUR_S = 3600.0
MOST_LISTED = 10
LEAST_IDLE_S = HOUR_S  # GPU time of a job, to be listed
OFF = "No such mail any more: carma notify --week off"


@dataclass(frozen=True, slots=True)
class Part:
    """What a job had of the GPUs in the week, in GPU-seconds."""

    job: Job
    held_s: float
    used_s: float  # by the SM activity of its GPUs
    idle_s: float  # in which no kernel of it ran


def letter_of(
    jobs: Iterable[Job], since: datetime, until: datetime, now: float, where: str
) -> Letter | None:
    """None: they held no GPU. `jobs`: a user's, all that were there in the week. `now`: in Unix
    seconds; `where`: this machine."""
    parts = list(_parts(jobs, since.timestamp(), until.timestamp(), now))
    if not parts:
        return None
    held = fsum(each.held_s for each in parts) / HOUR_S
    used = fsum(each.used_s for each in parts) / HOUR_S
    idle = fsum(each.idle_s for each in parts) / HOUR_S
    last = until - timedelta(days=1)
    count = f"{len(parts)} job{'' if len(parts) == 1 else 's'}"
    lines = [
        f"{since:%a %d %b %Y} to {last:%a %d %b %Y}: {count} held GPUs.",
        "",
        f"GPU-hours asked for and held: {held:,.1f}",
        f"of these used, by the activity of the SMs: {used:,.1f}",
        f"of these idle, no kernel ran: {idle:,.1f}",
        *_section("What to ask for with --gpu-mem next time:", _advice(parts)),
        *_section("Held GPUs without using them:", _idle(parts)),
        "",
        OFF,
    ]
    title = f"[carma {where}] your week: {held:,.1f} GPU-hours, {idle:,.1f} of them idle"
    return Letter(title, "\n".join(lines))


def _parts(jobs: Iterable[Job], since: float, until: float, now: float) -> Iterator[Part]:
    for job in jobs:
        stays = overlaps([job], since, until, now).stays.get(job.id, ())
        gpus = [len(each.attempt.gpus) for each in stays]
        held_s = fsum(each.held_s * n for each, n in zip(stays, gpus, strict=True))
        if held_s <= 0:
            continue
        # Of a job that was there before or after the week, in proportion to its time.
        run_s = fsum(each.run_s * n for each, n in zip(stays, gpus, strict=True))
        share, usage = held_s / run_s if run_s else 0.0, job.usage
        used_s, idle_s = usage.sm_seconds * share, usage.idle_seconds * share
        yield Part(job, held_s, min(held_s, used_s), min(held_s, idle_s))


def _advice(parts: Sequence[Part]) -> Iterator[str]:
    """Of jobs that are run again and again, the latest."""
    found: dict[str, str] = {}
    for each in sorted(parts, key=lambda part: part.job.ended_at or 0.0):
        if said := advice_of(each.job):
            group = each.job.group or str(each.job.id)
            found.pop(group, None)
            found[group] = f"{_name(each.job)}: {said}"
    yield from reversed(found.values())


def _idle(parts: Sequence[Part]) -> Iterator[str]:
    for each in sorted(parts, key=lambda part: -part.idle_s):
        if each.idle_s >= LEAST_IDLE_S:
            idle, held = each.idle_s / HOUR_S, each.held_s / HOUR_S
            yield f"{_name(each.job)}: {idle:,.1f} of {held:,.1f} GPU-hours idle"


def _section(title: str, rows: Iterable[str]) -> list[str]:
    found = list(rows)
    shown = [f"- {clean(row)[:MOST_LINE]}" for row in found[:MOST_LISTED]]
    more = [f"- and {len(found) - MOST_LISTED} more"] if len(found) > MOST_LISTED else []
    return ["", title, *shown, *more] if shown else []


def _name(job: Job) -> str:
    return f"job {label(job)} {job.spec.name}"
