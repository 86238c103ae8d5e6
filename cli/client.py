"""The daemon's API over its unix socket: one request, one connection.

`http.client` alone takes longer to import than the rest of `carma submit` takes to run, so the
little HTTP that is needed is spoken here: an HTTP/1.0 request makes the server close the
connection after its answer and not chunk it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

from carmad import paths
from cli.problems import Refused, Unreachable

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any

TIMEOUT_S = 30.0
START_HINT = (
    "is carmad running? start one with `carma daemon start`,"
    " or `sudo systemctl start carmad` for the whole server"
)


def get(path: str, within_s: float = TIMEOUT_S, **query: object) -> Any:
    """`query`: what is None is left out."""
    given = {key: value for key, value in query.items() if value is not None}
    if given:
        from urllib.parse import urlencode

        path += "?" + urlencode(given)
    return _call("GET", path, b"", within_s)


def post(path: str, body: object, within_s: float = TIMEOUT_S) -> Any:
    return _call("POST", path, json.dumps(body).encode(), within_s)


def _call(method: str, path: str, body: bytes, within_s: float) -> Any:
    head = (
        f"{method} {path} HTTP/1.0\r\nHost: carma\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    until = time.monotonic() + within_s
    while True:
        status, answer, again_s = _read(_exchange(head.encode() + body, within_s))
        if status < 400:
            return answer
        if again_s is None or time.monotonic() + again_s > until:
            break
        time.sleep(again_s)  # nothing was done: it may be asked again
    raise Refused(
        str(answer.get("error") or f"carmad answered with status {status}"),
        str(answer.get("hint") or ""),
        str(answer.get("code") or ("forbidden" if status == 403 else "error")),
    )


def _exchange(request: bytes, within_s: float) -> bytes:
    where = paths.socket_path()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        try:
            _connect(connection, where, time.monotonic() + within_s)
        except PermissionError:
            raise Refused(f"you may not use {where}", "ask its owner", "forbidden") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise Unreachable(f"no answer at {where}: {why}", START_HINT) from None
        chunks: list[bytes] = []
        try:
            with contextlib.suppress(BrokenPipeError):  # refused unread; the answer says why
                connection.sendall(request)
            while chunk := connection.recv(65536):
                chunks.append(chunk)
        except OSError as error:
            if not (chunks and isinstance(error, ConnectionResetError)):  # unread, likewise
                why = error.strerror or str(error)
                hint = "it may have done what was asked: look with `carma queue`"
                raise Unreachable(f"carmad went silent: {why}", hint) from None
        return b"".join(chunks)


def _connect(connection: socket.socket, where: str, until: float) -> None:
    while True:
        try:
            return connection.connect(where)
        except BlockingIOError:  # so many wait to be heard that there is no place left
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _read(response: bytes) -> tuple[int, dict[str, Any], float | None]:
    """Also in how many seconds to ask again, where the daemon says that."""
    head, _, body = response.partition(b"\r\n\r\n")
    try:
        status = int(head.split(None, 2)[1])
    except (IndexError, ValueError):
        hint = "it may be stopping: look at its log"
        raise Unreachable("carmad closed the connection without an answer", hint) from None
    later = head.lower().partition(b"\r\nretry-after: ")[2].split(b"\r\n", 1)[0]
    again_s = float(later) if later.isdigit() else None
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return status, answer, again_s
    if status < 400:
        raise Refused("carmad's answer is not JSON", "", "error")
    return status, {}, again_s
