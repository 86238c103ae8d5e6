"""Messages about one's own jobs: where they go, and whether they can be sent."""

from __future__ import annotations

import os

from carmad.errors import CarmaError
from carmad.notify import addresses
from cli.problems import Problem, note

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

MISSING = "messages need Apprise, which is not installed beside carma"
INSTALL = "an administrator installs it with: pip install 'carma-gpu[notify]'"


def send(title: str, body: str) -> int:
    """Send it to one's own addresses now, and say what became of it."""
    import logging
    from socket import gethostname

    from carmad.notify import sender

    found = check_addresses()
    logging.disable()  # Apprise logs addresses
    failed = sender.send(found, f"[carma {gethostname()}] {title}", body)
    for at, url in enumerate(found):
        kind = url.partition("://")[0]  # the rest may be secret
        print(f"{kind}: {'it did not take the message' if at in failed else 'sent'}")
    return 1 if failed else 0


def check_addresses() -> list[str]:
    """Those of the caller. Raises CarmaError."""
    name = addresses.path(os.environ)
    found = addresses.read(name)
    _require_apprise()
    print(f"{name}: {len(found)} address{'es' if len(found) > 1 else ''}")
    return found


def settle(options: Namespace, body: dict[str, Any]) -> None:
    """Make sure that a job's messages have somewhere to go. Raises CarmaError; but a script for
    Slurm runs without them."""
    body["notify"] = options.notify or options.mail_type
    name = addresses.path(os.environ)
    try:
        found = addresses.read(name) if body["notify"] else []
        if body["notify"]:
            _require_apprise()
    except CarmaError as error:
        if options.notify:
            raise Problem(f"no message can be sent: {error.message}", error.hint) from None
        body["notify"] = None
        _note(options, f"--mail-type is ignored: {error.message}; {error.hint}")
        return
    if options.mail_user and not any(options.mail_user in each for each in found):
        _note(options, f"--mail-user is ignored: messages go where {name} says")


def _note(options: Namespace, text: str) -> None:
    if not options.quiet:
        note(text)


def _require_apprise() -> None:
    from importlib.util import find_spec

    if find_spec("apprise") is None:
        raise Problem(MISSING, INSTALL)
