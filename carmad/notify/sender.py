"""The process that sends one message, as the user whom it is for, and ends.

It shares a file in memory with carmad. There it finds, as JSON: `uid`, `gid` and `groups` of the
user, whom it becomes before it looks at anything of theirs; `title`, `body`, `env` (some of the
user's variables) and `urls`: the addresses, or null for those in the user's own file; or `mail`:
`way`, `to` and `domain`, as `mail.send` wants them; `week`: the user may have opted out of it. It
replaces that by the outcome, a number, and
why a mail was not taken. It prints nothing: what Apprise says may have an address, and so a
password, in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from carmad.errors import CarmaError
from carmad.notify import addresses, mail

SENT, FAILED, UNUSABLE = 0, 75, 78  # to one address at least; try again later; it would be in vain
MOST_BYTES = 1 << 20
MEMORY = 1 << 30
PROCESSOR_S = 20
PAUSES_S = (1.0, 3.0)  # before an address is tried again


def main() -> None:
    """Called with the path of the order."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable()  # Apprise logs addresses
    shared = os.open(sys.argv[1], os.O_RDWR)
    order = json.loads(os.pread(shared, MOST_BYTES, 0))
    outcome, why = _carry_out(order)
    os.ftruncate(shared, 0)
    os.pwrite(shared, f"{outcome} {why}".rstrip().encode(errors="replace"), 0)


def _carry_out(order: dict[str, Any]) -> tuple[int, str]:
    """The outcome, and why a mail was not taken."""
    if by := order.get("mail"):
        its = order["uid"], order["gid"], order["groups"]
        what = order["title"], order["body"]
        why = mail.send(by["way"], by["to"], by["domain"], *what, partial(become, *its))
        return (FAILED, why) if why else (SENT, "")
    try:
        with contextlib.suppress(ImportError):
            _load()  # now: the user may not be allowed to read Python's files
        become(order["uid"], order["gid"], order["groups"])
        os.environ.update(order["env"])
        if order.get("week") and addresses.wants_no_week(order["env"]):
            return SENT, ""
        urls = order["urls"] or addresses.read(addresses.path(order["env"]))
        failed = send(urls, order["title"], order["body"])
    except (CarmaError, ImportError, KeyError):
        return UNUSABLE, ""
    return (SENT if len(failed) < len(urls) else FAILED), ""


def _load() -> None:
    from apprise import Apprise

    Apprise().add("json://localhost")  # loads all kinds of addresses
    "localhost".encode("idna")


def become(uid: int, gid: int, groups: list[int]) -> None:
    """The user, for good."""
    os.environ["HOME"] = pwd.getpwuid(uid).pw_dir
    if os.geteuid() == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def send(urls: Sequence[str], title: str, body: str) -> list[int]:
    """Send it to every address; returns the positions of those that did not take it. Raises
    ImportError without Apprise."""
    from apprise import Apprise, NotifyFormat

    def took(url: str) -> bool:
        one = Apprise()
        with contextlib.suppress(Exception):  # foreign code, and other addresses wait
            return bool(
                one.add(url) and one.notify(body=body, title=title, body_format=NotifyFormat.TEXT)
            )
        return False

    failed = list(range(len(urls)))
    for pause_s in (0.0, *PAUSES_S):
        if failed:
            time.sleep(pause_s)
            failed = [at for at in failed if not took(urls[at])]
    return failed


if __name__ == "__main__":
    main()
