"""The daemon's API over its unix socket: one request, one connection.

Importing `http.client` alone takes longer than the rest of `carma submit`, so the little HTTP
that is needed is implemented here: an HTTP/1.0 request makes the server close the connection
after its answer, without chunking.
"""

from __future__ import annotations

import _socket
import os
import time

from carma_client import Problem, Refused, Unknown, Unreachable
from carma_client.steps import Receive, Send, Sleep, run
from carmad import paths

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from carma_client.steps import Steps, T

    Parts = list[bytes]  # a long text is never put together
    Answer = tuple[int, float | None, Parts]  # status, in how many seconds to retry, and body

TIMEOUT_S = 30.0
BACK_WITHIN_S = 8.0  # systemd starts a carmad that died after five seconds
RESTARTED_WITHIN_S = 120.0  # a daemon that is upgraded may have to copy its database
LOOK_S = 0.2
# Of which what has no value is left out, as carmad 0.1 refuses fields that it does not know.
SUBMISSIONS = frozenset(("/v1/jobs", "/v1/estimate"))
END = b"\r\n\r\n"  # of the headers
UNIT = "/etc/systemd/system/carmad.socket"  # as `carma daemon install` leaves it
START_HINT = (
    "is carmad running? start one with `carma daemon start`,"
    " or `sudo systemctl start carmad` for the whole server"
)


class Daemon:
    """`socket`: its path; None: the one that the environment names, at each request."""

    def __init__(self, socket: str | None = None) -> None:
        self._socket = socket

    @property
    def socket(self) -> str:
        return self._socket or paths.socket_path()

    def ask(self, path: str, within_s: float = TIMEOUT_S, **query: object) -> Steps[Any]:
        """`query`: parameters that are None are left out."""
        answer = yield from self.ask_text(path, within_s, **query)
        return parse(answer)

    def ask_text(self, path: str, within_s: float = TIMEOUT_S, **query: object) -> Steps[Parts]:
        """The answer's JSON."""
        return self._call("GET", with_query(path, query), b"", within_s, again=True)

    def tell(
        self, path: str, body: object, within_s: float = TIMEOUT_S, *, again: bool = False
    ) -> Steps[Any]:
        """`again`: it changes nothing, so it may be repeated."""
        if isinstance(body, dict) and path.partition("?")[0] in SUBMISSIONS:
            body = {name: value for name, value in body.items() if value not in (None, {})}
        try:
            answer = yield from self._call("POST", path, _encode(body), within_s, again)
        except Refused as refused:
            if not (isinstance(body, dict) and refused.message.startswith("limits: Extra")):
                raise
            del body["limits"]
            answer = yield from self._call("POST", path, _encode(body), within_s, again)
        return parse(answer)

    def _call(
        self, method: str, path: str, body: bytes, within_s: float, again: bool
    ) -> Steps[Parts]:
        if not path.isascii() or not path.isprintable() or " " in path:
            raise Refused(f"{path!r} names nothing that carmad has", code="not_found")
        head = (
            f"{method} {path} HTTP/1.0\r\nHost: carma\r\nAccept: application/json\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        until = time.monotonic() + within_s
        while True:
            status, again_s, answer = yield from _request(
                self.socket, path, head.encode() + body, within_s, again
            )
            if status < 400:
                return answer
            if again_s is None or time.monotonic() + again_s > until:
                break
            yield Sleep(again_s)  # nothing was done: it is safe to retry
        raise refusal(status, parse(answer, refused=True))


def _encode(body: object) -> bytes:
    """Its JSON. Raises Refused for a word or a path that is not UTF-8, which JSON cannot carry."""
    import json

    text = json.dumps(body, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        begin, end = text.rfind('"', 0, error.start) + 1, text.find('"', error.start)
        word = text[begin:end].encode(errors="backslashreplace").decode().replace("\\udc", "\\x")
        hint = "rename it, or write it in UTF-8"
        raise Refused(f"{word} is not UTF-8 text", hint, "usage") from None


class Blocking(Daemon):
    """Any request of the API."""

    def get(self, path: str, within_s: float = TIMEOUT_S, **query: object) -> Any:
        """`query`: parameters that are None are left out."""
        return run(self.ask(path, within_s, **query))

    def get_text(self, path: str, within_s: float = TIMEOUT_S, **query: object) -> Parts:
        """The answer's JSON."""
        return run(self.ask_text(path, within_s, **query))

    def post(
        self, path: str, body: object, within_s: float = TIMEOUT_S, *, again: bool = False
    ) -> Any:
        """`again`: it changes nothing, so it may be repeated."""
        return run(self.tell(path, body, within_s, again=again))


def patiently(ask: Callable[[], Steps[T]]) -> Steps[T]:
    """For a caller that was answered before: the daemon may be restarting."""
    until = time.monotonic() + RESTARTED_WITHIN_S
    while True:
        try:
            return (yield from ask())
        except Problem as error:
            if not is_away(error) or time.monotonic() > until:
                raise
        yield Sleep(LOOK_S)


def is_away(error: Problem) -> bool:
    """Whether the daemon may be restarting. It refuses all requests while it stops."""
    return isinstance(error, Unreachable) or error.code == "unavailable"


def with_query(path: str, query: dict[str, object]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    if not given:
        return path
    values = "".join(map(str, given.values()))
    if not (values.isascii() and values.replace("_", "").isalnum()):
        from urllib.parse import urlencode  # takes 2 ms

        return f"{path}?{urlencode(given, errors='surrogateescape')}"
    return f"{path}?{'&'.join([f'{key}={value}' for key, value in given.items()])}"


def refusal(status: int, answer: dict[str, Any]) -> Refused:
    return Refused(
        str(answer.get("error") or f"carmad answered with status {status}"),
        str(answer.get("hint") or ""),
        str(answer.get("code") or ("forbidden" if status == 403 else "error")),
    )


def _request(where: str, path: str, request: bytes, within_s: float, again: bool) -> Steps[Answer]:
    """`again`: repeat the request if carmad dies over it, as it may be back in a moment. Others are
    not repeated, since they may have been carried out."""
    waited = 0.0
    died = False
    while True:
        try:
            head, body = yield from _exchange(where, request, within_s)
            return *_read(head), body
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
        yield Sleep(LOOK_S)
        waited += LOOK_S


class Broken(Unreachable):
    """No answer. `whole`: carmad had received the whole request. `busy`: it is alive, and a
    retry would add to its load."""

    def __init__(self, message: str, whole: bool, busy: bool = False) -> None:
        super().__init__(message)
        self.whole = whole
        self.busy = busy


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


def connect(connection: _socket.socket, where: str, within_s: float) -> Steps[None]:
    """Connect to the daemon. Raises Unreachable."""
    connection.setblocking(False)
    try:
        yield from _connect(connection, where, time.monotonic() + within_s)
    except PermissionError:
        raise Refused(f"you may not connect to {where}", "ask its owner", "forbidden") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise Unreachable(f"no answer at {where}: {why}", _where_hint(where)) from None


def _exchange(where: str, request: bytes, within_s: float) -> Steps[tuple[bytes, Parts]]:
    """The head of the answer, and its body. Raises Unreachable if the request was not sent, Broken
    if it may have been received."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)  # `socket` takes 3 ms
    try:
        yield from connect(connection, where, within_s)
        whole = False
        chunks: list[bytes] = []
        try:
            try:
                yield Send(connection, request, within_s)
                whole = True
            except BrokenPipeError:  # refused unread: the answer says why
                pass
            while chunk := (yield Receive(connection, within_s)):
                chunks.append(chunk)
        except TimeoutError:
            raise Broken(f"carmad has not answered in {within_s:g} s", whole, busy=True) from None
        except OSError as error:
            if not _is_whole(*_divide(chunks)):  # else: refused without being read, as above
                why = error.strerror or str(error)
                raise Broken(f"the connection to carmad broke: {why}", whole) from None
        head, body = _divide(chunks)
        if not _is_whole(head, body):
            raise Broken("carmad closed the connection without an answer", whole)
        return head, body
    finally:
        connection.close()


def _connect(connection: _socket.socket, where: str, until: float) -> Steps[None]:
    while True:
        try:
            return connection.connect(where)
        except BlockingIOError:  # the listen queue is full
            if time.monotonic() > until:
                raise
            yield Sleep(0.02)


def _where_hint(where: str) -> str:
    """What to do if nothing listens at `where`."""
    if where == paths.SYSTEM_SOCKET and os.path.exists(UNIT):  # noqa: PTH110 - light
        return (
            "an administrator restores it with `sudo systemctl restart carmad.socket carmad`;"
            " running jobs continue"
        )
    if os.environ.get("CARMA_SOCKET"):
        return f"CARMA_SOCKET names that socket; {START_HINT}"
    return START_HINT


def _divide(chunks: Parts) -> tuple[bytes, Parts]:
    """The head, empty if it has no end, and the body."""
    begin = b""
    for at, chunk in enumerate(chunks, 1):
        begin += chunk
        head, end, body = begin.partition(END)
        if end:
            return head, [part for part in (body, *chunks[at:]) if part]
    return b"", []


def _is_whole(head: bytes, body: Parts) -> bool:
    """Whether the answer is as long as its headers say."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return sum(map(len, body)) >= int(value)
    return bool(head)


def _read(head: bytes) -> tuple[int, float | None]:
    """The status, and in how many seconds to retry."""
    try:
        status = int(head.split(None, 2)[1])
    except (IndexError, ValueError):
        raise Refused("the answer is not from carmad", "", "error") from None
    later = head.lower().partition(b"\r\nretry-after: ")[2].split(b"\r\n", 1)[0]
    return status, float(later) if later.isdigit() else None


def parse(body: Parts, refused: bool = False) -> Any:
    """`refused`: the status says enough, if the body is no JSON."""
    try:
        answer = _loads(b"".join(body))
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    if not refused:
        raise Refused("carmad's answer is not JSON", "", "error")
    return {}


class _Reading:
    """How the scanner of `json` reads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _loads(body: bytes) -> Any:
    """As json.loads, without `json`, whose import takes as long as half of `python -c pass`."""
    text = body.decode()
    reading: Any = _Reading()
    try:
        from _json import make_scanner

        answer, end = make_scanner(reading)(text, 0)
        if not text[end:].strip():
            return answer
    except (ImportError, StopIteration):
        pass
    import json

    return json.loads(text)
