"""A user's crontab, and what has become of its entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from carmad.core.types import JobId
from carmad.store.secrets import split
from carmad.store.sql import SqlStore
from carmad.threads import run_in_threadpool

log = logging.getLogger(__name__)

MOST = 50  # entries of a user
VARIABLES = ("env", "export")  # of a request

Secrets = dict[str, dict[str, dict[str, str]]]  # by an entry's key, and of `VARIABLES`


@dataclass(frozen=True, slots=True)
class Entry:
    schedule: str
    command: str  # as it is written
    job: dict[str, Any]  # the request that submits it, as of the API
    checked_at: float  # no earlier time is to come
    first: JobId | None = None  # the job, or the first task, of the latest run
    tasks: int = 1
    ran_at: float | None = None
    starting: bool = False  # carmad may have ended between a submission and this being kept
    skipped: int = 0  # times since then, as that run had not ended
    refused: str = ""  # why its latest job was not accepted

    def key(self, place: int) -> str:
        """Several may differ in their options alone."""
        return f"{place} {self.schedule} {self.command}"

    @property
    def its_jobs(self) -> range:
        return range(self.first, self.first + self.tasks) if self.first is not None else range(0)


@dataclass(frozen=True, slots=True)
class Crontab:
    uid: int
    gid: int
    text: str
    entries: tuple[Entry, ...]

    def edit(self, gid: int, text: str, entries: Sequence[Entry]) -> Crontab:
        """The new text. An entry of which only the options change keeps what has become of it."""
        known = {(each.schedule, each.command): each for each in self.entries}

        def keep(entry: Entry) -> Entry:
            old = known.get((entry.schedule, entry.command))
            return replace(old, job=entry.job) if old else entry

        return Crontab(self.uid, gid, text, tuple(map(keep, entries)))

    def change(self, at: int, **changes: Any) -> Crontab:
        """With changes to the entry at this index."""
        entries = list(self.entries)
        entries[at] = replace(entries[at], **changes)
        return replace(self, entries=tuple(entries))

    def dumps(self) -> str:
        return _FORM.dump_json(self).decode()

    @classmethod
    def loads(cls, text: str, secrets: Secrets | None = None) -> Crontab:
        """Raises ValueError."""
        bare, secrets = _FORM.validate_json(text), secrets or {}
        entries = (
            replace(each, job=_merge(each.job, secrets.get(each.key(place), {})))
            for place, each in enumerate(bare.entries)
        )
        return replace(bare, entries=tuple(entries))

    def split(self) -> tuple[Crontab, Secrets]:
        """Without what looks like a secret in its jobs' variables, and that."""
        found: Secrets = {}
        entries = []
        for place, entry in enumerate(self.entries):
            job, secrets = dict(entry.job), {}
            for part in VARIABLES:
                plain, secret = split(tuple(job.get(part, {}).items()))
                if secret:
                    job[part], secrets[part] = dict(plain), dict(secret)
            if secrets:
                found[entry.key(place)] = secrets
            entries.append(replace(entry, job=job))
        return replace(self, entries=tuple(entries)), found


def _merge(job: dict[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return job | {part: {**job.get(part, {}), **secret} for part, secret in secrets.items()}


_FORM = TypeAdapter(Crontab)


class Crontabs:
    """All users' crontabs, read once. As a context, it lets one change them at a time."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._known: dict[int, Crontab] | None = None
        self._changing = asyncio.Lock()

    async def ready(self) -> Mapping[int, Crontab]:
        """By the user's id."""
        if self._known is None:
            self._known = await run_in_threadpool(self._read)
        return self._known

    async def __aenter__(self) -> Crontabs:
        await self._changing.acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._changing.release()

    async def save(self, crontab: Crontab) -> None:
        known = dict(await self.ready())
        bare, secrets = crontab.split()
        text = bare.dumps() if crontab.entries else None
        await run_in_threadpool(self._store.save_crontab, crontab.uid, text, secrets)
        known[crontab.uid] = crontab
        self._known = {uid: each for uid, each in known.items() if each.entries}

    def _read(self) -> dict[int, Crontab]:
        found = {}
        for uid, (text, secrets) in self._store.crontabs().items():
            try:
                found[uid] = Crontab.loads(text, secrets)
            except (ValueError, TypeError, AttributeError):
                log.error("the crontab of uid %d is damaged, and is left out", uid)
        return found
