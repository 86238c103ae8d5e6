"""Answers about fair shares and limits."""

from __future__ import annotations

from typing_extensions import TypedDict


class ShareOut(TypedDict):
    user: str
    group: str  # that the user shares with; "": none
    weight: float
    gpu_hours: float  # of late, with what jobs without GPUs count as: halved with every half-life
    gpus: float  # held now, shared ones in part
    host_gpus: float  # GPUs that the user's running jobs without GPUs count as
    rank: int  # in line, among users; the lowest goes first, 0: has used nothing
    waiting: int  # jobs
    urgent_gpu_hours: float  # used by urgent jobs in the last seven days


class SharesOut(TypedDict):
    schema: int
    enabled: bool
    half_life_days: float
    urgent_gpu_hours: float  # that each user may use for urgent jobs in seven days
    users: list[ShareOut]  # by rank


class LimitOut(TypedDict):
    subject: str  # a user, "@group" or "default"
    gpus: int | None
    gpu_hours: float | None
    per: str  # of the GPU-hours: day, week or month
    jobs: int | None
    set_by: str | None  # None: the settings
    set_at: str | None


class LimitedOut(LimitOut):
    gpus_held: int
    gpu_hours_used: float | None


class LimitsOut(TypedDict):
    schema: int
    limits: list[LimitedOut]


class LimitChangesOut(TypedDict):
    schema: int
    limit: LimitedOut
    changes: list[LimitOut]  # the newest first; for administrators
