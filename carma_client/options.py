"""The options of a job, by the names that the HTTP API has for them. For type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict


class After(TypedDict):
    job: str
    kind: NotRequired[Literal["afterok", "afterany", "afternotok"]]


class Warn(TypedDict):
    signum: int
    before_s: float


class Array(TypedDict):
    indices: Sequence[int]
    limit: NotRequired[int | None]
    params: NotRequired[Mapping[str, Sequence[str]]]


class Options(TypedDict, total=False):
    """What they mean: docs/reference/commands.md, `carma submit`. `cwd`, `env`, `umask`
    and `limits` are this process's unless given; `export` is added to `env`, and kept where CARMA
    leaves variables out."""

    name: str | None
    unless_running: str | None  # Refused with the code "running" while a job has this name
    cwd: str
    env: Mapping[str, str]
    export: Mapping[str, str]
    umask: str
    limits: Mapping[str, int]
    gpus: int
    constraint: str | None
    on: str | None
    not_on: str | None
    memory_mib: int | None  # 0: what earlier runs used (`--gpu-mem auto`)
    batch_size: int | None
    cpus: int | None
    host_memory_mib: int | None
    exclusive: bool
    time_limit_s: float | None
    warn: Warn | None
    expected_s: float | None
    deadline_at: str | None
    amp: bool
    cold_start_s: float
    layout: Mapping[str, Any] | None
    stage_times: Sequence[Mapping[str, Any]]
    watch_stages: bool
    array: Array | None
    after: Sequence[After]
    begin_at: str | None
    held: bool
    nice: int
    urgent: bool
    stdout: str | None
    stderr: str | None
    conda_env: str | None
    container: str | None
    requeue: bool
    retry_on: str | None
    requeue_ok: bool
    notify: str | None
    mail_user: str | None
    comment: str | None
    idle_ok: str | None
