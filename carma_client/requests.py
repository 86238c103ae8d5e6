"""What clients ask of the daemon, as steps: requests, and its stream of events (server-sent events
over its unix socket). Imports stay light."""

from __future__ import annotations

import json
import os
import socket
import time

from carma_client import Problem, Refused, Unreachable, transport
from carma_client.limits import soft_limits
from carma_client.steps import Found, Receive, Send, Sleep
from carma_client.transport import TIMEOUT_S, patiently
from carmad.states import ENDED

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from carma_client.steps import Steps
    from carma_client.transport import Daemon

POLL_S = 30
AT_ONCE = 250  # jobs named in a request: the daemon takes 256 tasks of arrays


def submit(
    daemon: Daemon, argv: Sequence[str | os.PathLike[str]], options: Mapping[str, Any]
) -> Steps[str]:
    """The new job's label."""
    if isinstance(argv, str):
        raise TypeError("argv is a list of words; for a shell's line: ['sh', '-c', line]")
    body = {
        "env": _environment(),
        "umask": _umask(),
        "limits": soft_limits(),
        **options,
        "cwd": os.path.abspath(options.get("cwd", ".")),  # noqa: PTH100 - light
        "argv": [os.fspath(word) for word in argv],
    }
    label: str = (yield from daemon.tell("/v1/jobs", body))["label"]
    return label


def _environment() -> dict[str, str]:
    """Without what is not UTF-8, which JSON cannot carry."""
    return {name: value for name, value in os.environ.items() if _is_text(name + value)}


def _is_text(word: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in word)


def _umask() -> str:
    """From the kernel: os.umask would change it for a moment, in all threads."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        return next(line.split()[1] for line in file if line.startswith("Umask:"))


def job_path(label: str) -> str:
    """Raises Refused for what is no label, which might name something else in a path."""
    if not label.replace("_", "").isalnum():
        raise Refused(f"there is no job {label!r}", code="not_found")
    return f"/v1/jobs/{label}"


def list_jobs(
    daemon: Daemon, select: str | Iterable[str] | None, user: str | None, states: str | None
) -> Steps[list[Any]]:
    found: list[Any] = []
    for chosen in [None] if select is None else _parts(select):
        answer = yield from daemon.ask("/v1/jobs", select=chosen, user=user, states=states)
        found += answer["jobs"]
    return found


def act(daemon: Daemon, verb: str, labels: Sequence[str]) -> Steps[list[Any]]:
    """`cancel`, `hold`, `release` or `requeue`. Raises Refused if not all could be."""
    results: list[Any] = []
    for select in _parts(labels):
        body = {"select": select}
        told = requeue(daemon, body) if verb == "requeue" else daemon.tell(f"/v1/{verb}", body)
        results += (yield from told)["results"]
    if failed := [f"job {each['label']} {each['message']}" for each in results if not each["ok"]]:
        raise Refused("; ".join(failed), code="refused")
    return results


def requeue(daemon: Daemon, body: dict[str, Any]) -> Steps[Any]:
    """The answer. What looks like a secret is not stored once a job has ended: it comes from this
    process's environment, for the jobs that had it."""
    path = "/v1/requeue"
    try:
        answer = yield from daemon.tell(path, {**body, "asks": True})
    except Refused as refused:
        if refused.code != "bad_request":
            raise
        return (yield from daemon.tell(path, body))  # carmad 0.1 knows no `asks`
    if lacking := answer.get("lacking"):
        here = _environment()
        env = {name: here[name] for name in lacking if name in here}
        answer = yield from daemon.tell(path, {**body, "env": env})
    return answer


def _parts(select: str | Iterable[str]) -> Iterator[str]:
    labels = [select] if isinstance(select, str) else list(select)
    for at in range(0, len(labels), AT_ONCE):
        yield ",".join(labels[at : at + AT_ONCE])


def wait(daemon: Daemon, label: str) -> Steps[Any]:
    """The job once it has ended. A daemon that restarts meanwhile is waited for, but not one that
    has never answered."""
    path, within_s = f"{job_path(label)}/wait", POLL_S + TIMEOUT_S
    job = yield from daemon.ask(path, timeout_s=0)
    while job["state"] not in ENDED:
        job = yield from patiently(lambda: daemon.ask(path, within_s, timeout_s=POLL_S))
    return job


SILENT_S = 60.0  # a daemon that lives gives a sign of life every quarter of a minute


def events(
    daemon: transport.Daemon,
    broken: Callable[[str], None] = lambda why: None,
    **query: object,
) -> Steps[None]:
    """Finds the events, from a first one called `watching`, until all selected jobs have ended. If
    the daemon stops, `broken` is called, and the stream goes on after the last event once it is
    back."""
    path, last, lost_at = transport.with_query("/v1/events", query), "", 0.0
    while True:
        try:
            stream = Stream(daemon, path, last)
            with stream.connection:
                yield from stream.open()
                while event := (yield from stream.next()):
                    lost_at, last = 0.0, event["id"]
                    if event["event"] == "over":
                        return
                    yield Found(event)
            raise ConnectionError("carmad is stopping")
        except (OSError, ValueError, Problem) as error:
            now = time.monotonic()
            if isinstance(error, Problem) and not transport.is_away(error):
                raise
            if not last or (lost_at and now - lost_at > transport.RESTARTED_WITHIN_S):
                if isinstance(error, Problem):
                    raise
                raise Unreachable("the connection to carmad broke") from None
            if not lost_at:
                lost_at = now
                broken("the connection to carmad broke: waiting for it to come back")
            yield Sleep(transport.LOOK_S)


class Stream:
    """One connection. Its methods raise OSError or ValueError when it breaks."""

    def __init__(self, daemon: transport.Daemon, path: str, last: str) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._where = daemon.socket
        resume = f"Last-Event-ID: {last}\r\n" if last else ""
        self._head = f"GET {path} HTTP/1.1\r\nHost: carma\r\nConnection: close\r\n{resume}\r\n"
        self._buffer = b""
        self._found: list[Any] = []

    def open(self) -> Steps[None]:
        yield from transport.connect(self.connection, self._where, transport.TIMEOUT_S)
        yield Send(self.connection, self._head.encode(), transport.TIMEOUT_S)
        status = int((yield from self._line())[9:12])
        length = 0
        while header := (yield from self._line()).strip():
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if status >= 400:
            raise transport.refusal(status, json.loads((yield from self._exactly(length))))

    def next(self) -> Steps[Any]:
        """The next event; None: it has come to its end."""
        while not self._found:  # the daemon never splits an event among chunks
            size = int((yield from self._line()), 16)
            if not size:
                return None
            chunk = yield from self._exactly(size)
            yield from self._line()
            data = (line[6:] for line in chunk.split(b"\n") if line.startswith(b"data: "))
            self._found = [json.loads(each) for each in data]
        return self._found.pop(0)

    def _line(self) -> Steps[bytes]:
        while b"\n" not in self._buffer:
            yield from self._more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _exactly(self, size: int) -> Steps[bytes]:
        while len(self._buffer) < size:
            yield from self._more()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _more(self) -> Steps[None]:
        more = yield Receive(self.connection, SILENT_S)
        if not more:
            raise ConnectionError("carmad closed the connection")
        self._buffer += more
