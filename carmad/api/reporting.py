"""Reports and receipts, from the store and what is there now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from carmad.api.reasons import short
from carmad.api.report import (
    ExternalReportOut,
    Period,
    ReceiptOut,
    ReportOut,
    knowledge,
    report_out,
)
from carmad.api.wire import pick, stamp
from carmad.core.gpus.sharing import Seen, first_started_at, overlaps
from carmad.core.gpus.slowdown import receipt
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.placing.decision import Decision, Reason
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.store.reading import Reader
from carmad.store.values import ExternalTotals

MOST = 200_000  # jobs in a report: each takes a kilobyte while it is made
DECISIONS = 200  # of a job, the latest


def report(
    store: Reader,
    scene: Scene,
    since: float,
    until: float,
    user: Owner | None = None,
) -> ReportOut:
    """`user`: the reader; None: an administrator."""
    until = min(until, scene.now)
    if until <= since:
        raise CarmaError(
            "the period is empty", "Give a start that is in the past and before the end."
        )

    def why(job: Seen) -> str:
        return longest_wait_reason(store.decisions(job.id, DECISIONS), scene.now)

    began = store.known_from()
    first = since if began is None else min(max(since, began), until)  # before, nobody counted
    period = Period(first, until, scene.now)
    out = report_out(_there(store, scene, since, until), period, scene.gpus, why, user)
    if first == until:  # it is all before that
        out["since"] = stamp(since)
    totals, _ = store.externals(since, until=until)
    out["external"] = list(_external(totals, user and user.user))
    return out


def receipt_of(job: Job, store: Reader, scene: Scene) -> ReceiptOut | None:
    """Over the job's whole run so far. None: it has not begun."""
    own = replace(job, usage=scene.usage.get(job.id, job.usage))
    since = first_started_at(own)
    if since is None:
        return None
    until = scene.now if job.ended_at is None else job.ended_at
    shares = any(each.shared for each in own.attempts)
    jobs: list[Seen] = list(_there(store, scene, since, until)) if shares else [own]
    alike = store.alike(job.spec.owner, job.group) if shares else []
    alone = (each for each in alike if not any(stay.shared for stay in each.attempts))
    seen = overlaps(jobs, since, until, scene.now)
    known = knowledge(jobs, seen, scene.gpus, since, alone)
    return pick(ReceiptOut, receipt(own, seen.stays.get(job.id, ()), known))


def longest_wait_reason(decisions: Iterable[Decision], now: float) -> str:
    """The reason that held a job up longest before it first started; "": none is on record.
    `decisions`: the newest first."""
    lasted: dict[tuple[str, str], tuple[float, Reason]] = {}
    end = now
    for decision in decisions:
        placement = decision.placement
        refused = [each.refused[0] for each in placement.verdicts if each.refused]
        if placement.gpus:
            lasted.clear()  # what came after it was of a later attempt
        elif reason := next(iter((*placement.reasons, *refused)), None):
            key = reason.code, reason.detail
            before_s, _ = lasted.get(key, (0.0, reason))
            lasted[key] = before_s + end - decision.at, reason
        end = decision.at
    return short(max(lasted.values(), key=lambda each: each[0])[1]) if lasted else ""


def _there(store: Reader, scene: Scene, since: float, until: float) -> Iterator[Seen]:
    """Those that have ended, and those that have not. Raises CarmaError if they are too many."""
    live = [
        replace(job, usage=scene.usage.get(id, job.usage))
        for id, job in scene.live.rows.items()
        if job.spec.gpus
    ]
    yield from (job for job in live if job.submitted_at < until)
    for count, job in enumerate(store.summaries(since, until)):
        if count >= MOST:
            raise CarmaError(f"more than {MOST:,} jobs ran then", "Choose a shorter period.")
        held = any(each.gpus for each in job.attempts)
        if held and job.id not in scene.live:  # it is in both if it has ended since
            yield job


def _external(totals: Iterable[ExternalTotals], user: str | None) -> Iterator[ExternalReportOut]:
    """To anyone but administrators, all others are one."""
    found: dict[str, tuple[int, float]] = {}
    for each in totals:
        name = each.user if user in (None, each.user) else ""
        processes, hours = found.get(name, (0, 0.0))
        found[name] = processes + each.processes, hours + each.gpu_hours
    for name, (processes, hours) in found.items():
        yield {"user": name, "processes": processes, "gpu_hours": round(hours, 4)}
