"""A daemon without processes: the real core, store, engine and server, and a simulated world."""

from __future__ import annotations

import contextlib
import grp
import http.client
import json
import os
import pwd
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from carma_testing import a_gpu
from carma_testing.fake_server import FakeWorld
from carmad.api.app import create_app
from carmad.api.service import Service
from carmad.attempt.callers import Process, Taken
from carmad.config import Access, Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.messages import Action, Discovered, Stop
from carmad.core.ports import Server
from carmad.core.scheduler import Scheduler
from carmad.daemon import doctor
from carmad.engine.clock import Clock
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.estimates.asking import Guess
from carmad.estimates.experience import Experience
from carmad.explanation import ExplanationOut
from carmad.gpu.source import Capabilities
from carmad.http.connections import Credentials
from carmad.http.server import Server as HttpServer
from carmad.learning.trained import Models
from carmad.store.sql import SqlStore
from carmad.timeline.recorder import Timeline
from estimators.declared import Declared
from estimators.tracer.report import Explanation, Held, Moment, Remedy
from estimators.tracing import explanation_out
from policies import builtin
from recovery import ladder
from tests.attempts import until
from tests.waiting import PATIENCE_S

ROOT_JOBS = Settings(access=Access(root_jobs=True))
CAPABILITIES = Capabilities("test", ("utilization",), (("sm_active", "it is a test"),))


class Untrained(Models):
    """Training would take minutes."""

    begun = 0

    def train(self) -> None:
        self.begun += 1


class NoProcesses:
    """Jobs are only pretended here, so nobody can run one or join it."""

    def take(self, job: JobId, process: Process) -> Future[Taken]:
        raise CarmaError("no processes run here")

    def join(self, job: Job, process: Process) -> Future[Taken]:
        raise CarmaError("no processes run here")

    def has_begun(self, job: Job) -> bool:
        return False

    def has_joined(self, job: Job, process: Process) -> bool:
        return False


class Daemon:
    def __init__(self, folder: Path, settings: Settings = ROOT_JOBS, gpus: int = 3) -> None:
        # It samples when a test says so, and no test takes a day.
        settings = replace(settings, monitor=replace(settings.monitor, stale_s=86_400.0))
        self.settings = settings
        self.store = SqlStore.open(folder / "carma.db")
        self.inbox = Inbox(Clock(), 1)
        self.gpus = tuple(a_gpu(n) for n in range(gpus))
        self.world = FakeWorld(self.gpus, self.inbox.clock, self.inbox.post)
        scheduler = Scheduler(settings, builtin.magm(settings), ladder.exclusive(settings))
        timeline = Timeline(folder / "timeline.db")
        self.service = Service(
            inbox=self.inbox,
            store=self.store,
            settings=settings,
            started_at=time.time(),
            capabilities=lambda: CAPABILITIES,
            experience=Experience(settings),
            estimate=_guesses,
            doctor=lambda scene: doctor.checks(
                settings, scene, CAPABILITIES, self.store, False, None, self.service.models
            ),
            models=Untrained(folder / "models", self.store, 0.0, lambda models: None),
            timeline=timeline,
            terminals=NoProcesses(),
        )
        self.service.events.listeners.append(timeline)
        self.app = create_app(self.service)
        self.path = str(folder / "carmad.sock")
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(self.path)
        Path(self.path).chmod(0o666)
        self.server = HttpServer(sock, self.app)
        followers = (timeline, self.service, self.service.counts)
        engine = Engine(self.inbox, scheduler, self.store, self, followers)
        engine.restore()
        self._core = threading.Thread(target=engine.run, daemon=True)

    def perform(self, action: Action) -> None:
        """Stopped jobs end at once."""
        self.world.perform(action)
        if isinstance(action, Stop) and (action.job.id, action.job.attempt) in self.world.alive:
            self.inbox.post(self.world.end_attempt(action.job.id, Exit(Cause.CANCELLED, signal=15)))

    def start(self) -> None:
        self._core.start()
        self.inbox.request(Discovered(self.inbox.clock(), self.gpus)).result(PATIENCE_S)
        self.sample()
        self.server.start()

    def stop(self) -> None:
        self.server.stop()
        self.inbox.close()
        self._core.join(PATIENCE_S)
        self.store.close()

    def sample(self) -> None:
        self.inbox.request(self.world.read_gpus()).result(PATIENCE_S)

    def run_kernel(self, job: int, mib: int = 1000) -> None:
        self.world.run_kernel(self._launched(job), mib)
        self.sample()

    def exit(self, job: int, exit: Exit | None = None) -> None:
        self.inbox.request(self.world.end_attempt(self._launched(job), exit)).result(PATIENCE_S)

    def _launched(self, job: int) -> JobId:
        """A submission is acknowledged before its job is estimated and launched."""
        until(lambda: any(id == job for id, _ in list(self.world.alive)), "the job to be launched")
        return JobId(job)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Call it as this process's user."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return request(self.path, method, path, data)


def an_explanation() -> ExplanationOut:
    """Of a trace, as if a model of twelve blocks were trained."""
    mib = 2**20
    held = Held("blocks.*", "Linear", 12, 900 * mib)
    line = Held("train.py:12", "", 0, 950 * mib)
    remedies = (
        Remedy("half the batch: 32 instead of 64", 500 * mib, False),
        Remedy("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 200 * mib, True),
    )
    first = Moment((400 * mib, 0, 0, 500 * mib, 0, 100 * mib), 1_200 * mib, "step1")
    fullest = Moment((400 * mib, 400 * mib, 800 * mib, 1000 * mib, 0, 100 * mib), 3_000 * mib, "")
    return explanation_out(Explanation((held,), (line,), remedies, (first, fullest)))


def _guesses(
    spec: JobSpec, within_s: float | None, server: Server
) -> tuple[list[Guess], ExplanationOut | None]:
    answer = Declared().estimate(spec)
    other = Estimate(9_000, "guess", 8_000, 12_000, notes=("a guess",), parts=(("all", 9_000),))
    guesses = [
        Guess("declared", answer, 0.0, isinstance(answer, Estimate)),
        Guess("guess", other, 0.0, False),
    ]
    return guesses, an_explanation() if server.explain else None


@contextlib.contextmanager
def running(folder: Path, settings: Settings = ROOT_JOBS, gpus: int = 3) -> Iterator[Daemon]:
    daemon = Daemon(folder, settings, gpus)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


class Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("carma", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(path: str, method: str, target: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
    connection = Connection(path)
    try:
        connection.request(method, target, body, {"content-type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        assert response.headers["X-Carma-Version"]
        return response.status, json.loads(raw) if raw else {}
    finally:
        connection.close()


def as_user(uid: int, attack: Callable[[], Any]) -> Any:
    """Run `attack` in a process of that user, and return its result, which must be JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = json.dumps({"answer": attack()})
        except BaseException as error:  # noqa: BLE001 - reported by the parent
            answer = json.dumps({"error": repr(error)})
        with os.fdopen(writer, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in said, said
    return said["answer"]


def as_uid(uid: int, path: str, method: str, target: str, body: object = None) -> Any:
    """Run `request` in a process of another user, and return its result."""
    data = None if body is None else json.dumps(body).encode()
    status, out = as_user(uid, lambda: request(path, method, target, data))
    return status, out


class AsUser:
    """The app without a socket, called by `uid`."""

    def __init__(self, app: Any, uid: int) -> None:
        self.app = app
        self.credentials = Credentials(uid, uid)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["credentials"] = self.credentials
        await self.app(scope, receive, send)


def user_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def group_name(gid: int) -> str:
    return grp.getgrgid(gid).gr_name
