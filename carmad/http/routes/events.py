"""The stream of what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from carmad.api.happenings import event_out
from carmad.api.responses.jobs import EventOut
from carmad.api.select import parse_selection
from carmad.api.times import parse_time, stamp
from carmad.core.happenings import Happening, Kind
from carmad.http import lookup
from carmad.http.answers import PROBLEMS, Asked, Call
from carmad.http.events import Events
from carmad.http.listing import as_json
from carmad.http.problems import TooMany
from carmad.http.routes.jobs import Moment, Select

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)

ALIVE_S = 15.0  # between two signs of life
REFUSED_FOR_S = 10.0
AT_ONCE = 64  # rendered without letting others go on
MISSED = "some events are missing: this daemon does not remember them"


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


@router.get("/events", response_class=EventStream, responses={200: {"model": EventOut}})
async def events(
    call: Asked,
    select: Select = None,
    user: Annotated[str | None, Query(max_length=256)] = None,
    since: Moment = None,
    last_event_id: Annotated[str | None, Header(max_length=64, pattern="^[0-9-]*$")] = None,
) -> Response:
    """What happens, as server-sent events; what the caller may know of others' jobs is what a
    listing shows. The first says where the stream begins: now, at `since`, or after
    `Last-Event-ID`. The daemon remembers the latest few thousand.

    `select`: only of these jobs; once all of them have ended, the stream ends with `over`. `user`:
    only this user's.
    """
    known = call.service.events
    if not known.is_room(call.turn.payer):
        raise TooMany("you are watching in too many places", REFUSED_FOR_S)
    place = known.place
    lost = False
    if last_event_id:
        found = known.after(last_event_id)
        place, lost = (known.since(0.0), True) if found is None else (found, False)
    elif (since_at := parse_time(since)) is not None:
        place = known.since(since_at)
    wanted = None
    if select is not None:
        scene = await call.service.scene()
        found_jobs = await lookup.select(call, parse_selection(select), scene)
        going_on = {id for job in found_jobs if not job.ended for id in job.ids}
        wanted = Wanted({id for job in found_jobs for id in job.ids}, going_on)
    return EventStream(_stream(call, known, place, lost, user, wanted))


class Wanted:
    """The jobs that a stream is about, and those of them that have not ended."""

    def __init__(self, jobs: set[int], going_on: set[int]) -> None:
        self.jobs = jobs
        self.going_on = going_on

    def has(self, happening: Happening) -> bool:
        """Notes an end, too."""
        job = happening.job
        if job is None or self.jobs.isdisjoint(job.ids):
            return False
        if happening.kind is Kind.ENDED:
            self.going_on.difference_update(job.ids)
        return True


async def _stream(
    call: Call, known: Events, place: int, lost: bool, user: str | None, wanted: Wanted | None
) -> AsyncIterator[bytes]:
    service = call.service
    with known.stream(call.turn.payer) as news:
        async with call.turn.rest():
            yield _written(_mark(known, place, call, "watching"))
            while not service.stopping:
                news.clear()
                begin, found = known.read(place, AT_ONCE)
                if lost or begin > place:
                    place, lost = begin, False
                    yield _written(_mark(known, place, call, "missed", MISSED))
                    if wanted is not None:  # their ends may be among what is missing
                        wanted.going_on = wanted.jobs & (await service.scene()).live.keys()
                    continue
                place = begin + len(found)
                if piece := b"".join(_rendered(call, known, begin, found, user, wanted)):
                    yield piece
                if found:
                    await asyncio.sleep(0)  # there may be thousands, and others wait
                    continue
                if wanted is not None and not wanted.going_on:
                    yield _written(_mark(known, place, call, "over"))
                    return
                try:
                    await asyncio.wait_for(news.wait(), ALIVE_S)
                except TimeoutError:
                    yield b":\n\n"


def _rendered(
    call: Call,
    known: Events,
    begin: int,
    found: list[Happening],
    user: str | None,
    wanted: Wanted | None,
) -> Iterator[bytes]:
    for place, each in enumerate(found, begin + 1):
        if wanted is not None and not wanted.has(each):
            continue
        if user is not None and each.job is not None and each.job.spec.user != user:
            continue
        sees = each.job is None or call.may_touch(each.job)
        yield _written(event_out(each, known.name(place), known.gpus, sees))


def _mark(known: Events, place: int, call: Call, event: str, text: str = "") -> EventOut:
    """About the stream itself."""
    at = stamp(call.service.now())
    return {"id": known.name(place), "at": at, "event": event, "text": text}


def _written(event: EventOut) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (event["id"].encode(), as_json(event))
