"""What estimators learn from: earlier runs, and trials of a program; both through a `Server`.

A trial runs a program briefly as the job's user, and leaves nothing of it behind. The program is
the child of an attendant (`attendant`), which kills it with all that it started at the deadline, or
if this daemon dies. It has the job's environment, directory, user and groups, no GPU, a low
priority and limits on processes and memory, and is killed first when memory runs out. What it
writes or sends is not restricted here: the job itself could do as much.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

from carmad.attempt.environment import job_environment
from carmad.attempt.launcher import Copies, plan_launch
from carmad.attempt.starting import Launch, program, write_all
from carmad.config import Settings
from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import Attempt, GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.recurrence import command
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.jobs.states import Active, JobState
from carmad.core.messages import Discovered, Step
from carmad.core.ports import ANSWER_FD, Run, Server, Trial
from carmad.errors import CarmaError
from carmad.estimates.attendant import GRACE_S, make_cgroup, remove_cgroup

# -- trials

MOST_ANSWER_BYTES = 8 << 20
TAIL_BYTES = 64 << 10
MOST_MEMORY_MIB = 10 << 10
_NUMBERS = itertools.count(1)
KILLED_WITHIN_S = 0.5  # on top of the grace: then the attendant is given up
MOST_LEFT_BYTES = 1 << 20  # in a pipe, when the program has ended
LOOK_S = 0.2  # between two checks whether anybody still waits for it
STOPPED = "nobody waits for it any more"
IN_CONTAINER = "the job runs in a container, where it cannot be tried: declare --gpu-mem"
BREATH_S = 0.001  # between two reads: a program that floods its output must not keep us busy


def try_program(
    spec: JobSpec,
    argv: Sequence[str],
    within_s: float,
    stop: Callable[[], bool],
    memory_mib: int = MOST_MEMORY_MIB,
    home: str | None = None,
    copies: Copies | None = None,
) -> Trial:
    """Run `argv`, and return the outcome. Never raises; returns at most 1 s after `within_s`, and
    soon after `stop` is true. `home`: the cgroup below which to create the trial's. `copies`: where
    to put the job script that `argv` contains; None: the original is run."""
    if spec.container is not None:
        return _failure(IN_CONTAINER)
    if copies and spec.script:
        return _of_copy(spec, argv, within_s, stop, memory_mib, home, copies)
    spec = replace(spec, argv=tuple(argv), script=None)
    job = Job(JobId(0), spec, Active(JobState.STARTING, Attempt(1, ())), 0.0)
    deadline = time.monotonic() + within_s + GRACE_S + KILLED_WITHIN_S
    if stop():
        return _failure(STOPPED)
    try:
        launch = plan_launch(job, job_environment(job, ()), GRACE_S)
        with _limits(home, memory_mib << 20) as bound, _attend(launch, within_s, bound) as pipes:
            found = _listen(*pipes, deadline, stop)
            return found or _failure("the trial failed: it was killed")
    except CarmaError as error:
        return _failure(error.message)
    except OSError as error:
        return _failure(f"cannot start a process: {error.strerror or error}")


def _of_copy(
    spec: JobSpec,
    argv: Sequence[str],
    within_s: float,
    stop: Callable[[], bool],
    memory_mib: int,
    home: str | None,
    copies: Copies,
) -> Trial:
    """The trial of a copy of the job's script; it is told as if it were of the original."""
    assert spec.script
    name, original = f"trial{next(_NUMBERS)}", spec.argv[spec.script.word]
    copy = copies.path(name)
    try:
        copies.write(name, spec)
        words = [copy if word == original else word for word in argv]
        trial = try_program(spec, words, within_s, stop, memory_mib, home)
    except OSError as error:
        return _failure(f"cannot copy the job script: {error.strerror or error}")
    finally:
        copies.remove(name)
    in_json = json.dumps(original)[1:-1].encode()
    answer = trial.answer.replace(copy.encode(), in_json)
    return replace(trial, answer=answer, output=trial.output.replace(copy, original))


def _failure(why: str, output: str = "") -> Trial:
    return Trial(b"", output, error=why)


@contextlib.contextmanager
def _limits(home: str | None, memory: int) -> Iterator[tuple[int, str]]:
    """Yields the trial's memory limit in bytes, and its cgroup ("": none)."""
    cgroup = make_cgroup(home, str(next(_NUMBERS)), memory) if home else None
    try:
        yield memory, cgroup or ""
    finally:
        if cgroup:
            remove_cgroup(cgroup)


@contextlib.contextmanager
def _attend(
    launch: Launch, within_s: float, bound: tuple[int, str]
) -> Iterator[tuple[int, int, int]]:
    """Start the program. Yields the pipes of its answer, its output and its attendant's verdict. It
    runs only while the last one is open."""
    with contextlib.ExitStack() as readers, contextlib.ExitStack() as writers:
        request = os.memfd_create("carma-trial")
        writers.callback(os.close, request)
        write_all(request, launch.dumps())

        def pipe() -> tuple[int, int]:
            reader, writer = os.pipe()
            readers.callback(os.close, reader)
            writers.callback(os.close, writer)
            os.set_blocking(reader, False)
            return reader, writer

        from_answer, answer = pipe()
        from_output, output = pipe()
        from_verdict, verdict = pipe()
        words = map(str, (answer, ANSWER_FD, within_s, *bound))
        attendant = subprocess.Popen(
            [*program("carmad.estimates.attendant"), *words],
            env={},
            stdin=request,
            stdout=output,
            stderr=verdict,
            pass_fds=[answer],
            cwd="/",
            start_new_session=True,
        )
        writers.close()
        try:
            yield from_answer, from_output, from_verdict
        finally:
            readers.close()  # if it is still running, this ends it
            with contextlib.suppress(subprocess.TimeoutExpired):
                attendant.wait(KILLED_WITHIN_S)


def _listen(
    answer: int, output: int, verdict: int, deadline: float, stop: Callable[[], bool]
) -> Trial | None:
    """None: there is no outcome."""
    heard = {pipe: bytearray() for pipe in (answer, output, verdict)}
    with selectors.DefaultSelector() as selector:
        for pipe in heard:
            selector.register(pipe, selectors.EVENT_READ)
        while verdict in selector.get_map() and not stop():
            if time.monotonic() > deadline:
                heard[verdict][:] = json.dumps({"timed_out": True}).encode()
                break
            for key, _ in selector.select(LOOK_S):
                if not _read(key.fd, heard[key.fd]):
                    selector.unregister(key.fd)
            del heard[output][:-TAIL_BYTES]
            if len(heard[answer]) > MOST_ANSWER_BYTES:
                return _failure(f"its answer exceeded {MOST_ANSWER_BYTES >> 20} MiB")
            time.sleep(BREATH_S)
    if stop():
        return _failure(STOPPED)
    for pipe in (answer, output):  # another process may hold it open, and go on writing
        left = len(heard[pipe]) + MOST_LEFT_BYTES
        while len(heard[pipe]) < left and _read(pipe, heard[pipe]):
            pass
    if len(heard[answer]) > MOST_ANSWER_BYTES:
        return _failure(f"its answer exceeded {MOST_ANSWER_BYTES >> 20} MiB")
    printed = heard[output][-TAIL_BYTES:].decode("utf-8", "replace")
    return _trial(heard[verdict].decode("utf-8", "replace"), bytes(heard[answer]), printed)


def _read(pipe: int, data: bytearray) -> bool:
    """False at the end, or if there is nothing to read at the moment."""
    try:
        chunk = os.read(pipe, TAIL_BYTES)
    except BlockingIOError:
        return False
    data += chunk
    return bool(chunk)


def _trial(verdict: str, answer: bytes, output: str) -> Trial | None:
    """The trial, from the attendant's verdict, if there is any."""
    if not verdict:
        return None
    try:
        return Trial(answer, output, **json.loads(verdict))
    except ValueError:
        last = verdict.strip().rpartition("\n")[2]
        return _failure(f"the trial failed: {last}", output)


JOBS_PER_USER = 200  # remembered: a large array must not displace other users' jobs
FILES_MIB = 2048  # what a traced script may write, in memory (estimators.tracer.scratch)
PERIODS = 5  # of sampling: a shorter job's peak may have been missed
GPUS_WITHIN_S = 5.0  # at startup, estimates may be requested before the GPUs are found
DRIVER = Path("/sys/module/nvidia/version")


class Experience:
    """Updated with every step in the core's thread; read in any."""

    def __init__(
        self,
        settings: Settings,
        driver: str = "",
        trials: str | None = None,
        copies: Copies | None = None,
    ) -> None:
        """`trials`: the cgroup below which each trial gets its own; `copies`: where they get copies
        of job scripts."""
        self.trials, self.copies = trials, copies
        self.trial_mib = settings.estimation.host_memory_mib + FILES_MIB
        self._shortest_s = PERIODS * settings.monitor.period_s
        self._driver = driver
        self._gpus: dict[GpuId, Gpu] = {}
        self._discovered = Event()
        self._patience_s = GPUS_WITHIN_S
        self._jobs: dict[Owner, deque[Job]] = {}  # by user, the newest last
        self._lock = Lock()
        self._closed = Event()

    def remember(self, jobs: Iterable[Job]) -> None:
        """Add jobs from the store, the newest last."""
        with self._lock:
            for job in jobs:
                if self._teaches(job):
                    mine = self._jobs.setdefault(job.spec.owner, deque(maxlen=JOBS_PER_USER))
                    mine.append(job)

    def on_commit(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, Discovered) and not event.unread:
                self._gpus = {gpu.id: gpu for gpu in event.gpus}
                self._discovered.set()
        self.remember(step.jobs)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Abort running trials."""
        self._closed.set()
        self._discovered.set()

    def server(self, explain: bool = False, abandoned: Event | None = None) -> Server:
        """A `Server` for one question, shared by all estimators that are asked. `abandoned`: when
        it is set, its trials are ended."""
        return _OneQuestion(self, self._driver, explain, abandoned or Event())

    def await_gpus(self) -> None:
        """In an estimator's thread: wait until the GPUs are known, but time out only once."""
        self._discovered.wait(self._patience_s)
        self._patience_s = 0.0

    def gpu(self) -> str:
        """The most common model."""
        models = Counter(gpu.name for gpu in self._gpus.values())
        return models.most_common(1)[0][0] if models else ""

    def users(self) -> Collection[Owner]:
        with self._lock:
            return tuple(self._jobs)

    def runs(self, owner: Owner) -> Sequence[Run]:
        with self._lock:
            found = list(self._jobs.get(owner, ()))
        found.sort(key=lambda job: job.ended_at or 0.0, reverse=True)
        return [self._run(job) for job in found]

    def _teaches(self, job: Job) -> bool:
        """Whether its peak is useful: it succeeded in one attempt, with unsplit batches, and was
        watched for long enough."""
        return (
            job.state is JobState.SUCCEEDED
            and job.usage.peak_mib > 0
            and not job.failures
            and job.accumulation == 1
            and job.served_s == 0.0
            and job.started_at is not None
            and job.ended_at is not None
            and job.ended_at - job.started_at >= self._shortest_s
        )

    def _run(self, job: Job) -> Run:
        gpu = self._gpus.get(job.gpus[0]) if job.gpus else None
        assert job.started_at is not None and job.ended_at is not None
        return Run(
            replace(job.spec, argv=command(job.spec)),
            job.usage.peak_mib,
            job.estimate,
            gpu.name if gpu else "",
            job.started_at,
            job.ended_at,
        )


class _OneQuestion:
    """A `Server` that caches trials, so that several estimators share them."""

    def __init__(
        self, experience: Experience, driver: str, explain: bool, abandoned: Event
    ) -> None:
        self.driver, self.explain = driver, explain
        self._experience = experience
        self._abandoned = abandoned
        self._trials: dict[tuple[JobSpec, tuple[str, ...]], Trial] = {}
        self._one_at_a_time = Lock()

    @property
    def gpu(self) -> str:
        self._experience.await_gpus()
        return self._experience.gpu()

    def users(self) -> Collection[Owner]:
        return self._experience.users()

    def runs(self, owner: Owner) -> Sequence[Run]:
        self._experience.await_gpus()
        return self._experience.runs(owner)

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        key = (spec, tuple(argv))
        with self._one_at_a_time:
            if key not in self._trials:
                self._trials[key] = try_program(
                    spec,
                    argv,
                    within_s,
                    self._is_over,
                    self._experience.trial_mib,
                    self._experience.trials,
                    self._experience.copies,
                )
            return self._trials[key]

    def _is_over(self) -> bool:
        return self._abandoned.is_set() or self._experience.is_closed


def driver_version() -> str:
    """The version of the loaded NVIDIA driver; "" if there is none."""
    with contextlib.suppress(OSError):
        return DRIVER.read_text().strip()
    return ""
