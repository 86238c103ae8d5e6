"""About the daemon: health, status, statistics, settings and diagnosis."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from carmad import beats
from carmad.api.folding import Row, row_out, seen_by, waiting
from carmad.api.phrases import phrase
from carmad.api.responses import SCHEMA
from carmad.api.responses.report import ReportOut
from carmad.api.responses.server import (
    CheckOut,
    ConfigOut,
    CountsOut,
    CpusOut,
    DaemonOut,
    DoctorOut,
    ExternalSeenOut,
    HealthOut,
    StatsOut,
    StatusOut,
    TotalsOut,
)
from carmad.api.times import iso, parse_time, stamp
from carmad.configfile import as_tree
from carmad.core.decision import Reason
from carmad.core.scene import Scene
from carmad.core.share import DAY_S
from carmad.core.types import ENDED, Job, JobState
from carmad.engine.threads import run_in_threadpool
from carmad.http import reporting
from carmad.http.answers import PROBLEMS, VERSION, Asked, Call, answer
from carmad.http.problems import Forbidden
from carmad.http.routes.gpus import gpus_out
from carmad.http.routes.jobs import Moment
from carmad.http.service import Service
from carmad.store.values import External, Totals

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)

RECENT_S = 600.0
MOST_RECENT = 200
JOULES_PER_KWH = 3.6e6


@router.get("/health", responses={200: {"model": HealthOut}})
async def health(call: Asked) -> Response:
    """The health of the daemon. Answers only if the core does."""
    out: HealthOut = {"schema": SCHEMA, **_daemon(call.service, await call.service.scene())}
    return answer(out)


@router.get("/status", responses={200: {"model": StatusOut}})
async def status(call: Asked) -> Response:
    """Everything in `carma status`: the server, its GPUs, live jobs, and the caller's recent ones.
    Arrays are folded. Of many waiting jobs, only the first rows and some of the caller's are shown.
    """
    service = call.service
    scene = await service.scene()
    return await service.once(scene, ("status", call.peer), lambda: answer(_status(call, scene)))


def _status(call: Call, scene: Scene) -> StatusOut:
    service, peer = call.service, call.peer
    recent = service.store.history(
        user=None if peer.admin else peer.user,
        since=scene.now - RECENT_S,
        states=ENDED,
        limit=MOST_RECENT,
    )
    ended = [job for job in recent if job.id not in scene.live and call.may_touch(job)]
    one = call.renderer(scene)
    waits, more = seen_by(peer.owner, waiting(scene, one))
    rows: list[Row] = [[job] for job in scene.running]
    rows += [*waits, *([job] for job in reversed(ended))]
    return {
        "schema": SCHEMA,
        "server": {
            **_daemon(service, scene),
            "source": service.capabilities().source,
            "mps": service.settings.collocation.mps,
            **_cpus(scene),
        },
        "gpus": gpus_out(call, scene),
        "jobs": [row_out(row, one) for row in rows],
        "more": more,
        "counts": _counts(scene.live.rows.values()),
        "me": {"user": peer.user, "uid": peer.uid, "admin": peer.admin},
    }


def _cpus(scene: Scene) -> CpusOut:
    """Nothing where nobody counts them."""
    total, used = scene.view.settings.host.cpus, scene.held.host["cpus"]
    return {"cpus": total, "cpus_free": max(0, total - used)} if total and used else {}


def _daemon(service: Service, scene: Scene) -> DaemonOut:
    troubles = troubles_of(service, scene.unread)
    return {
        "status": "degraded" if troubles else "ok",
        "version": VERSION,
        "pid": os.getpid(),
        "uptime_s": round(scene.now - service.started_at, 1),
        "policy": scene.policy,
        "troubles": troubles,
    }


def troubles_of(service: Service, unread: str) -> list[str]:
    """Problems of the whole server: unreadable GPUs, failing plugins, threads that hang."""
    gpus = [phrase(Reason("gpus_unread", detail=unread))] if unread else []
    failing = (each for each in service.troubles() if not each.over)
    late = dict.fromkeys(f"{each.thread} hangs in {each.call}" for each in beats.late())
    return [
        *gpus,
        *(f"{each.plugin} fails: {each.without}" for each in failing),
        *(f"the thread {each}" for each in late),
    ]


def _counts(live: Iterable[Job]) -> CountsOut:
    running = queued = recovering = 0
    for job in live:
        if job.holds_gpus:
            running += 1
        elif job.retry is not None:
            recovering += 1
        else:
            queued += job.tasks
    return {"running": running, "queued": queued, "recovering": recovering}


@router.get("/stats", responses={200: {"model": StatsOut}})
async def stats(
    call: Asked,
    since: Moment = None,
    until: Moment = None,
    user: Annotated[str | None, Query(max_length=256)] = None,
    by: Literal["user", "month"] = "user",
) -> Response:
    """Totals over jobs that ended in a period, by user or by month, and over processes outside of
    the queue with the latest of these: the caller's own, or for administrators everyone's."""
    peer = call.peer
    if not peer.admin and user not in (None, peer.user):
        raise Forbidden("only administrators may see others' statistics", "Leave the user out.")
    since_at, until_at = parse_time(since), parse_time(until)
    asked = since_at or 0.0, user if peer.admin else peer.user
    found = await run_in_threadpool(call.service.store.totals, *asked, until_at)
    external, latest = await run_in_threadpool(call.service.store.externals, *asked)
    scene = await call.service.scene()
    users, months = (found.users, ()) if by == "user" else ((), found.months)
    out: StatsOut = {
        "schema": SCHEMA,
        "since": iso(since_at),
        "until": iso(until_at),
        "users": [{"user": name, **_totals(totals)} for name, totals in users],
        "months": [{"month": name, **_totals(totals)} for name, totals in months],
        "total": {"user": "", **_totals(found.overall)},
        "external": [
            {
                "user": one.user,
                "processes": one.processes,
                "gpu_hours": round(one.gpu_hours, 4),
                "peak_mib": one.peak_mib,
            }
            for one in external
        ],
        "external_processes": [_external(one, scene) for one in latest],
    }
    return answer(out)


def _external(one: External, scene: Scene) -> ExternalSeenOut:
    gpu = scene.gpus.get(one.gpu)
    return {
        "gpu": {"id": one.gpu, "index": gpu.index if gpu else None},
        "pid": one.pid,
        "user": one.user,
        "command": one.command,
        "seen_from": stamp(one.seen_from),
        "seen_to": stamp(one.seen_to),
        "peak_mib": one.peak_mib,
    }


def _totals(totals: Totals) -> TotalsOut:
    ends = dict(totals.jobs)
    return {
        "jobs": sum(ends.values()),
        "succeeded": ends.get(JobState.SUCCEEDED, 0),
        "failed": ends.get(JobState.FAILED, 0) + ends.get(JobState.TIMED_OUT, 0),
        "oom": ends.get(JobState.OUT_OF_MEMORY, 0),
        "gpu_hours": round(totals.gpu_hours, 4),
        "energy_kwh": round(totals.energy_j / JOULES_PER_KWH, 6),
        "wait_mean_s": totals.wait.mean_s,
        "wait_p95_s": totals.wait.p95_s,
        "run_mean_s": totals.run.mean_s,
    }


@router.get("/report", responses={200: {"model": ReportOut}})
async def report(call: Asked, since: Moment = None, until: Moment = None) -> Response:
    """What a period was used for; by default the last seven days. Everyone may see totals. Users
    other than administrators see only themselves by name, and only their own jobs."""
    service, peer = call.service, call.peer
    scene = await service.scene()
    until_at = parse_time(until) or scene.now
    since_at = parse_time(since) or until_at - 7 * DAY_S
    user = None if peer.admin else peer.user
    async with service.slow:
        out = await run_in_threadpool(
            reporting.report, service.store, scene, since_at, until_at, user
        )
    return answer(out)


@router.get("/config", responses={200: {"model": ConfigOut}})
async def config(call: Asked) -> Response:
    service = call.service
    out: ConfigOut = {
        "schema": SCHEMA,
        "settings": as_tree(service.settings),
        "path": service.config_path,
        "toml": service.config_toml,
    }
    return answer(out)


@router.get("/doctor", responses={200: {"model": DoctorOut}})
async def doctor(call: Asked) -> Response:
    """Check the daemon. Slow: a process loads every plugin."""
    service = call.service
    scene = await service.scene()
    async with service.slow:
        found = await run_in_threadpool(service.doctor, scene)
    where = service.config_path or "no file: the defaults"
    settings: CheckOut = {"name": "settings", "ok": True, "detail": where, "hint": ""}
    out: DoctorOut = {"schema": SCHEMA, "checks": [settings, *found]}
    return answer(out)
