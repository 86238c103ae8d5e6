"""The process that sends one message, as the user whom it is for, and ends.

It shares a file in memory with carmad. There it finds, as JSON: `uid`, `gid` and `groups` of the
user, whom it becomes before it looks at anything of theirs; `title`, `body`, `env` (some of the
user's variables); `urls`: the addresses, or null for those in the user's own file; and, if there
are none, `mail_to` and `domain`, for a mail by this machine's sendmail. It replaces that by the
outcome, a number, and why a mail was not taken. It prints nothing: what Apprise says may have an
address, and so a password, in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any

from carmad.errors import CarmaError
from carmad.notify import addresses

SENT, FAILED, UNUSABLE = 0, 75, 78  # to one address at least; try again later; it would be in vain
MOST_BYTES = 1 << 20
MEMORY = 1 << 30
PROCESSOR_S = 20
PAUSES_S = (1.0, 3.0)  # before an address is tried again
ADDRESS_WITHIN_S = 10.0
ALL_WITHIN_S = 40.0  # then carmad still learns who took it, and tells nobody twice
SENDMAIL = "sendmail"
PLACES = os.pathsep.join(("/usr/sbin", "/usr/lib", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"))
SENDMAIL_WITHIN_S = 20.0
LONGEST = 200  # characters of a reason


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
    _load()  # now: the user may not be allowed to read Python's files
    become(order["uid"], order["gid"], order["groups"])
    os.environ.update(order["env"])
    urls, title, body = order["urls"], order["title"], order["body"]
    if urls is None:
        with contextlib.suppress(CarmaError):
            urls = addresses.read(addresses.path(order["env"]))
    if urls:
        return (SENT if len(send(urls, title, body)) < len(urls) else FAILED), ""
    if order["mail_to"]:
        why = send_mail(order["mail_to"], order["domain"], title, body)
        return (FAILED if why else SENT), why
    return UNUSABLE, ""


def _load() -> None:
    from apprise import Apprise

    Apprise().add("json://localhost")  # loads all kinds of addresses
    EmailMessage().as_bytes()
    "localhost".encode("idna")


def become(uid: int, gid: int, groups: list[int]) -> None:
    """The user, for good."""
    os.environ["HOME"] = pwd.getpwuid(uid).pw_dir
    if os.geteuid() == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def send(urls: Sequence[str], title: str, body: str) -> list[int]:
    """Send it to every address; returns the positions of those that did not take it in time."""
    from apprise import Apprise, NotifyFormat

    until = time.monotonic() + ALL_WITHIN_S

    def took(url: str) -> bool:
        one, left_s = Apprise(), until - time.monotonic()
        if left_s <= 0:
            return False
        with contextlib.suppress(Exception), _within(min(ADDRESS_WITHIN_S, left_s)):
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


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Foreign code, and other addresses wait: TimeoutError is raised in it, until it ends."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def find_sendmail() -> str | None:
    return shutil.which(SENDMAIL, path=PLACES)


def send_mail(to: Sequence[str], domain: str, title: str, body: str) -> str:
    """Send it by sendmail. Returns why it was not taken; "": it was."""
    host = domain or socket.getfqdn()
    message = EmailMessage()
    message["Subject"] = title
    message["From"] = f"CARMA <carma@{host}>"
    message["To"] = ", ".join(each if "@" in each else f"{each}@{host}" for each in to)
    message["Date"] = formatdate(localtime=True)
    message["Message-ID"] = make_msgid("carma", host)
    message["Auto-Submitted"] = "auto-generated"  # nobody's absence is to be told to us
    message.set_content(body)
    program = find_sendmail()
    if program is None:
        return f"there is no {SENDMAIL} in {PLACES}"
    try:
        ran = subprocess.run(
            [program, "-i", "-t"],
            input=message.as_bytes(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SENDMAIL_WITHIN_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:LONGEST]
    said = " ".join(ran.stdout.decode(errors="replace").split())
    return f"{program} ended with code {ran.returncode}: {said}"[:LONGEST] if ran.returncode else ""


if __name__ == "__main__":
    main()
