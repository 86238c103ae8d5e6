"""Who connects, according to the kernel, and how many connections each user may hold.

Each connection takes one of the process's file descriptors, and nothing works without those.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from carmad.accounts import groups_of
from carmad.core.jobs.spec import Owner
from carmad.threads import run_in_threadpool

REMEMBERED_S = 30.0  # the longest that a change goes unnoticed while the user database answers
PATIENT_S = 1.0  # for who was known before: then the earlier answer counts
MOST_REMEMBERED = 10_000
AT_ONCE = 8  # that are looked up, of the threads that answer requests

PER_USER = 256
FEW = 8  # connections, that every user may have as long as there are any
PART_OF_FEW = 8  # one in so many is for users with few
MOST = 4096  # of all users: each takes memory, too
KEPT_BACK = 256  # descriptors for the daemon itself, root and its own user
FREE = frozenset({0, os.geteuid()})  # who could stop the daemon anyway


@dataclass(frozen=True, slots=True)
class Credentials:
    """SO_PEERCRED at the time of the connection. The pid may have been reused since."""

    uid: int
    gid: int
    pid: int = field(default=0, compare=False)  # 0: not in our pid namespace


@dataclass(frozen=True, slots=True)
class Peer:
    uid: int
    gid: int
    user: str
    admin: bool
    named: bool = True  # False: the uid has no passwd entry, and `user` only spells it
    groups: tuple[str, ...] = ()  # the names of all its groups, the primary one first

    @property
    def owner(self) -> Owner:
        """As `JobSpec.owner`, of its jobs."""
        return Owner(self.uid, self.user)


def user_of(uid: int) -> tuple[str, bool]:
    """The user's name, and whether there is one: else it only spells the uid."""
    try:
        return pwd.getpwuid(uid).pw_name, True
    except KeyError:
        return f"uid {uid}", False


class Peers:
    """Looks users up outside the event loop, as the answer may come from a directory server."""

    def __init__(self, admin_group: str) -> None:
        self._admin_group = admin_group
        self._daemon_uid = os.geteuid()
        self._known: dict[Credentials, tuple[float, Peer]] = {}
        self._asked: dict[Credentials, asyncio.Future[Peer]] = {}
        self._looking = asyncio.Semaphore(AT_ONCE)

    async def peer(self, credentials: Credentials) -> Peer:
        known = self._known.get(credentials)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        asked = self._asked.get(credentials)
        if asked is None:  # once for all of its connections
            asked = asyncio.ensure_future(self._ask(credentials))
            self._asked[credentials] = asked
            asked.add_done_callback(lambda _: self._asked.pop(credentials, None))
        if known is not None:
            await asyncio.wait((asked,), timeout=PATIENT_S)
            if not asked.done():
                return known[1]
        peer = await asyncio.shield(asked)
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[credentials] = (time.monotonic() + REMEMBERED_S, peer)
        return peer

    async def _ask(self, credentials: Credentials) -> Peer:
        async with self._looking:
            return await run_in_threadpool(self._look_up, credentials)

    def _look_up(self, credentials: Credentials) -> Peer:
        uid, gid = credentials.uid, credentials.gid
        user, named = user_of(uid)
        groups = tuple(_group_names(user, gid)) if named else ()
        admin = uid in (0, self._daemon_uid) or self._admin_group in groups
        return Peer(uid, gid, user, admin, named, groups)


def _group_names(user: str, gid: int) -> Iterator[str]:
    for each in groups_of(user, gid):
        with contextlib.suppress(KeyError):  # an id without a name
            yield grp.getgrgid(each).gr_name


class Connections:
    """Counts them, in the event loop's thread. `free`: users who always get in."""

    def __init__(self, free: Collection[int], room: int | None = None) -> None:
        self._free = free
        self._room = room_for_users() if room is None else room
        self._of: Counter[int] = Counter()

    def add(self, uid: int) -> bool:
        """Count one more; False: there is no room. The last places are for users with few."""
        if uid in self._free:
            return True
        left = self._room - self._of.total()
        most = PER_USER if left > self._room // PART_OF_FEW else min(FEW, PER_USER)
        if left <= 0 or self._of[uid] >= most:
            return False
        self._of[uid] += 1
        return True

    def remove(self, uid: int) -> None:
        if uid not in self._free:
            self._of[uid] -= 1
            if not self._of[uid]:
                del self._of[uid]


def room_for_users() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft < 0 else max(FEW, min(MOST, soft - KEPT_BACK))


def caller(connection: socket.socket) -> Credentials:
    """The other end, according to the kernel."""
    size = struct.calcsize("=iII")
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, gid = struct.unpack("=iII", packed)
    return Credentials(uid, gid, pid)
