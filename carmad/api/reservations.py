"""GPUs kept for some users, or for maintenance; and those that users book for themselves."""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from math import inf
from typing import Annotated

from pydantic import Field, StringConstraints
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, answer, resource
from carmad.api.fairness import booking_hours
from carmad.api.gpus import is_named
from carmad.api.requests import Body, User
from carmad.api.wire import SCHEMA, Time, pick, stamp
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.gpuview import GpuView
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.messages import Reserved, Unreserved
from carmad.core.rules.limits import MOST, TIMES, Reservation, Slot, Subject, slots
from carmad.core.rules.share import DAY_S, HOUR_S
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.connections import Peer
from carmad.http.problems import Conflict, Forbidden, NotFound
from carmad.options import MAX_GPUS, MAX_TIME_S
from carmad.readable import duration
from carmad.threads import run_in_threadpool
from carmad.words import clock

GpuRef = Annotated[str, StringConstraints(max_length=128)]
WEEK_S = 7 * DAY_S
AHEAD_S = 14 * DAY_S  # bookings, which the page's calendar shows
MOST_EACH = 10  # bookings of a user
LATE_S = 60.0  # a start `now` may be so late when it arrives


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
    booked: bool  # by a user
    text: str
    in_the_way: list[str]  # what others' jobs may keep of it, in words


class BookingOut(TypedDict):
    """A limit of the caller's bookings. All of them hold; without one, nothing may be booked."""

    subject: str  # the user or @group that it is for
    gpu_hours: float
    gpu_hours_booked: float


class ReservationsOut(TypedDict):
    schema: int
    reservations: list[ReservationOut]
    booking: list[BookingOut]


class ReserveIn(Body):
    """`gpus` of the GPUs, or those named in `on`: by index, by UUID, or all. No users: for
    maintenance. `book`: for the caller, within the limit of bookings."""

    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)] | None = None
    on: Annotated[list[GpuRef], Field(min_length=1, max_length=128)] | None = None
    users: Annotated[list[User], Field(max_length=64)] = []  # noqa: RUF012 - pydantic copies it
    starts_at: Time
    lasts_s: Annotated[float, Field(ge=60, le=MAX_TIME_S)]
    weekly: bool = False
    book: bool = False


router = resource("/reservations", answers=ReservationsOut)


@router.get("")
async def reservations(call: Caller) -> Response:
    return await _reservations_answer(call)


@router.post("")
async def reserve(call: Caller, body: ReserveIn) -> Response:
    """Answers with the new reservation. Without `book`, for administrators."""
    if not body.book:
        call.require_admin("reserve GPUs; use `carma reserve --me` for yourself")
    users = await run_in_threadpool(_owners, tuple(dict.fromkeys(body.users)))
    async with call.service.booking:  # two at once could be within the limit one by one
        scene = await call.service.scene()
        wanted = await run_in_threadpool(reservation, body, scene, call.peer, users)
        await call.request(Reserved(call.service.now(), wanted))
        made = (await call.service.scene()).reservations
        if wanted not in (replace(each, idle_since=None) for each in made):
            raise Conflict("another reservation was made at the same time", "Try again.")
    return await _reservations_answer(call, wanted.id)


@router.post("/{id}/cancel")
async def cancel(call: Caller, id: int) -> Response:
    """Answers with those that remain. For administrators, and for users who booked it."""
    scene = await call.service.scene()
    found = next((each for each in scene.reservations if each.id == id), None)
    if found is None:
        raise NotFound(f"there is no reservation {id}", "See `carma reserve`.")
    if not (found.charged and found.admits(call.peer.owner)):
        call.require_admin("cancel others' reservations")
    await call.request(Unreserved(call.service.now(), id, call.peer.user))
    return await _reservations_answer(call)


async def _reservations_answer(call: Call, only: int | None = None) -> Response:
    scene = await call.service.scene()
    found = [each for each in reservations_out(scene) if only in (None, each["id"])]
    booking = [_booking_out(subject, scene) for subject in _subjects(call.peer, scene)]
    out: ReservationsOut = {"schema": SCHEMA, "reservations": found, "booking": booking}
    return answer(out)


def _booking_out(subject: Subject, scene: Scene) -> BookingOut:
    limit, booked = scene.gate.quotas.of(subject), booking_hours(subject, scene)
    hours = limit.booking or 0.0
    return pick(BookingOut, limit, gpu_hours=hours, gpu_hours_booked=round(booked, 4))


def _owners(names: Iterable[str]) -> tuple[Owner, ...]:
    """The accounts that have these names now. May ask a directory server."""

    def owner(name: str) -> Owner:
        try:
            return Owner(pwd.getpwnam(name).pw_uid, name)
        except KeyError:
            raise CarmaError(f"there is no user {name!r:.80}", "Check the name.") from None

    return tuple(map(owner, names))


def reservation(
    body: ReserveIn, scene: Scene, peer: Peer, users: Sequence[Owner] = ()
) -> Reservation:
    """What is asked for, on GPUs that no other reservation has then; without `book`, for these
    users. Raises CarmaError."""
    if body.book and body.users:
        raise CarmaError("a booking is for yourself", "Leave out the users.")
    subjects = _subjects(peer, scene) if body.book else ()
    if body.book and not subjects:
        raise Forbidden(
            f"{peer.user} may not book GPUs",
            "An administrator can allow it: carma limit WHO --booking GPU-HOURS.",
        )
    if (body.gpus is None) == (body.on is None):
        raise CarmaError("say how many GPUs, or which", "Use --gpus 2, or --on 0,1.")
    if body.starts_at < scene.now - LATE_S:
        raise CarmaError(f"{clock(body.starts_at)} is over", "Choose a later start.")
    if body.weekly and body.lasts_s > WEEK_S:
        raise CarmaError("it would last longer than a week", "Leave out --weekly.")
    if len(scene.reservations) >= MOST:
        raise CarmaError(f"there are {MOST} reservations", "Cancel one: carma reserve --cancel ID.")
    id = max((each.id for each in scene.reservations), default=0) + 1
    starts = _weekly(body.starts_at) if body.weekly else (body.starts_at,)
    whose = (peer.owner,) if body.book else users
    charged = tuple(scene.gate.quotas.of(one).subject for one in subjects)
    wish = Reservation(
        id,
        gpus=(),
        users=tuple(one.user for one in whose),
        starts=starts,
        lasts_s=body.lasts_s,
        by=peer.user,
        charged=charged,
        uids=tuple(one.uid for one in whose),
    )
    chosen = _refer(body.on, scene) if body.on else _free(body.gpus or 1, wish, scene)
    made = replace(wish, gpus=chosen)
    if met := [each for each in scene.reservations if made.meets(each)]:
        raise _conflict("these GPUs are reserved then", met)
    _require_modesty(made, subjects, peer, scene)
    return made


def _subjects(peer: Peer, scene: Scene) -> tuple[Subject, ...]:
    """The user and the groups whose limits of bookings apply to the user."""
    groups = (f"@{group}" for group in peer.groups)
    limited = (group for group in groups if group in scene.limits)
    subjects: tuple[Subject, ...] = (peer.owner, *limited)
    return tuple(one for one in subjects if scene.gate.quotas.of(one).booking is not None)


def _require_modesty(
    made: Reservation, subjects: Iterable[Subject], peer: Peer, scene: Scene
) -> None:
    """Raises CarmaError if a booking is too early, too much, or one too many."""
    if not made.charged:
        return
    if made.starts[-1] + made.lasts_s > scene.now + AHEAD_S:
        days = AHEAD_S / DAY_S
        raise CarmaError(f"it would end in more than {days:g} days", "Book it later, or for less.")
    mine = [one for one in scene.reservations if one.charged and one.admits(peer.owner)]
    if len(mine) >= MOST_EACH:
        raise CarmaError(f"you have {MOST_EACH} bookings", "Cancel one: carma reserve --cancel ID.")
    hours = made.gpu_s_left(scene.now) / HOUR_S
    for subject in subjects:
        its = _booking_out(subject, scene)
        if its["gpu_hours_booked"] + hours > its["gpu_hours"]:
            raise CarmaError(
                f"{its['subject']} may book {its['gpu_hours']:g} GPU-hours, has booked"
                f" {its['gpu_hours_booked']:.4g}, and this takes {hours:.4g}",
                "Book less, or cancel a booking: see `carma reserve --me`.",
            )


def _weekly(first: float) -> tuple[float, ...]:
    """At the same hour by the server's clock, whatever the season."""
    local = datetime.fromtimestamp(first)
    return tuple((local + timedelta(weeks=n)).timestamp() for n in range(TIMES))


def _refer(refs: Sequence[str], scene: Scene) -> tuple[GpuId, ...]:
    """The GPUs that are named. Raises CarmaError if one does not exist."""
    gpus = scene.gpus.values()
    for ref in refs:
        if not any(is_named(gpu, ref) for gpu in gpus):
            raise CarmaError(f"there is no GPU {ref!r:.80}", "See `carma gpus`.")
    return tuple(gpu.id for gpu in gpus if any(is_named(gpu, ref) for ref in refs))


def _free(number: int, wish: Reservation, scene: Scene) -> tuple[GpuId, ...]:
    def others_on(gpu: GpuId) -> list[Reservation]:
        alone = replace(wish, gpus=(gpu,))
        return [each for each in scene.reservations if alone.meets(each)]

    best = by_suitability(scene.view.gpus, wish, scene.now)
    if number > len(best):
        raise CarmaError(f"there are only {len(best)} GPUs", "Reserve fewer.")
    taken = {gpu: others for gpu in best if (others := others_on(gpu))}
    free = [gpu for gpu in best if gpu not in taken]
    if number > len(free):
        by = dict.fromkeys(chain.from_iterable(taken.values()))
        raise _conflict(f"only {len(free)} of {len(best)} GPUs are not reserved then", by)
    return tuple(gpu for gpu in scene.gpus if gpu in free[:number])


def _conflict(what: str, by: Iterable[Reservation]) -> CarmaError:
    names = ", ".join(f"{each.id} ({each.whose})" for each in by)
    return CarmaError(f"{what}, by {names}", "See `carma reserve`, and choose another time.")


def reservations_out(scene: Scene) -> list[ReservationOut]:
    """The next one first."""
    made = [
        _reservation_out(each, scene) for each in scene.reservations if each.next_start(scene.now)
    ]
    return sorted(made, key=lambda each: each["starts_at"])


def _reservation_out(each: Reservation, scene: Scene) -> ReservationOut:
    now = scene.now
    (slot,) = slots((each,), each.gpus[0], now)
    left = sum(start >= slot.starts_at for start in each.starts)
    gpus = [scene.gpus.get(gpu) for gpu in each.gpus]
    weekly = f", weekly until {clock(each.starts[-1])}" if left > 1 else ""
    when = f"{clock(slot.starts_at)} for {duration(each.lasts_s)}{weekly}"
    lapses_at = each.lapses_at()
    unused = f"; not used, so it ends at {clock(lapses_at)}" if lapses_at is not None else ""
    return {
        "id": each.id,
        "gpus": list(each.gpus),
        "indices": [gpu.index if gpu else None for gpu in gpus],
        "users": list(each.users),
        "starts_at": stamp(slot.starts_at),
        "ends_at": stamp(slot.ends_at),
        "times_left": left,
        "active": not slot.in_s,
        "by": each.by,
        "booked": bool(each.charged),
        "text": f"{_where(gpus)} for {each.whose}, from {when}{unused}",
        "in_the_way": [
            f"job {label(job)} of {job.spec.user} "
            + ("is still there" if not slot.in_s else "may still be there then")
            for job in scene.view.running
            if not set(job.gpus).isdisjoint(each.gpus) and is_in_the_way(job, slot, now)
        ],
    }


def _where(gpus: Sequence[Gpu | None]) -> str:
    names = ", ".join(str(gpu.index) if gpu else "(gone)" for gpu in gpus)
    return f"GPU {names}" if len(gpus) == 1 else f"GPUs {names}"


def is_in_the_way(job: Job, slot: Slot, now: float) -> bool:
    """Whether a running job may still be on the GPU when this begins, or is there meanwhile."""
    return not slot.of.admits(job.spec.owner) and job.at_most_s(now) > slot.in_s


def by_suitability(gpus: Iterable[GpuView], wish: Reservation, now: float) -> list[GpuId]:
    """All of them, the best for a reservation first: usable ones, then those that are free by its
    start, then the last in order, as policies take the first."""
    in_s = wish.starts[0] - now

    def rank(gpu: GpuView) -> tuple[bool, bool, int]:
        broken = gpu.drained is not None or bool(gpu.sample and gpu.sample.fault)
        others = [job for job in gpu.residents if not wish.admits(job.spec.owner)]
        latest_s = max((job.at_most_s(now) for job in others), default=-inf)
        return broken, latest_s > in_s, -gpu.gpu.index

    return [gpu.id for gpu in sorted(gpus, key=rank)]
