"""Messages about one's own jobs: where they go, and whether they can be sent."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from carmad.errors import CarmaError
from carmad.notify import addresses
from carmad.readable import clean
from cli import client
from cli.problems import Problem, note


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
