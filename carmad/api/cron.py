"""Recurring jobs: users' crontabs, and the clock that submits what is due, as its owner.

An entry has one run at a time: while one has not ended, the next is left out. What came due while
carmad was down runs once, late. That a run begins is on disk before it is submitted, so that a
daemon that is killed in between looks for its job, and neither loses nor doubles it.
"""

from __future__ import annotations

import asyncio
import logging
import pwd
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.datastructures import State
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, Word, answer, resource
from carmad.api.intake import check, enqueue
from carmad.api.requests import Body, Name, SubmitIn, Text
from carmad.api.wire import SCHEMA, iso, stamp
from carmad.core.types import Job, JobId
from carmad.cron.crontab import MOST, Crontab, Crontabs, Entry
from carmad.cron.schedule import next_time
from carmad.errors import CarmaError
from carmad.http.connections import Credentials, Peer
from carmad.http.problems import NotFound, TooLarge
from carmad.options import MAX_SCRIPT_BYTES
from carmad.threads import run_in_threadpool

log = logging.getLogger(__name__)

router = resource("/cron")

TICK_S = 2.0
MAX_BYTES = 1 << 20  # of a crontab, with what its jobs are given: it is written at each run
DIFFERENT = ("after", "begin_at", "deadline_at", "held", "interactive", "dry_run")


class EntryOut(TypedDict):
    schedule: str
    command: str
    next_at: str
    ran_at: str | None  # the latest run
    job: int | None  # of it, or its array
    state: str | None  # of this job; None: it is forgotten
    skipped: int  # times since then, as it had not ended
    refused: str | None  # why the latest job was not accepted


class CronOut(TypedDict):
    schema: int
    user: str
    text: str
    entries: list[EntryOut]


class EntryIn(Body):
    schedule: Annotated[Text, Field(max_length=256)]
    command: Annotated[Text, Field(max_length=10_000)]
    job: SubmitIn


class CronIn(Body):
    """All of a crontab, in place of the earlier one. No entries: there is none any more."""

    text: Annotated[Text, Field(max_length=MAX_SCRIPT_BYTES)]
    entries: Annotated[list[EntryIn], Field(max_length=10 * MOST)]
    user: Name | None = None


@router.get("", responses={200: {"model": CronOut}})
async def crontab(call: Caller, user: Word = None) -> Response:
    """The caller's crontab; for administrators, also another `user`'s."""
    return await _answer(call, await _peer(call, user))


@router.post("", responses={200: {"model": CronOut}})
async def edit(call: Caller, body: CronIn) -> Response:
    """Replace the crontab. Administrators can only remove another `user`'s."""
    peer = await _peer(call, body.user)
    if peer != call.peer and body.entries:
        raise CarmaError("another user's crontab can only be removed", "Ask them to change it.")
    if len(body.entries) > MOST:
        raise TooLarge(
            f"a crontab has at most {MOST} entries", "Let one command do several things."
        )
    now, entries = call.service.now(), []
    for one in body.entries:
        next_time(one.schedule, now)
        if odd := [name for name in DIFFERENT if getattr(one.job, name)]:
            raise CarmaError(
                f"{one.command!r:.80}: a recurring job has no {', '.join(odd)}", "Leave it out."
            )
        await check(call, one.job)
        job = one.job.model_dump(mode="json", exclude_unset=True)
        entries.append(Entry(one.schedule, one.command, job, now))
    async with call.service.crontabs as kept:
        known = await kept.ready()
        old = known.get(peer.uid) or Crontab(peer.uid, peer.gid, "", ())
        new = old.edit(peer.gid, body.text, entries)
        if len(new.dumps()) > MAX_BYTES:
            raise TooLarge(
                "the crontab and the environment of each entry take more than 1 MiB",
                "Have fewer entries, or change it in a shell with fewer variables.",
            )
        await kept.save(new)
    log.info("%s changes the crontab of %s: %d entries", call.peer.user, peer.user, len(entries))
    return await _answer(call, peer)


async def _peer(call: Call, user: str | None) -> Peer:
    if user is None or user == call.peer.user:
        return call.peer
    call.require_admin("see others' crontabs")
    return await run_in_threadpool(_look_up, user)


def _look_up(user: str) -> Peer:
    """May ask a directory server. Raises NotFound."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise NotFound(f"there is no user {user!r:.80}", "Check the name.") from None
    return Peer(found.pw_uid, found.pw_gid, user, admin=False)


async def _answer(call: Call, peer: Peer) -> Response:
    found = (await call.service.crontabs.ready()).get(peer.uid)
    entries = found.entries if found else ()
    jobs = await _latest(call, entries)
    out: CronOut = {
        "schema": SCHEMA,
        "user": peer.user,
        "text": found.text if found else "",
        "entries": [_entry_out(one, jobs) for one in entries],
    }
    return answer(out)


async def _latest(call: Call, entries: Sequence[Entry]) -> dict[int, Job]:
    ids = [one.first for one in entries if one.first is not None]
    jobs = await run_in_threadpool(call.service.store.rows, ids) if ids else []
    return {job.id: job for job in jobs}


def _entry_out(entry: Entry, jobs: Mapping[int, Job]) -> EntryOut:
    job = jobs.get(entry.first) if entry.first is not None else None
    return {
        "schedule": entry.schedule,
        "command": entry.command,
        "next_at": stamp(next_time(entry.schedule, entry.checked_at)),
        "ran_at": iso(entry.ran_at) if entry.ran_at is not None else None,
        "job": job.spec.array.array if job and job.spec.array else entry.first,
        "state": str(job.state) if job else None,
        "skipped": entry.skipped,
        "refused": entry.refused or None,
    }


async def keep_time(state: State) -> None:
    """Submit what is due, as long as the server runs. `state`: the app's."""
    while True:
        try:
            await asyncio.sleep(TICK_S)
            await _submit_due(state)
        except CarmaError as error:  # the disk is full, or the daemon stops
            log.warning("recurring jobs: %s", error)
        except Exception:
            log.exception("recurring jobs")


async def _submit_due(state: State) -> None:
    service = state.service
    async with service.crontabs as kept:
        now = service.now()
        due = [
            (crontab, at)
            for crontab in (await kept.ready()).values()
            for at, entry in enumerate(crontab.entries)
            if entry.starting or next_time(entry.schedule, entry.checked_at) <= now
        ]
        for crontab, at in due:
            peer = await state.peers.peer(Credentials(crontab.uid, crontab.gid))
            call = Call(service, peer, state.shares.of(crontab.uid).turn(), 0)
            await _submit(call, kept, (await kept.ready())[crontab.uid], at)


async def _submit(call: Call, kept: Crontabs, crontab: Crontab, at: int) -> None:
    entry, now = crontab.entries[at], call.service.now()

    async def change(**changes: Any) -> None:
        nonlocal crontab
        crontab = crontab.change(at, checked_at=now, **changes)
        await kept.save(crontab)

    if entry.starting and (found := await _find(call, entry)) is not None:
        await change(starting=False, first=found, tasks=1)
        return
    scene = await call.service.scene()
    if any(JobId(id) in scene.live for id in entry.its_jobs):
        await change(skipped=entry.skipped + 1)
        return
    await change(starting=True, ran_at=now, refused="")
    try:
        _, ids = await enqueue(call, SubmitIn.model_validate(entry.job))
    except (CarmaError, ValueError) as error:
        log.info("a recurring job of %s is refused: %s", call.peer.user, error)
        await change(starting=False, refused=f"{error}"[:500])
        return
    await change(starting=False, first=ids[0], tasks=len(ids), skipped=0)


async def _find(call: Call, entry: Entry) -> JobId | None:
    """The job of a run that may have been submitted before carmad was killed."""
    argv, since = tuple(entry.job["argv"]), entry.ran_at or 0.0
    store, user = call.service.store, call.peer.user
    jobs = await run_in_threadpool(lambda: store.history(user=user, since=since))
    made = (job for job in jobs if job.submitted_at >= since and job.spec.argv == argv)
    found = next(made, None)
    return None if found is None else JobId(found.id)
