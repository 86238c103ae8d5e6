"""Reservations: from a request to the core's value, and from there to the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from carmad.api.render import label
from carmad.api.requests import ReserveIn
from carmad.api.responses.reservations import ReservationOut
from carmad.api.times import stamp
from carmad.core.reservations import MOST, TIMES, Reservation, in_the_way, slots, suited
from carmad.core.scene import Scene
from carmad.core.types import Gpu, GpuId
from carmad.errors import CarmaError
from carmad.readable import duration
from carmad.words import clock

WEEK_S = 7 * 86_400.0
LATE_S = 60.0  # a start `now` may be so late when it arrives


def reservation(
    body: ReserveIn, scene: Scene, by: str, named: Callable[[Gpu, str], bool]
) -> Reservation:
    """What is asked for, on GPUs that no other reservation has then. Raises CarmaError.

    `named`: whether this is a GPU's name."""
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
    wish = Reservation(id, (), tuple(dict.fromkeys(body.users)), starts, body.lasts_s, by)
    chosen = _named(body.on, scene, named) if body.on else _free(body.gpus or 1, wish, scene)
    made = replace(wish, gpus=chosen)
    if met := [each for each in scene.reservations if made.meets(each)]:
        raise _taken("these GPUs are reserved then", met)
    return made


def _weekly(first: float) -> tuple[float, ...]:
    """At the same hour by the server's clock, whatever the season."""
    local = datetime.fromtimestamp(first)
    return tuple((local + timedelta(weeks=n)).timestamp() for n in range(TIMES))


def _named(
    refs: Sequence[str], scene: Scene, named: Callable[[Gpu, str], bool]
) -> tuple[GpuId, ...]:
    gpus = scene.gpus.values()
    for ref in refs:
        if not any(named(gpu, ref) for gpu in gpus):
            raise CarmaError(f"there is no GPU {ref!r:.80}", "See `carma gpus`.")
    return tuple(gpu.id for gpu in gpus if any(named(gpu, ref) for ref in refs))


def _free(number: int, wish: Reservation, scene: Scene) -> tuple[GpuId, ...]:
    def met(gpu: GpuId) -> list[Reservation]:
        alone = replace(wish, gpus=(gpu,))
        return [each for each in scene.reservations if alone.meets(each)]

    best = suited(scene.view.gpus, wish, scene.now)
    if number > len(best):
        raise CarmaError(f"there are only {len(best)} GPUs", "Reserve fewer.")
    taken = {gpu: others for gpu in best if (others := met(gpu))}
    free = [gpu for gpu in best if gpu not in taken]
    if number > len(free):
        by = dict.fromkeys(chain.from_iterable(taken.values()))
        raise _taken(f"only {len(free)} of {len(best)} GPUs are not reserved then", by)
    return tuple(gpu for gpu in scene.gpus if gpu in free[:number])


def _taken(what: str, by: Iterable[Reservation]) -> CarmaError:
    names = ", ".join(f"{each.id} ({each.whose})" for each in by)
    return CarmaError(f"{what}, by {names}", "See `carma reserve`, and choose another time.")


def reservations_out(scene: Scene) -> list[ReservationOut]:
    """The next one first."""
    made = [_out(each, scene) for each in scene.reservations if each.next_start(scene.now)]
    return sorted(made, key=lambda each: each["starts_at"])


def _out(each: Reservation, scene: Scene) -> ReservationOut:
    now = scene.now
    (slot,) = slots((each,), each.gpus[0], now)
    left = sum(start >= slot.starts_at for start in each.starts)
    gpus = [scene.gpus.get(gpu) for gpu in each.gpus]
    weekly = f", weekly until {clock(each.starts[-1])}" if left > 1 else ""
    when = f"{clock(slot.starts_at)} for {duration(each.lasts_s)}{weekly}"
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
        "text": f"{_where(gpus)} for {each.whose}, from {when}",
        "in_the_way": [
            f"job {label(job)} of {job.spec.user} "
            + ("is still there" if not slot.in_s else "may still be there then")
            for job in scene.view.running
            if not set(job.gpus).isdisjoint(each.gpus) and in_the_way(job, slot, now)
        ],
    }


def _where(gpus: Sequence[Gpu | None]) -> str:
    names = ", ".join(str(gpu.index) if gpu else "(gone)" for gpu in gpus)
    return f"GPU {names}" if len(gpus) == 1 else f"GPUs {names}"
