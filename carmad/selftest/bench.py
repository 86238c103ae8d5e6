"""What a check works with: the GPU as the daemon reads it, and probes and MPS daemons on it, all of
which are gone when the check ends, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from carmad.attempt.environment import mps_environment
from carmad.attempt.proc import own_environment
from carmad.config import Settings
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps
from carmad.gpu.source import TelemetrySource, Unit
from carmad.paths import python

T = TypeVar("T")

PROBE = "carmad.selftest.probe"
ANSWER_WITHIN_S = 30.0  # a first context may take many seconds without persistence mode
ENDED_WITHIN_S = 10.0
LISTED_WITHIN_S = 2.0
POLL_S = 0.1
NEAR_MIB = 64  # what the driver may round or keep; contexts and allocations are larger
NOBODY = 65534
ONE_GPU = "no second GPU is idle"
MARK = "CARMA_SELFTEST"  # in the environment of every process of the self-test: its folder


class ProbeFailed(Exception):
    """The driver's error (`name`), or "" if the probe ended or kept silent."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Silent(ProbeFailed):
    """It has not answered in time."""


class Probe:
    """A child process that uses the GPU and answers requests in lines of JSON. What else it prints
    (libraries do) is passed over."""

    def __init__(self, command: Sequence[str], env: dict[str, str], uid: int | None = None) -> None:
        as_user: dict[str, Any] = {}
        if uid is not None:
            as_user = {"user": uid, "group": uid, "extra_groups": []}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process is
        self._child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for the self-test, which ends its probes
            **as_user,
        )
        self._read = b""

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(self, do: str, within_s: float | None = None, **words: object) -> dict[str, Any]:
        """Raises ProbeFailed."""
        self.begin(do, **words)
        return self.answer(within_s)

    def begin(self, do: str, **words: object) -> None:
        """Without waiting for the answer: `answer` does."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"do": do} | words).encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise ProbeFailed(f"the probe has ended: {error.strerror}") from error

    def answer(self, within_s: float | None = None) -> dict[str, Any]:
        assert self._child.stdout is not None
        within_s = ANSWER_WITHIN_S if within_s is None else within_s
        deadline = time.monotonic() + within_s
        while (answer := self._next()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._child.stdout], [], [], left)[0]:
                raise Silent(f"the probe has not answered in {within_s:g} s")
            part = os.read(self._child.stdout.fileno(), 65536)
            if not part:
                words = self.errors().rpartition("\n")[2] or "it does not say why"
                raise ProbeFailed(f"the probe has ended: {words}")
            self._read += part
        if "error" in answer:
            raise ProbeFailed(answer["call"], answer["error"])
        return answer

    def _next(self) -> dict[str, Any] | None:
        """The first answer among the lines that have been read."""
        while b"\n" in self._read:
            line, _, self._read = self._read.partition(b"\n")
            with contextlib.suppress(ValueError):
                if isinstance(answer := json.loads(line), dict):
                    return answer
        return None

    def errors(self) -> str:
        """Its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def code(self, within_s: float) -> int:
        """How it ended, once it has. Raises ProbeFailed."""
        try:
            return self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Silent(f"the probe has not ended in {within_s:g} s") from None

    def kill(self) -> None:
        """By SIGKILL, whatever it is doing."""
        self._child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver
            self._child.wait(ENDED_WITHIN_S)

    def end(self, within_s: float = ENDED_WITHIN_S) -> None:
        """In an orderly way where it obeys a SIGTERM within this time."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # it has ended, with a request not yet read
                    stream.close()
        for stop, wait_s in ((None, 1.0), (signal.SIGTERM, within_s)):
            if stop is not None:
                self._child.send_signal(stop)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(wait_s)
                return
        self.kill()


class Bench:
    def __init__(
        self,
        unit: Unit,
        source: TelemetrySource,
        settings: Settings,
        folder: Path,
        busy_s: float = 4.0,
        probe: str = PROBE,
    ) -> None:
        """`folder`: short, and open to every user. `busy_s`: how long a process runs kernels, or
        none, for the driver to notice. `probe`: the module that processes run."""
        self.unit = unit
        self.gpu = unit.gpu
        self.source = source
        self.settings = settings
        self.folder = folder
        self.busy_s = busy_s
        self._probe = probe
        self._probes: list[Probe] = []
        self._served: list[tuple[Mps, GpuId]] = []

    # -- what runs on the GPU ---------------------------------------------------------------------

    def probe(
        self,
        mps: Mps | None = None,
        limit_mib: int | None = None,
        uid: int | None = None,
        context: bool = True,
        gpu: GpuId | None = None,
    ) -> Probe:
        """A process with a context, under `mps` or without any, on `gpu` or else the GPU under
        test. Raises ProbeFailed."""
        command = python(self._probe)
        probe = self.run(command, self.environment(mps, limit_mib, gpu), uid)
        probe.ask("context" if context else "hello")
        return probe

    def run(self, command: Sequence[str], env: dict[str, str], uid: int | None = None) -> Probe:
        probe = Probe(command, env, uid)
        self._probes.append(probe)
        return probe

    def environment(
        self, mps: Mps | None = None, limit_mib: int | None = None, gpu: GpuId | None = None
    ) -> dict[str, str]:
        """As a job's: so the GPU, the pipes and the limit are named."""
        gpu = gpu or self.gpu.id
        kept = {name: its for name, its in os.environ.items() if not name.startswith("CUDA_")}
        pipe, log = (mps.daemon(gpu).pipe, mps.daemon(gpu).log) if mps else (None, None)
        return {
            **kept,
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            MARK: str(self.folder),
            **mps_environment([gpu], pipe, log, limit_mib),
        }

    def serve(self, *gpus: GpuId, multiuser: bool = False, one: bool = False) -> Mps:
        """An MPS control daemon for each of these GPUs, or for the GPU under test; `one`: one for
        all of them. Raises CarmaError."""
        gpus = gpus or (self.gpu.id,)
        node = (lambda: gpus) if one else None
        mps = Mps(self.folder / "mps", multiuser=multiuser, systemd=False, node=node)
        for gpu in gpus[:1] if one else gpus:
            self._start(mps, gpu)
        return mps

    def _start(self, mps: Mps, gpu: GpuId) -> None:
        self._served.append((mps, gpu))
        try:
            mps.start(gpu)
        except CarmaError as error:
            # Its files are gone when the self-test ends.
            logs = sorted(mps.daemon(gpu).log.glob("*.log"))
            words = [log.read_text(errors="replace").strip().rpartition("\n")[2] for log in logs]
            said = "; ".join(filter(None, words))
            raise CarmaError(error.message, said or error.hint) from error

    def clear(self) -> None:
        """End what runs, MPS last: a client that outlives its server may hang."""
        if not self._probes and not self._served:
            return
        for probe in self._probes:
            probe.end()
        for mps, gpu in self._served:
            with contextlib.suppress(CarmaError):
                mps.stop(gpu)
        kill_leftovers(self.folder)
        self._probes.clear()
        self._served.clear()
        with contextlib.suppress(CarmaError):  # the next check will say that the GPU is lost
            self.until(lambda sample: not sample.processes, ENDED_WITHIN_S)

    def others(self) -> str:
        """The pids on the GPU, when none of ours is there."""
        return ", ".join(str(use.pid) for use in self.sample().processes)

    def second(self) -> GpuId | None:
        """Another GPU that is idle, if there is one and neither it nor this one is divided."""
        idle = {s.gpu for s in self.source.sample(time.time()) if not s.processes and not s.fault}
        others = (gpu for gpu in self.source.discover() if gpu.id in idle - {self.gpu.id})
        whole = (gpu.id for gpu in others if not gpu.is_mig and not self.gpu.is_mig)
        return next(whole, None)

    # -- what the daemon reads --------------------------------------------------------------------

    def sample(self) -> GpuSample:
        """Raises CarmaError if the GPU cannot be read."""
        its = next(s for s in self.source.sample(time.time()) if s.gpu == self.gpu.id)
        if its.fault or its.memory_used_mib is None or its.memory_free_mib is None:
            raise CarmaError(its.fault or "the driver does not tell the GPU's memory")
        return its

    def memory(self) -> tuple[int, int]:
        """MiB used and free."""
        its = self.sample()
        return its.memory_used_mib or 0, its.memory_free_mib or 0

    def samples(self, seconds: float, period_s: float = POLL_S) -> Iterator[GpuSample]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(period_s)
            yield self.sample()

    def until(self, done: Callable[[GpuSample], T | None], within_s: float) -> T | None:
        """What `done` makes of the first sample of which it makes anything; None: of none."""
        found = done(self.sample())
        for sample in self.samples(within_s):
            if found:
                break
            found = done(sample)
        return found or None

    def use(self, probe: Probe, sample: GpuSample | None = None) -> ProcessUse | None:
        """The probe's line in the list of processes."""
        its = (sample or self.sample()).processes
        return next((use for use in its if use.pid == probe.pid), None)

    def mib(self, wanted: int) -> int:
        """`wanted`, or less on a GPU that has little."""
        return min(wanted, self.gpu.memory_mib // 16)


def kill_leftovers(folder: Path) -> None:
    """Kill what still lives of the self-tests that run in `folder` or below it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            env = own_environment(process.pid)
            # An MPS server has its daemon's environment, which has no mark.
            its = (env.get(MARK, ""), env.get("CUDA_MPS_PIPE_DIRECTORY", ""))
            if process.pid != os.getpid() and any(each.startswith(str(folder)) for each in its):
                process.kill()
                process.wait(ENDED_WITHIN_S)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """With a short path: sockets of MPS lie below. It is in the folder of whoever started this
    self-test, if they have one: they can find its processes by it."""
    with tempfile.TemporaryDirectory(prefix="carma-", dir=os.environ.get(MARK, "/tmp")) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def orderly() -> Iterator[None]:
    """A SIGTERM ends the block as a Ctrl-C does: with everything cleared up."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [(each, signal.signal(each, interrupt)) for each in (signal.SIGTERM, signal.SIGINT)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
