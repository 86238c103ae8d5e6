"""The page of the server: `web`."""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli import client
from cli.app import option
from cli.problems import Problem, Usage

if TYPE_CHECKING:
    import socket

PORT = 9431
TRIED = 20  # ports after it: other users of the server have pages, too
HOST = "127.0.0.1"
TOKEN = r"[\w-]{20,100}"
MOST_READ = 200
NEW = "a new one is made"


def web(
    port: Annotated[
        int | None,
        option(
            "--port",
            metavar="PORT",
            min=0,
            max=65_535,
            help=f"the port on 127.0.0.1 (default: the first free one from {PORT} on; 0: any)",
        ),
    ] = None,
    read_only: Annotated[
        bool, option("--read-only", help="for a screen in the lab: it only shows")
    ] = False,
    token_file: Annotated[
        str | None,
        option(
            "--token-file",
            metavar="FILE",
            help="with --read-only: keep the token there, so that the link stays the same",
        ),
    ] = None,
) -> int:
    """It prints a link with a token that lets in whoever has it, as you: keep it to yourself.
    Ctrl-C ends it.
    """
    if token_file and not read_only:
        raise Usage(
            "--token-file goes with --read-only",
            "who takes the port while the page is down is shown the token: it must allow little",
        )
    client.get("/v1/health")  # or the page would be nothing but an error
    from threading import Thread

    from carma_web.app import base_of, serve
    from carma_web.page import warm_up

    token = _token(token_file) if token_file else _new()
    listening = _bind(port)
    at = listening.getsockname()[1]
    print(f"http://{HOST}:{at}{base_of(token)}/?token={token}", flush=True)
    if sys.stdout.isatty():
        print(f"from your own computer, first: ssh -L {at}:{HOST}:{at} {os.uname().nodename}")
    Thread(target=warm_up, name="templates", daemon=True).start()
    serve(token, read_only, listening)
    return 0


def _bind(port: int | None) -> socket.socket:
    import socket

    for each in range(PORT, PORT + TRIED) if port is None else [port]:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((HOST, each))
            made.listen()  # or another process could still take the same port
        except OSError as error:
            made.close()
            why = error.strerror or str(error)
        else:
            return made
    if port is None:
        raise Problem(f"no port from {PORT} to {PORT + TRIED - 1} is free", "give one: --port 0")
    raise Problem(f"port {port} cannot be used: {why}", "give another: --port 0 takes any")


def _new() -> str:
    return secrets.token_urlsafe(24)


def _token(path: str) -> str:
    """The token in the file, which is made if it is not there. Raises Problem if others may know
    the token, or have put it there."""
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise Problem(f"cannot write {path}: {error.strerror}", "name another file") from None
    token = _new()
    try:
        with os.fdopen(made, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        Path(path).unlink()
        raise Problem(f"cannot write {path}: {error.strerror}", "name another file") from None
    return token


def _read_token(path: str) -> str:
    try:  # without waiting for whoever may write to a FIFO
        there = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}", "name another file") from None
    try:
        status = os.fstat(there)
        if not stat.S_ISREG(status.st_mode):
            raise Problem(f"{path} is not a file", "name another")
        if status.st_uid != os.geteuid():
            raise Problem(f"{path} belongs to another user", "name a file of your own")
        if status.st_mode & 0o077:
            raise Problem(f"other users may open {path}", f"remove it: {NEW}")
        token = os.read(there, MOST_READ).decode("ascii", "replace").strip()
    finally:
        os.close(there)
    if not re.fullmatch(TOKEN, token):
        raise Problem(f"{path} has no token", f"remove it: {NEW}")
    return token
