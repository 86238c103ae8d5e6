"""Runs a program briefly as a job's user, for estimators, and leaves nothing of it behind.

The program is the child of an attendant (`attendant`), which kills it with all that it started at
the deadline, or if this daemon dies. It has the job's environment, directory, user and groups, no
GPU, a low priority and limits on processes and memory (`bounds`), and is killed first when memory
runs out. What it writes or sends is not restricted here: the job itself could do as much.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from carmad.attempt.copies import Copies
from carmad.attempt.environment import job_environment
from carmad.attempt.launcher import launch_fields
from carmad.attempt.starting import program
from carmad.core.ports import ANSWER_FD, Trial
from carmad.core.types import Attempt, Job, JobId, JobSpec, JobState
from carmad.errors import CarmaError
from carmad.learned import bounds
from carmad.learned.attendant import GRACE_S

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


def tried(
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
        return _failed(IN_CONTAINER)
    if copies and spec.script:
        return _of_copy(spec, argv, within_s, stop, memory_mib, home, copies)
    spec = replace(spec, argv=tuple(argv), script=None)
    job = Job(JobId(0), spec, JobState.STARTING, 0.0, attempts=(Attempt(1, ()),))
    deadline = time.monotonic() + within_s + GRACE_S + KILLED_WITHIN_S
    if stop():
        return _failed(STOPPED)
    try:
        fields = launch_fields(job, job_environment(job, ()), GRACE_S)
        with _bounded(home, memory_mib << 20) as bound, _attended(fields, within_s, bound) as pipes:
            return _heard(*pipes, deadline, stop)
    except CarmaError as error:
        return _failed(error.message)
    except OSError as error:
        return _failed(f"cannot start a process: {error.strerror or error}")


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
        trial = tried(spec, words, within_s, stop, memory_mib, home)
    except OSError as error:
        return _failed(f"cannot copy the job script: {error.strerror or error}")
    finally:
        copies.remove(name)
    in_json = json.dumps(original)[1:-1].encode()
    answer = trial.answer.replace(copy.encode(), in_json)
    return replace(trial, answer=answer, output=trial.output.replace(copy, original))


def _failed(why: str, output: str = "") -> Trial:
    return Trial(b"", output, error=why)


@contextlib.contextmanager
def _bounded(home: str | None, memory: int) -> Iterator[tuple[int, str]]:
    """Yields the trial's memory limit in bytes, and its cgroup ("": none)."""
    cgroup = bounds.make(home, str(next(_NUMBERS)), memory) if home else None
    try:
        yield memory, cgroup or ""
    finally:
        if cgroup:
            bounds.remove(cgroup)


@contextlib.contextmanager
def _attended(
    fields: bytes, within_s: float, bound: tuple[int, str]
) -> Iterator[tuple[int, int, int]]:
    """Start the program. Yields the pipes of its answer, its output and its attendant's verdict. It
    runs only while the last one is open."""
    with contextlib.ExitStack() as readers, contextlib.ExitStack() as writers:
        request = os.memfd_create("carma-trial")
        writers.callback(os.close, request)
        os.write(request, fields)

        def pipe() -> tuple[int, int]:
            reader, writer = os.pipe()
            readers.callback(os.close, reader)
            writers.callback(os.close, writer)
            os.set_blocking(reader, False)
            return reader, writer

        from_answer, answer = pipe()
        from_output, output = pipe()
        from_verdict, verdict = pipe()
        attendant = subprocess.Popen(
            [
                *program("carmad.learned.attendant"),
                *map(str, (answer, ANSWER_FD, within_s, *bound)),
            ],
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


def _heard(
    answer: int, output: int, verdict: int, deadline: float, stop: Callable[[], bool]
) -> Trial:
    heard = {pipe: bytearray() for pipe in (answer, output, verdict)}
    with selectors.DefaultSelector() as selector:
        for pipe in heard:
            selector.register(pipe, selectors.EVENT_READ)
        while verdict in selector.get_map() and not stop():
            if time.monotonic() > deadline:
                heard[verdict] += b"late"
                break
            for key, _ in selector.select(LOOK_S):
                if not _read(key.fd, heard[key.fd]):
                    selector.unregister(key.fd)
            del heard[output][:-TAIL_BYTES]
            if len(heard[answer]) > MOST_ANSWER_BYTES:
                return _failed(f"its answer exceeded {MOST_ANSWER_BYTES >> 20} MiB")
            time.sleep(BREATH_S)
    if stop():
        return _failed(STOPPED)
    for pipe in (answer, output):  # another process may hold it open, and go on writing
        left = len(heard[pipe]) + MOST_LEFT_BYTES
        while len(heard[pipe]) < left and _read(pipe, heard[pipe]):
            pass
    if len(heard[answer]) > MOST_ANSWER_BYTES:
        return _failed(f"its answer exceeded {MOST_ANSWER_BYTES >> 20} MiB")
    printed = heard[output][-TAIL_BYTES:].decode("utf-8", "replace")
    return _told(heard[verdict].decode("utf-8", "replace"), bytes(heard[answer]), printed)


def _read(pipe: int, data: bytearray) -> bool:
    """False at the end, or if there is nothing to read at the moment."""
    try:
        chunk = os.read(pipe, TAIL_BYTES)
    except BlockingIOError:
        return False
    data += chunk
    return bool(chunk)


def _told(verdict: str, answer: bytes, output: str) -> Trial:
    """The trial, from the attendant's verdict."""
    match verdict.split(" ", 1):
        case ["code", number]:
            return Trial(answer, output, code=int(number))
        case ["signal", number]:
            return Trial(answer, output, signal=int(number))
        case ["late"]:
            return Trial(answer, output, timed_out=True)
        case ["beyond", why]:
            return Trial(answer, output, beyond=why)
        case ["error", why]:
            return _failed(why.partition("\n")[0], output)
    last = verdict.strip().rpartition("\n")[2] or "it was killed"
    return _failed(f"the trial failed: {last}", output)
