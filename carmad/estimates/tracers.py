"""The warm tracers of this process: one for each environment of a user's, while it is used.

Each is a process of the user's in which a job's Python has imported what takes long
(`ports.Warm`), under a keeper of ours (`keeper`), and serves one trial at a time. It ends with this
process. What cannot be forked is left to a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from threading import Lock

from carmad.attempt.forks import Child, helpers
from carmad.attempt.launcher import launch_fields
from carmad.core.jobs.job import Job
from carmad.core.ports import Trial, Warm
from carmad.estimates.attendant import GRACE_S, make_cgroup, remove_cgroup

MOST = 4  # that wait for a script
UNFIT_S = 60.0  # how long an environment is not tried again that has failed
ENDED_WITHIN_S = 2.0
OWNER = 3  # as in `keeper`
# Variables of a shell or a job that no library asks for when it is imported.
VARYING = re.compile(
    r"(CARMA|SLURM|SSH|TMUX|TERM|XDG_SESSION|DBUS_SESSION|PYTEST)_\w*"
    r"|PWD|OLDPWD|SHLVL|_|TERM|TMUX|STY|COLUMNS|LINES|WINDOWID|SLURMD_NODENAME"
)
_NUMBERS = count(1)

Listen = Callable[[int, int, int], Trial | None]


@dataclass(frozen=True, slots=True)
class Request:
    """A trial for a warm tracer."""

    launch: bytes  # how the tracer is started
    order: bytes  # in JSON

    @property
    def key(self) -> bytes:
        """Equal for what the same tracer can serve."""
        return blake2b(self.launch, digest_size=20).digest()


def request(job: Job, env: Mapping[str, str], warm: Warm) -> Request:
    """For the trial of a job."""
    spec = job.spec
    steady = {name: value for name, value in env.items() if not VARYING.fullmatch(name)}
    waits = replace(
        spec,
        argv=warm.start,
        cwd=spec.cwd if _depends_on_folder(warm.start[0], env) else "/",
        umask=0o077,
    )
    launch = launch_fields(replace(job, spec=waits), steady, GRACE_S)
    order = {
        "words": warm.words,
        "cwd": spec.cwd,
        "env": dict(env),
        "umask": spec.umask,
        "began": time.monotonic(),
    }
    return Request(launch, json.dumps(order).encode())


def _depends_on_folder(python: str, env: Mapping[str, str]) -> bool:
    """Whether which Python it is, or where it finds modules, depends on the working directory."""
    folders = [python] if "/" in python else env.get("PATH", "").split(":")
    folders += env["PYTHONPATH"].split(":") if env.get("PYTHONPATH") else []
    return not all(folder.startswith("/") for folder in folders)


@dataclass(frozen=True, slots=True)
class _Keeper:
    key: bytes
    socket: socket.socket
    process: Child
    cgroup: str | None

    def has_ended(self) -> bool:
        return self.process.has_ended()

    def give(self, order: bytes, deadline: float, fds: Sequence[int]) -> None:
        """`fds`: for the output, the answer and the outcome. Raises OSError."""
        request = os.memfd_create("carma-order")
        try:
            os.write(request, order)
            socket.send_fds(self.socket, [str(deadline).encode()], [request, *fds])
        finally:
            os.close(request)

    def close(self) -> None:
        self.socket.close()
        self.process.has_ended(ENDED_WITHIN_S)
        self.process.close()
        if self.cgroup:
            remove_cgroup(self.cgroup)


class Tracers:
    def __init__(self, home: str | None = None) -> None:
        """`home`: the cgroup below which each gets its own."""
        self._home = home
        self._idle: list[_Keeper] = []  # the one that has waited longest first
        self._unfit: dict[bytes, float] = {}  # environments that failed, and when
        self._lock = Lock()
        self._closed = False

    def trial(
        self, request: Request, within_s: float, memory_mib: int, listen: Listen
    ) -> Trial | None:
        """`listen` reads the trial's answer, output and outcome from pipes; it gives None where
        there is no outcome, and then, neither is here: the trial needs a new process."""
        deadline = time.monotonic() + within_s
        keeper = self._take(request.key)
        if keeper and (trial := self._use(keeper, request.order, deadline, listen)):
            return trial
        if time.monotonic() - self._unfit.get(request.key, -UNFIT_S) < UNFIT_S:
            return None
        trial = None
        with contextlib.suppress(OSError):
            keeper = self._start(request, memory_mib)
            trial = self._use(keeper, request.order, deadline, listen)
        if trial is None:
            self._unfit[request.key] = time.monotonic()
        return trial

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for keeper in idle:
            keeper.close()

    def _take(self, key: bytes) -> _Keeper | None:
        with self._lock:
            ended = [one for one in self._idle if one.has_ended()]
            self._idle = [one for one in self._idle if one not in ended]
            found = next((one for one in reversed(self._idle) if one.key == key), None)
            if found:
                self._idle.remove(found)
        for one in ended:
            one.close()
        return found

    def _use(self, keeper: _Keeper, order: bytes, deadline: float, listen: Listen) -> Trial | None:
        trial = None
        try:
            with contextlib.ExitStack() as readers:
                pipes = [os.pipe() for _ in range(3)]
                for reader, _ in pipes:
                    readers.callback(os.close, reader)
                    os.set_blocking(reader, False)
                (from_answer, answer), (from_output, output), (from_verdict, verdict) = pipes
                try:
                    keeper.give(order, deadline, (output, answer, verdict))
                finally:
                    for _, writer in pipes:
                        os.close(writer)
                trial = listen(from_answer, from_output, from_verdict)
        except OSError:  # the keeper has just ended
            pass
        finally:
            self._put(keeper, trial is not None)
        return trial

    def _put(self, keeper: _Keeper, is_well: bool) -> None:
        surplus = [keeper]
        with self._lock:
            if is_well and not self._closed:
                self._idle.append(keeper)
                surplus = self._idle[:-MOST]
                self._idle = self._idle[-MOST:]
        for one in surplus:
            one.close()

    def _start(self, request: Request, memory_mib: int) -> _Keeper:
        memory = memory_mib << 20
        cgroup = make_cgroup(self._home, f"warm{next(_NUMBERS)}", memory) if self._home else None
        launch = os.memfd_create("carma-tracer")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.write(launch, request.launch)
            process = helpers().start(
                "carmad.estimates.keeper",
                "main",
                "carma:tracer",
                str(memory),
                cgroup or "",
                fds={0: launch, OWNER: theirs.fileno()},
            )
        except OSError:
            ours.close()
            if cgroup:
                remove_cgroup(cgroup)
            raise
        finally:
            os.close(launch)
            theirs.close()
        return _Keeper(request.key, ours, process, cgroup)
