"""Messages about one's own jobs: where they go, and whether they can be sent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from carmad.errors import CarmaError
from carmad.notify import addresses
from carmad.readable import clean
from cli import client
from cli.problems import Problem, note

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

MISSING = "messages need Apprise, which is not installed beside carma"


def say_where() -> list[str]:
    """Say where messages go; returns one's own addresses, none if they are mails from the server.
    Raises CarmaError if they go nowhere."""
    try:
        return check_addresses()
    except CarmaError as error:
        if not server_mails():
            raise
        note(f"{error.message}: messages about your jobs are mails from the server")
        return []


def send_test() -> int:
    """Send a message to one's own addresses now, or a mail from the server to oneself."""
    found = say_where()
    if not found:
        said = client.post("/v1/mail", {})
        became = f"it was not taken: {clean(said['why'])}" if said["why"] else "sent"
        print(f"mail to {said['to']}: {became}")
        return 1 if said["why"] else 0
    return _send(found, "test", "Messages about your jobs arrive here.")


def set_week(on: bool) -> int:
    """Whether the caller gets a mail about their week."""
    name = addresses.no_week(os.environ)
    try:
        if not on:
            os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600))
        elif os.path.lexists(name):
            os.unlink(name)  # noqa: PTH108
    except OSError as error:
        raise Problem(f"cannot change {name}: {error.strerror}", "is it yours?") from None
    if on:
        print("you get a mail about your week on Mondays, if the server sends mail")
    else:
        print(f"you get no mail about your week; {name} says so")
    return 0


def send(title: str, body: str) -> int:
    """Send it to one's own addresses now, and say what became of it."""
    return _send(check_addresses(), title, body)


def _send(found: list[str], title: str, body: str) -> int:
    import logging
    from socket import gethostname

    from carmad.notify import sender

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
    if options.mail_user and not body["notify"]:
        _note(options, "--mail-user without --mail-type: no message is sent")
    if not body["notify"] or (options.mail_user and server_mails()):
        return
    name = addresses.path(os.environ)
    try:
        found = addresses.read(name)
        _require_apprise()
    except CarmaError as error:
        if server_mails():
            return
        if options.notify:
            raise Problem(f"no message can be sent: {error.message}", error.hint) from None
        body["notify"] = None
        _note(options, f"--mail-type is ignored: {error.message}; {error.hint}")
        return
    if options.mail_user and not any(options.mail_user in each for each in found):
        where = f"messages go where {name} says, as this server sends no mail"
        _note(options, f"--mail-user is ignored: {where}")


def server_mails() -> bool:
    """Whether the server sends mail to users who have no addresses of their own."""
    try:
        settings = client.get("/v1/config")["settings"]
    except CarmaError:
        return False  # whatever needs the server says so
    return bool(settings.get("notify", {}).get("mail"))


def _note(options: Namespace, text: str) -> None:
    if not options.quiet:
        note(text)


def _require_apprise() -> None:
    from importlib.util import find_spec

    if find_spec("apprise") is None:
        from carmad.installed import how_to_add

        raise Problem(MISSING, f"an administrator installs it: {how_to_add('notify')}")
