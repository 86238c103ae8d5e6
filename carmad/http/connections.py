"""Who connects, according to the kernel, and how many connections each user may hold.

Each connection takes one of the process's file descriptors, and nothing works without those.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import logging
import os
import pwd
import resource
import socket
import struct
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from carmad.accounts import groups_of
from carmad.core.jobs.spec import Owner
from carmad.threads import api_threads, run_in_threadpool

log = logging.getLogger(__name__)

REMEMBERED_S = 30.0  # the longest that a change goes unnoticed while the user database answers
PATIENT_S = 1.0  # for who was known before: then the earlier answer counts
MOST_REMEMBERED = 10_000

SUBUIDS = Path("/etc/subuid")
LOOK_EVERY_S = 10.0  # whether that file has changed
PER_USER = 256
FEW = 8  # connections, that every user may have as long as there are any
PART_OF_FEW = 8  # one in so many is for users with few
MOST = 4096  # of all users: each takes memory, too
KEPT_BACK = 256  # descriptors for the daemon itself, root and its own user
AT_ONCE = 64  # accepted in one pass of the event loop
BACKLOG = 1024  # connections that wait to be accepted
NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
COMPLAIN_EVERY_S = 60.0
NOBODY = -1  # all callers without a name, and who did not come through the socket
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

    async def peer(self, credentials: Credentials) -> Peer:
        known = self._known.get(credentials)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        asked = self._asked.get(credentials)
        if asked is None:  # once for all of its connections
            asked = asyncio.ensure_future(run_in_threadpool(self._look_up, credentials))
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


class Owners:
    """Maps subordinate uids, of which each user has thousands for containers, to their users."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or SUBUIDS
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, int]] = []  # the first, the one after the last, whose
        self._read_at: tuple[int, int] | None = None  # the file's time and size
        self._look_at = 0.0
        self.read()

    def of(self, uid: int) -> int:
        """The uid of the user who owns this subordinate uid, or else this uid. Never waits."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            with contextlib.suppress(RuntimeError):  # the daemon is stopping
                api_threads().submit(self.read)
        starts, ranges = self._starts, self._ranges
        at = bisect_right(starts, uid) - 1
        return ranges[at][2] if at >= 0 and uid < ranges[at][1] else uid

    def read(self) -> None:
        """Read the file, if it has changed. Names may be looked up in a directory server."""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        try:
            stat = self._file.stat()
            if self._read_at == (stat.st_mtime_ns, stat.st_size):
                return
            lines = self._file.read_text(errors="replace").splitlines()
        except OSError:
            stat, lines = None, []
        found = sorted(filter(None, map(_range, lines)))
        self._ranges, self._starts = found, [first for first, _, _ in found]
        self._read_at = (stat.st_mtime_ns, stat.st_size) if stat else None


def _range(line: str) -> tuple[int, int, int] | None:
    """`ada:100000:65536`; None if it is not like that, or there is no ada."""
    with contextlib.suppress(ValueError, KeyError):
        whose, first, count = line.split(":")
        uid = int(whose) if whose.isdecimal() else pwd.getpwnam(whose).pw_uid
        return int(first), int(first) + int(count), uid
    return None


class Connections:
    """Counts them, in the event loop's thread. `free`: users who always get in."""

    def __init__(self, free: Collection[int], room: int | None = None) -> None:
        self._free = free
        self._room = room_for_users() if room is None else room
        self._of: Counter[int] = Counter()
        self._all = 0  # of users who are not free

    def is_room(self, user: int) -> bool:
        """Whether the user may have one more. Users with many are refused before users with few:
        nobody may have more than are left for the others, and the last ones are for those with
        few."""
        if user in self._free:
            return True
        has, left = self._of[user], self._room - self._all
        if has < min(FEW, PER_USER):
            return left > 0
        return has < min(PER_USER, left - self._room // PART_OF_FEW)

    def add(self, user: int) -> None:
        self._of[user] += 1
        self._all += user not in self._free

    def remove(self, user: int) -> None:
        self._of[user] -= 1
        self._all -= user not in self._free
        if not self._of[user]:
            del self._of[user]


def room_for_users() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft < 0 else max(FEW, min(MOST, soft - KEPT_BACK))


def caller(connection: socket.socket) -> tuple[int, int, int]:
    """The pid, the uid and the gid at the other end, according to the kernel."""
    size = struct.calcsize("=iII")
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, gid = struct.unpack("=iII", packed)
    return pid, uid, gid


class Listener(socket.socket):
    """Accepts every connection at once, as the kernel's queue knows no users. A connection that is
    one too many is refused before anything is allocated for it: `admit` returns, for a uid, the
    user who pays for the connection; None refuses it.

    When no descriptor is left, new connections are turned away by means of one kept for that.
    Otherwise the event loop would find the same client waiting again and again."""

    def __init__(
        self, sock: socket.socket, admit: Callable[[int], int | None], refusal: bytes = b""
    ) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self._admit = admit
        self._refusal = refusal
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._complain_at = 0.0

    def take(self) -> Iterator[tuple[socket.socket, int]]:
        """Accept some of the waiting connections; yields each with the user who pays for it."""
        try:
            for _ in range(AT_ONCE):
                connection, _ = self.accept()
                user = self._admit(caller(connection)[1])
                if user is not None:
                    yield connection, user
                    continue
                with connection, contextlib.suppress(OSError):
                    connection.send(self._refusal, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in NONE_LEFT:
                raise
            self._turn_one_away(error)

    def _turn_one_away(self, error: OSError) -> None:
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + COMPLAIN_EVERY_S
            log.error("clients are turned away: %s", error.strerror)
        if self._spare >= 0:
            os.close(self._spare)
        with contextlib.suppress(OSError):
            os.close(self._accept()[0])  # type: ignore[attr-defined]
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:  # another thread was quicker
            self._spare = -1


async def payer(who: Credentials, peers: Peers, owners: Owners) -> int:
    """The user whose share a request counts against. Uids without a user have one share together,
    as there may be thousands."""
    owner = owners.of(who.uid)
    if owner == who.uid and not (await peers.peer(who)).named:
        return NOBODY
    return owner
