"""Answers about fair shares."""

from __future__ import annotations

from typing_extensions import TypedDict


class ShareOut(TypedDict):
    user: str
    group: str  # that the user shares with; "": none
    weight: float
    gpu_hours: float  # of late: halved with every half-life
    gpus: float  # held now, shared ones in part
    rank: int  # in line, among users; the lowest goes first, 0: has used nothing
    waiting: int  # jobs


class SharesOut(TypedDict):
    schema: int
    enabled: bool
    half_life_days: float
    users: list[ShareOut]  # by rank
