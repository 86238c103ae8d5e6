"""The daemon's API over its unix socket: one request, one connection."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import time
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from carma_client import Problem, Refused, Unknown, Unreachable
from carmad import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

TIMEOUT_S = 30.0
SILENT_S = 60.0  # of events: a daemon that lives gives a sign of life every quarter of a minute
BACK_WITHIN_S = 8.0  # systemd starts a carmad that died after five seconds
RESTARTED_WITHIN_S = 120.0  # a daemon that is upgraded may have to copy its database
LOOK_S = 0.2
SILENT = "carmad closed the connection without an answer"
UNIT = "/etc/systemd/system/carmad.socket"  # as `carma daemon install` leaves it
START_HINT = (
    "is carmad running? start one with `carma daemon start`,"
    " or `sudo systemctl start carmad` for the whole server"
)
HEADERS = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "Connection": "close",
}


class Connection(HTTPConnection):
    """To the socket at `where`. Each part that is sent or received may take `within_s`."""

    def __init__(self, where: str, within_s: float) -> None:
        super().__init__("carma")
        self._where = where
        self._within_s = within_s
        self.sock: socket.socket = socket.socket(socket.AF_UNIX)

    def connect(self) -> None:
        self.sock.settimeout(self._within_s)
        until = time.monotonic() + self._within_s
        while True:
            try:
                return self.sock.connect(self._where)
            except BlockingIOError:  # the listen queue is full
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)


class Broken(Unreachable):
    """No answer. `whole`: carmad had received the whole request. `busy`: it is alive, and a
    retry would add to its load."""

    def __init__(self, message: str, whole: bool, busy: bool = False) -> None:
        super().__init__(message)
        self.whole = whole
        self.busy = busy


class Daemon:
    """`socket`: its path; None: the one that the environment names, at each request."""

    def __init__(self, socket: str | None = None) -> None:
        self._socket = socket

    @property
    def socket(self) -> str:
        return self._socket or paths.socket_path()

    def get(self, /, path: str, within_s: float = TIMEOUT_S, **query: object) -> Any:
        """`query`: parameters that are None are left out."""
        return self._call("GET", with_query(path, query), b"", within_s, again=True)

    def post(
        self, /, path: str, body: object, within_s: float = TIMEOUT_S, *, again: bool = False
    ) -> Any:
        """`again`: it changes nothing, so it may be repeated."""
        return self._call("POST", path, _encode(body), within_s, again)

    def patiently(self, ask: Callable[[], T]) -> T:
        """For a caller that was answered before: the daemon may be restarting."""
        until = time.monotonic() + RESTARTED_WITHIN_S
        while True:
            try:
                return ask()
            except Problem as error:
                if not is_away(error) or time.monotonic() > until:
                    raise
            self.pause(LOOK_S)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def stream(self, path: str, last: str) -> Iterator[Any]:
        """The events after the one with the id `last`. Raises what breaks the connection."""
        with contextlib.closing(self.connect(SILENT_S)) as connection:
            resume = {"Last-Event-ID": last} if last else {}
            connection.request("GET", path, headers={**HEADERS, **resume})
            with connection.getresponse() as response:
                if response.status >= 400:
                    raise refusal(response.status, _parse(response.read()) or {})
                while line := response.readline():
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])

    def connect(self, within_s: float) -> Connection:
        connection = Connection(self.socket, within_s)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            if isinstance(error, PermissionError):
                message = f"you may not connect to {self.socket}"
                raise Refused(message, "ask its owner", "forbidden") from None
            message = f"no answer at {self.socket}: {error.strerror or error}"
            raise Unreachable(message, _where_hint(self.socket)) from None
        return connection

    def _call(self, method: str, path: str, body: bytes, within_s: float, again: bool) -> Any:
        if not path.isascii() or not path.isprintable() or " " in path:
            raise Refused(f"{path!r} names nothing that carmad has", code="not_found")
        until = time.monotonic() + within_s
        while True:
            response, data = self._request(method, path, body, within_s, again)
            answer = _parse(data)
            if response.status < 400:
                if answer is None:
                    raise Refused("carmad's answer is not JSON", "", "error")
                return answer
            later = response.getheader("Retry-After", "")
            if not later.isdigit() or time.monotonic() + int(later) > until:
                raise refusal(response.status, answer or {})
            self.pause(int(later))  # nothing was done: it is safe to retry

    def _request(
        self, method: str, path: str, body: bytes, within_s: float, again: bool
    ) -> tuple[HTTPResponse, bytes]:
        """`again`: repeat the request if carmad dies over it, as it may be back in a moment. Others
        are not repeated, since they may have been carried out."""
        waited = 0.0
        died = False
        while True:
            try:
                return self._exchange(method, path, body, within_s)
            except Broken as broken:
                died = True
                if not again or broken.busy or waited >= BACK_WITHIN_S:
                    broken.hint = _what_became(path, broken, again)
                    if broken.whole and not again:
                        raise Unknown(broken.message, broken.hint) from None
                    raise
            except Unreachable:
                if not died or waited >= BACK_WITHIN_S:
                    raise
            self.pause(LOOK_S)
            waited += LOOK_S

    def _exchange(
        self, method: str, path: str, body: bytes, within_s: float
    ) -> tuple[HTTPResponse, bytes]:
        """The answer. Raises Unreachable if the request was not sent, Broken if it may have been
        received."""
        whole = False
        with contextlib.closing(self.connect(within_s)) as connection:
            try:
                with contextlib.suppress(BrokenPipeError):  # refused unread: the answer says why
                    # As a file, it is sent in parts, for each of which there is time.
                    size = {"Content-Length": str(len(body))}
                    connection.request(method, path, io.BytesIO(body), headers={**HEADERS, **size})
                    whole = True
                with connection.getresponse() as response:
                    if response.length is None and not response.chunked:
                        raise ConnectionError(SILENT)
                    return response, response.read()
            except socket.timeout:
                why = f"carmad has not answered in {within_s:g} s"
                raise Broken(why, whole, busy=True) from None
            except OSError as error:
                broke = f"the connection to carmad broke: {error.strerror}"
                raise Broken(broke if error.strerror else SILENT, whole) from None
            except BadStatusLine:
                raise Refused("the answer is not from carmad", "", "error") from None
            except HTTPException:
                raise Broken(SILENT, whole) from None


def _encode(body: object) -> bytes:
    """Its JSON. Raises Refused for a word or a path that is not UTF-8, which JSON cannot carry."""
    text = json.dumps(body, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        begin, end = text.rfind('"', 0, error.start) + 1, text.find('"', error.start)
        word = text[begin:end].encode(errors="backslashreplace").decode().replace("\\udc", "\\x")
        hint = "rename it, or write it in UTF-8"
        raise Refused(f"{word} is not UTF-8 text", hint, "usage") from None


def _parse(body: bytes) -> Any:
    """The object; None: it is no JSON."""
    with contextlib.suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict):
            return answer
    return None


def is_away(error: Problem) -> bool:
    """Whether the daemon may be restarting. It refuses all requests while it stops."""
    return isinstance(error, Unreachable) or error.code == "unavailable"


def with_query(path: str, query: Mapping[str, object]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, errors='surrogateescape')}" if given else path


def refusal(status: int, answer: Mapping[str, Any]) -> Refused:
    return Refused(
        str(answer.get("error") or f"carmad answered with status {status}"),
        str(answer.get("hint") or ""),
        str(answer.get("code") or ("forbidden" if status == 403 else "error")),
    )


def _what_became(path: str, broken: Broken, again: bool) -> str:
    if not broken.whole:
        return "nothing was done: carmad did not receive the whole request; try again"
    if again:
        return "it may be stopping, busy, or dead: see its log"
    if path == "/v1/jobs":
        return (
            "it is not known whether the job was submitted: check with `carma queue` and"
            " `carma history` before you submit it again"
        )
    return "it is not known whether that was done: repeat it; doing it twice does no harm"


def _where_hint(where: str) -> str:
    """What to do if nothing listens at `where`."""
    if where == paths.SYSTEM_SOCKET and Path(UNIT).exists():
        return (
            "an administrator restores it with `sudo systemctl restart carmad.socket carmad`;"
            " running jobs continue"
        )
    if os.environ.get("CARMA_SOCKET"):
        return f"CARMA_SOCKET names that socket; {START_HINT}"
    return START_HINT
