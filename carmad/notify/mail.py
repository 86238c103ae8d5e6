"""Mail, by this machine's own sendmail or an SMTP server. It is sent by the process that sends
messages (`sender`), and needs no package."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from email.message import EmailMessage

SENDMAIL = "sendmail"
PLACES = os.pathsep.join(("/usr/sbin", "/usr/lib", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"))
WITHIN_S = 20.0
LONGEST = 200  # characters of a reason
TLS = "smtps"
PORTS = {"smtp": 25, TLS: 465}


def send(
    way: str,
    to: Iterable[str],
    domain: str,
    title: str,
    body: str,
    become: Callable[[], object] = lambda: None,
) -> str:
    """Send a mail. Returns why it was not taken; "": it was. `way`: as `notify.mail`. `become`: the
    user who sends it; called once all modules are loaded, which that user may not be able to read.
    """
    from email.message import EmailMessage
    from email.utils import formatdate, make_msgid
    from smtplib import SMTPException

    host = domain or socket.getfqdn()
    message = EmailMessage()
    message["Subject"] = title
    message["From"] = f"CARMA <carma@{host}>"
    message["To"] = ", ".join(each if "@" in each else f"{each}@{host}" for each in to)
    message["Date"] = formatdate(localtime=True)
    message["Message-ID"] = make_msgid("carma", host)
    message["Auto-Submitted"] = "auto-generated"  # nobody's absence is to be told to us
    message.set_content(body)
    message.as_bytes()
    "localhost".encode("idna")
    become()
    try:
        if way == SENDMAIL:
            _by_sendmail(message)
        else:
            _by_server(way, message)
    except (OSError, SMTPException, subprocess.SubprocessError, ValueError) as error:
        return " ".join(str(error).split())[:LONGEST] or type(error).__name__
    return ""


def find_sendmail() -> str | None:
    return shutil.which(SENDMAIL, path=PLACES)


def _by_sendmail(message: EmailMessage) -> None:
    program = find_sendmail()
    if program is None:
        raise ValueError(f"there is no {SENDMAIL} in {PLACES}")
    ran = subprocess.run(
        [program, "-i", "-t"],
        input=message.as_bytes(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=WITHIN_S,
    )
    if ran.returncode:
        said = ran.stdout.decode(errors="replace").strip()
        raise ValueError(f"{program} ended with code {ran.returncode}: {said}")


def _by_server(way: str, message: EmailMessage) -> None:
    import smtplib
    import ssl

    parts = urlsplit(way)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    checked = ssl.create_default_context()
    if parts.scheme == TLS:
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=WITHIN_S, context=checked)
    else:
        server = smtplib.SMTP(host, port, timeout=WITHIN_S)
    try:
        server.ehlo()
        if parts.scheme != TLS and (parts.username or server.has_extn("starttls")):
            # A relay in one's own network has a certificate of its own, and gets no password.
            server.starttls(context=checked if parts.username else None)
            server.ehlo()
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))
        server.send_message(message)
    finally:
        with contextlib.suppress(OSError, smtplib.SMTPException):  # it has taken it by then
            server.quit()
