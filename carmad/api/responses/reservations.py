"""Answers about reservations."""

from __future__ import annotations

from typing_extensions import TypedDict


class ReservationOut(TypedDict):
    id: int
    gpus: list[str]
    indices: list[int | None]  # of the same GPUs; None: it is gone
    users: list[str]  # none: it is maintenance
    starts_at: str  # of the present or the next time
    ends_at: str
    times_left: int  # of a weekly one, this one included
    active: bool
    by: str
    text: str
    in_the_way: list[str]  # what others' jobs may keep of it, in words


class ReservationsOut(TypedDict):
    schema: int
    reservations: list[ReservationOut]
