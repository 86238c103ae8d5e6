"""Answers about the daemon and the server: health, status, statistics, settings, diagnosis."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from carmad.api.responses.decisions import GpuRefOut
from carmad.api.responses.gpus import GpuOut
from carmad.api.responses.jobs import JobOut


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
    jobs: int
    succeeded: int
    failed: int
    oom: int
    gpu_hours: float
    energy_kwh: float
    wait_mean_s: float | None
    wait_p95_s: float | None
    run_mean_s: float | None


class UserTotalsOut(TotalsOut):
    user: str


class MonthTotalsOut(TotalsOut):
    month: str  # as 2026-11, in the server's time zone


class ExternalTotalsOut(TypedDict):
    """A user's processes outside of the queue; one on two GPUs counts twice."""

    user: str
    processes: int
    gpu_hours: float
    peak_mib: int | None  # null: not known


class ExternalSeenOut(TypedDict):
    gpu: GpuRefOut
    pid: int
    user: str
    command: str
    seen_from: str  # on that GPU
    seen_to: str
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
    """`settings` follows the settings file, whose names `schema` does not cover."""

    schema: int
    settings: dict[str, Any]
    path: str | None
    toml: str | None


class CheckOut(TypedDict):
    name: str
    ok: bool | None  # None: it works, and could be better
    detail: str
    hint: str


class DoctorOut(TypedDict):
    schema: int
    checks: list[CheckOut]
