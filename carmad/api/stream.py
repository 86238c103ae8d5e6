"""The stream of what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Annotated

from fastapi import Header
from starlette.responses import Response, StreamingResponse

from carmad.api.call import Call, Caller, Moment, Select, Word, resource
from carmad.api.events import EventOut, Events, sse
from carmad.api.wire import parse_selection, stamp
from carmad.core.happenings import Happening, Kind
from carmad.core.jobs.job import Job
from carmad.core.jobs.tasks import JobsById
from carmad.http.problems import TooMany

router = resource()

ALIVE_S = 15.0  # between two signs of life
REFUSED_FOR_S = 10.0
AT_ONCE = 64  # rendered without letting others go on
MISSED = "some events are missing: this daemon does not remember them"


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


@router.get("/events", response_class=EventStream, responses={200: {"model": EventOut}})
async def events(
    call: Caller,
    select: Select = None,
    user: Word = None,
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
    if not known.is_room(call.turn.share.user):
        raise TooMany("you are watching in too many places", REFUSED_FOR_S)
    place = known.place
    lost = False
    if last_event_id:
        found = known.after(last_event_id)
        place, lost = (known.since(0.0), True) if found is None else (found, False)
    elif since is not None:
        place = known.since(since)
    wanted = None
    if select is not None:
        scene = await call.service.scene()
        found_jobs = await call.select(parse_selection(select), scene)
        wanted = Wanted(found_jobs)
    return EventStream(_stream(call, known, place, lost, user, wanted))


class Wanted:
    """The jobs that a stream is about, and those of them that have not ended."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = JobsById(jobs)
        self._going_on = JobsById(job for job in self._jobs.rows.values() if not job.ended)

    @property
    def are_over(self) -> bool:
        return not self._going_on

    def has(self, happening: Happening) -> bool:
        """Notes an end, too."""
        job = happening.job
        if job is None or next(self._jobs.within(job.ids), None) is None:
            return False
        if happening.kind is Kind.ENDED:
            self._going_on.forget(job.ids)
        return True

    def look_at(self, live: JobsById) -> None:
        """Learn from the jobs that have not ended which of these have."""
        parts = (part for row in self._jobs.rows.values() for part in live.parts(row.ids))
        self._going_on = JobsById(parts)


async def _stream(
    call: Call, known: Events, place: int, lost: bool, user: str | None, wanted: Wanted | None
) -> AsyncIterator[bytes]:
    service = call.service
    with known.stream(call.turn.share.user) as news:
        async with call.turn.rest():
            yield sse(_mark(known, place, call, "watching"))
            while not service.stopping:
                news.clear()
                begin, found = known.read(place, AT_ONCE)
                if lost or begin > place:
                    place, lost = begin, False
                    yield sse(_mark(known, place, call, "missed", MISSED))
                    if wanted is not None:  # their ends may be among what is missing
                        wanted.look_at((await service.scene()).live)
                    continue
                for place, each in enumerate(found, begin + 1):
                    is_theirs = user is None or each.job is None or each.job.spec.user == user
                    if is_theirs and (wanted is None or wanted.has(each)):
                        sees = each.job is None or call.may_touch(each.job)
                        yield known.text(place, each, sees)
                if not found:
                    if wanted is not None and wanted.are_over:
                        yield sse(_mark(known, place, call, "over"))
                        return
                    try:
                        async with asyncio.timeout(ALIVE_S):
                            await news.wait()
                    except TimeoutError:
                        yield b":\n\n"
                await asyncio.sleep(0)  # what happens meanwhile is sent along


def _mark(known: Events, place: int, call: Call, event: str, text: str = "") -> EventOut:
    """About the stream itself."""
    at = stamp(call.service.now())
    return {"id": known.name(place), "at": at, "event": event, "text": text}
