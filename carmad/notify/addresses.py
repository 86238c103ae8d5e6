"""Where to send messages: a file with one of Apprise's addresses on each line."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from carmad.errors import CarmaError

MOST_BYTES = 64 << 10
MOST = 20
HELP = "https://github.com/caronc/apprise/wiki lists the forms of addresses"


def path(env: Mapping[str, str]) -> str:
    """This process's user's own file."""
    home = env.get("HOME") or Path("~").expanduser()
    base = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
    return f"{base}/carma/notify.conf"


def read(name: str) -> list[str]:
    """The addresses in this file, which must be this process's user's and no one else's to read.
    Raises CarmaError, which has no address in it."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        hint = f"write an address on each line, such as mailtos://…, and chmod 600 it; {HELP}"
        raise CarmaError(f"cannot read {name}: {error.strerror}", hint) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CarmaError(f"{name} is not a file", "replace it by one")
        if status.st_uid != os.geteuid():
            raise CarmaError(f"{name} belongs to someone else", "make one of your own")
        if status.st_mode & 0o077:
            raise CarmaError(f"others may read or write {name}", f"chmod 600 {name}")
        content = os.read(fd, MOST_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > MOST_BYTES:
        raise CarmaError(f"{name} is larger than {MOST_BYTES >> 10} KiB", "remove what is old")
    lines = (line.strip() for line in content.decode(errors="replace").splitlines())
    found = [line for line in lines if line and not line.startswith("#")]
    if not found or len(found) > MOST or not all("://" in each for each in found):
        raise CarmaError(f"{name} needs 1 to {MOST} addresses, one on each line", HELP)
    return found
