"""Whose jobs are whose: an account is a name and a uid together. Either alone may come to belong to
somebody else: uids are given again, and so are names."""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from carmad.errors import CarmaError

_libc = ctypes.CDLL(None)


class NoAccount(CarmaError):
    """The account that submitted a job is not there any more: nothing may be done as it."""


@dataclass(frozen=True, slots=True)
class Account:
    """As the user database has it now: groups may have been given and revoked since."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def account(user: str, uid: int) -> Account:
    """Raises NoAccount. May ask a directory server, so it is not for the core or the event loop."""
    try:
        known = pwd.getpwnam(user)
    except (KeyError, ValueError):
        known = None
    if known is None or known.pw_uid != uid:
        now = f"{user} has the uid {known.pw_uid}" if known else f"there is no {user}"
        raise NoAccount(
            f"it was submitted by {user} with the uid {uid}, and now {now}",
            "If that is right, cancel the job; if not, repair the user database: then it goes on.",
        )
    return Account(uid, known.pw_gid, groups_of(user, known.pw_gid))


def groups_of(user: str, gid: int) -> tuple[int, ...]:
    """As `os.getgrouplist`, which stops all of Python's threads until it returns: a directory
    server that hangs (or systemd, which Debian's nsswitch.conf names, too) would stop the daemon.
    """
    room = 64
    while True:
        found, count = (ctypes.c_uint * room)(), ctypes.c_int(room)
        if _libc.getgrouplist(os.fsencode(user), gid, found, ctypes.byref(count)) >= 0:
            return tuple(found[: count.value])
        room = max(2 * room, count.value)


def barring() -> Callable[[str, int], str]:
    """A function that says why nothing may be done as a user; "": it may. Each is looked up once,
    as jobs may be many."""

    @cache
    def bar_reason(user: str, uid: int) -> str:
        try:
            account(user, uid)
        except NoAccount as error:
            return error.message
        return ""

    return bar_reason
