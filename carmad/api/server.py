"""The daemon and the server: health, status, statistics, settings, diagnosis, metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response
from typing_extensions import TypedDict

from carmad import beats
from carmad.api import reporting
from carmad.api.call import Call, Caller, Moment, Word, answer, resource
from carmad.api.checks import CheckOut, verdict
from carmad.api.gpus import GpuOut, gpus_out
from carmad.api.job import JobOut
from carmad.api.reasons import GpuRefOut, gpu_ref, phrase
from carmad.api.report import JOULES_PER_KWH, ReportOut
from carmad.api.requests import Body, Name
from carmad.api.rows import Row, row_out, visible_rows, waiting
from carmad.api.service import Service
from carmad.api.wire import SCHEMA, Digits, iso, pick, stamp
from carmad.configfile import as_tree, dump
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Reason
from carmad.core.rules.share import DAY_S
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.problems import Forbidden
from carmad.installed import VERSION
from carmad.metrics import declared, figures
from carmad.store.queries import Search
from carmad.store.values import Totals
from carmad.threads import run_in_threadpool

router = resource()

RECENT_S, MOST_RECENT = 600.0, 20  # which ended jobs a status has


class DaemonOut(TypedDict):
    status: str
    version: str
    pid: int
    uptime_s: float
    policy: str
    troubles: list[str]  # what affects the whole server, in words


class HealthOut(DaemonOut):
    schema: int


class CpusOut(TypedDict, total=False):
    """There while a job that has asked for CPUs runs."""

    cpus: int  # that jobs may have
    cpus_free: int


class ServerOut(DaemonOut, CpusOut):
    source: str
    mps: bool


class CountsOut(TypedDict):
    running: int
    queued: int
    recovering: int


class MeOut(TypedDict):
    user: str
    uid: int
    admin: bool


class StatusOut(TypedDict):
    """`jobs`, folded: all that run, the first in line, one's own up to a number, and those of them
    that have just ended."""

    schema: int
    server: ServerOut
    gpus: list[GpuOut]
    jobs: list[JobOut]
    more: int  # jobs that wait and are in no row
    counts: CountsOut
    me: MeOut


class TotalsOut(TypedDict):
    jobs: Annotated[int, lambda it: _count(it, *JobState)]
    succeeded: Annotated[int, lambda it: _count(it, JobState.SUCCEEDED)]
    failed: Annotated[int, lambda it: _count(it, JobState.FAILED, JobState.TIMED_OUT)]
    oom: Annotated[int, lambda it: _count(it, JobState.OUT_OF_MEMORY)]
    cancelled: Annotated[int, lambda it: _count(it, JobState.CANCELLED)]
    gpu_hours: Annotated[float, Digits(4)]
    energy_kwh: Annotated[float, lambda it: it.energy_j / JOULES_PER_KWH, Digits(6)]
    wait_mean_s: Annotated[float | None, lambda it: it.wait.mean_s]
    wait_p95_s: Annotated[float | None, lambda it: it.wait.p95_s]
    run_mean_s: Annotated[float | None, lambda it: it.run.mean_s]


class UserTotalsOut(TotalsOut):
    user: str


class MonthTotalsOut(TotalsOut):
    month: str  # as 2026-11, in the server's time zone


class ExternalTotalsOut(TypedDict):
    """A user's processes outside of the queue; one on two GPUs counts twice."""

    user: str
    processes: int
    gpu_hours: Annotated[float, Digits(4)]
    peak_mib: int | None  # null: not known


class ExternalSeenOut(TypedDict):
    gpu: GpuRefOut
    pid: int
    user: str
    command: str
    seen_from: Annotated[str, lambda it: stamp(it.seen_from)]  # on that GPU
    seen_to: Annotated[str, lambda it: stamp(it.seen_to)]
    peak_mib: int | None


class StatsOut(TypedDict):
    """Of `users` and `months`, only what was asked for has rows."""

    schema: int
    since: str | None
    until: str | None
    users: list[UserTotalsOut]
    months: list[MonthTotalsOut]
    total: UserTotalsOut
    external: list[ExternalTotalsOut]
    external_processes: list[ExternalSeenOut]  # the latest ones


class ConfigOut(TypedDict):
    """`settings` follows the settings file, whose names `schema` does not cover. `origins` has, by
    full name, where those come from that are not the default: file, environment, policy."""

    schema: int
    settings: dict[str, Any]
    origins: dict[str, str]
    path: str | None
    toml: str
    waiting: list[str] | None  # what only a restart changes; null: the file is broken


class ConfigIn(Body):
    policy: Name


class DoctorOut(TypedDict):
    schema: int
    checks: list[CheckOut]


@router.get("/health", responses={200: {"model": HealthOut}})
async def health(call: Caller) -> Response:
    """The health of the daemon. Answers only if the core does."""
    out: HealthOut = {"schema": SCHEMA, **_daemon(call.service, await call.service.scene())}
    return answer(out)


@router.get("/status", responses={200: {"model": StatusOut}})
async def status(call: Caller) -> Response:
    """Everything in `carma status`: the server, its GPUs, live jobs, and the caller's recent ones.
    Arrays are folded. Of many waiting jobs, only the first rows and some of the caller's are shown.
    """
    service = call.service
    scene = await service.scene()
    return await service.once(scene, ("status", call.peer), lambda: _status(call, scene))


def _status(call: Call, scene: Scene) -> Response:
    service, peer = call.service, call.peer
    one = call.renderer(scene)
    waits, more = visible_rows(peer.owner, waiting(scene, one))
    rows: list[Row] = [*([job] for job in scene.running), *waits]
    search = Search(None if peer.admin else peer.owner, since=scene.now - RECENT_S)
    recent, _ = service.store.search(search, "ended", limit=MOST_RECENT)
    rows += [[job] for job in sorted(recent, key=lambda job: job.id) if job.id not in scene.live]
    out: StatusOut = {
        "schema": SCHEMA,
        "server": {
            **_daemon(service, scene),
            "source": service.capabilities().source,
            "mps": service.settings.collocation.mps,
            **_cpus(scene),
        },
        "gpus": gpus_out(call, scene),
        "more": more,
        "counts": _counts(scene.live.rows.values()),
        "me": pick(MeOut, peer),
        "jobs": [row_out(row, one) for row in rows],
    }
    return answer(out)


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
    call: Caller,
    since: Moment = None,
    until: Moment = None,
    user: Word = None,
    by: Literal["user", "month"] = "user",
) -> Response:
    """Totals over jobs that ended in a period, by user or by month, and over processes outside of
    the queue with the latest of these: the caller's own, or for administrators everyone's."""
    peer = call.peer
    if not peer.admin and user not in (None, peer.user):
        raise Forbidden("only administrators may see others' statistics", "Leave the user out.")
    store, begin, whose = call.service.store, since or 0.0, user if peer.admin else peer.owner
    found = await run_in_threadpool(store.totals, begin, whose, until)
    name = user if peer.admin else peer.user
    external, latest = await run_in_threadpool(store.externals, begin, name)
    scene = await call.service.scene()
    users, months = (found.users, ()) if by == "user" else ((), found.months)
    out: StatsOut = {
        "schema": SCHEMA,
        "since": iso(since),
        "until": iso(until),
        "users": [pick(UserTotalsOut, totals, user=name) for name, totals in users],
        "months": [pick(MonthTotalsOut, totals, month=name) for name, totals in months],
        "total": pick(UserTotalsOut, found.overall, user=""),
        "external": [pick(ExternalTotalsOut, one) for one in external],
        "external_processes": [
            pick(ExternalSeenOut, one, gpu=gpu_ref(one.gpu, scene.gpus)) for one in latest
        ],
    }
    return answer(out)


def _count(totals: Totals, *states: JobState) -> int:
    return sum(count for state, count in totals.jobs if state in states)


@router.get("/report", responses={200: {"model": ReportOut}})
async def report(call: Caller, since: Moment = None, until: Moment = None) -> Response:
    """What a period was used for; by default the last seven days. Everyone may see totals. Users
    other than administrators see only themselves by name, and only their own jobs."""
    service, peer = call.service, call.peer
    scene = await service.scene()
    until_at = until or scene.now
    since_at = since or until_at - 7 * DAY_S
    user = None if peer.admin else peer.owner
    async with service.slow:
        out = await run_in_threadpool(
            lambda: reporting.report(service.store, scene, since_at, until_at, user)
        )
    return answer(out)


@router.get("/config", responses={200: {"model": ConfigOut}})
async def config(call: Caller) -> Response:
    service = call.service
    changes = None
    with suppress(CarmaError):  # first: it also looks which file there is
        changes = list(await run_in_threadpool(service.waiting_settings))
    out: ConfigOut = {
        "schema": SCHEMA,
        "settings": as_tree(service.settings),
        "origins": service.settings.origins,
        "path": service.config_path,
        "toml": dump(service.settings),
        "waiting": changes,
    }
    return answer(out)


@router.post("/config", responses={200: {"model": ConfigOut}})
async def set_config(call: Caller, body: ConfigIn) -> Response:
    """Change the settings file. In force at once; for administrators."""
    call.require_admin("change settings")
    if (change := call.service.set_policy) is None:
        raise CarmaError("settings cannot be changed here")
    await run_in_threadpool(change, body.policy, call.peer.user)
    return await config(call)


@router.get("/doctor", responses={200: {"model": DoctorOut}})
async def doctor(call: Caller) -> Response:
    """Check the daemon. Slow: a process loads every plugin."""
    service = call.service
    scene = await service.scene()
    async with service.slow:
        found = await run_in_threadpool(service.doctor, scene)
    settings = await run_in_threadpool(_check_settings, service)
    out: DoctorOut = {"schema": SCHEMA, "checks": [settings, *found]}
    return answer(out)


def _check_settings(service: Service) -> CheckOut:
    where = service.config_path or "no file: the defaults"
    try:
        changes = service.waiting_settings()
    except CarmaError as error:
        hint = f"{error.hint} Until then, carmad goes on with the settings it has.".strip()
        return verdict("settings", False, error.message, hint)
    if changes:
        detail = f"{where}; only a restart changes {'; '.join(changes)}"
        return verdict("settings", None, detail, "Restart carmad: running jobs continue.")
    return verdict("settings", True, where)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(call: Caller) -> Response:
    """Figures about the whole server, in Prometheus' text format; about users and jobs only if the
    settings say so. The reference lists them."""
    service = call.service
    scene = await service.scene()
    return await service.once(scene, "metrics", lambda: _metrics(service, scene))


def _metrics(service: Service, scene: Scene) -> Response:
    text = figures.page(_figures(service, scene), service.counts)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _figures(service: Service, scene: Scene) -> Iterator[figures.Figure]:
    yield declared.UP, (), 1
    yield declared.BUILD, (VERSION, scene.policy), 1
    yield declared.DEGRADED, (), bool(troubles_of(service, scene.unread))
    yield from figures.of_threads()
    yield from figures.of_disk(service.store.path)
    shown = service.settings.metrics
    yield from figures.of_scene(scene, shown.users, shown.jobs)
