"""Runs many experiments in parallel processes, except those whose outcome is cached.

The caller makes the experiments; `carma_simulator.run` runs one. Outcomes are cached by what
determines them: the experiment and the code that simulates it. Entries may be lost or damaged at
any time; then they are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from carma_simulator.experiment import Experiment, Outcome, Trace
from carma_simulator.run import Progress, simulate
from carmad.errors import CarmaError

# -- the cache

KEPT_DAYS = 30  # since an outcome was last used
_NO_TRACE = Trace(name="", tasks=())
_DIGEST_BYTES = 32


class Cache:
    """One file per outcome, in a directory created when the first one is stored."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> Outcome | None:
        path = self._directory / key
        try:
            if path.stat().st_uid != os.getuid():  # whoever writes a pickle runs code in its reader
                return None
            content = path.read_bytes()
            path.touch()
        except OSError:
            return None
        packed = content[_DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != content[:_DIGEST_BYTES]:
            return None
        outcome: Outcome = pickle.loads(zlib.decompress(packed))
        return outcome

    def put(self, key: str, outcome: Outcome) -> None:
        """Ignores a full disk or an unwritable directory."""
        packed = zlib.compress(pickle.dumps(outcome), level=1)
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._forget_old()
            _write_atomically(self._directory / key, hashlib.sha256(packed).digest() + packed)

    def _forget_old(self) -> None:
        """Delete old outcomes: after a change of the code, they are never used again."""
        oldest = time.time() - KEPT_DAYS * 86_400
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process may delete it, too
                if path.stat().st_mtime < oldest:
                    path.unlink()


def cache_keys(experiments: Sequence[Experiment]) -> list[str]:
    """For each experiment, a hash of its contents and of the code that runs it."""
    code = _digest(_sources())
    # Most experiments of a sweep share one trace, and that may have 100,000 rows.
    traces = {id(e.trace): e.trace for e in experiments}
    digests = {known: _digest(_words(trace)) for known, trace in traces.items()}
    return [_digest((code, digests[id(e.trace)], *_rest(e))).hex() for e in experiments]


def _rest(experiment: Experiment) -> Iterator[bytes]:
    """Everything but the trace."""
    yield repr(replace(experiment, trace=_NO_TRACE)).encode()
    kind, _, file = experiment.interference.partition(":")
    if kind == "measured" and file:
        yield Path(file).read_bytes()


def _words(trace: Trace) -> Iterator[bytes]:
    yield repr((trace.name, trace.rejected)).encode()
    for task in trace.tasks:
        yield repr(task).encode()


def _sources() -> Iterator[bytes]:
    """The simulator's and carmad's source and data files, and those of plugins that the core may
    call."""
    yield sys.version.encode()
    packages = {"carma_simulator", "carmad"}
    for group in ("carma.policies", "carma.recoveries"):
        packages |= {point.module.partition(".")[0] for point in entry_points(group=group)}
    for package in sorted(packages):
        for path in sorted(_files(package)):
            yield path.read_bytes()


def _files(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    if spec is None:
        return
    if spec.origin and spec.submodule_search_locations is None:
        yield Path(spec.origin)
    for root in spec.submodule_search_locations or ():
        yield from (p for p in Path(root).rglob("*") if p.is_file() and p.suffix != ".pyc")


def _digest(parts: Iterable[bytes]) -> bytes:
    """A digest of the parts and of the boundaries between them."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()


def _write_atomically(path: Path, content: bytes) -> None:
    """Write atomically, even if others write the same file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


Watch = Callable[[Experiment, Progress | None], None]  # None: it has ended


def ignore_progress(experiment: Experiment, progress: Progress | None) -> None:
    pass


def sweep(
    experiments: Sequence[Experiment],
    jobs: int,
    cache: Cache | None = None,
    watch: Watch = ignore_progress,
) -> Iterator[tuple[Experiment, Outcome]]:
    """Each experiment and its outcome, in the order given; at most `jobs` run at once. `watch` is
    told how far each of them is.

    If one fails, raises CarmaError, which names it. That ends the others, and so do Ctrl-C and
    SIGTERM, so with `jobs` above 1 it must be called in the main thread.
    """
    hashes = cache_keys(experiments) if cache else [""] * len(experiments)
    known = [cache.get(key) if cache else None for key in hashes]
    due = [
        (experiment, cache, key)
        for experiment, key, outcome in zip(experiments, hashes, known, strict=True)
        if outcome is None
    ]
    jobs = min(jobs, len(due))
    fresh = _in_parallel(due, jobs, watch) if jobs > 1 else _in_turn(due, watch)
    for experiment, outcome in zip(experiments, known, strict=True):
        if outcome is None:
            outcome = next(fresh)
        else:
            watch(experiment, None)
        yield experiment, outcome


def title(experiment: Experiment) -> str:
    settings = experiment.settings
    return f"{settings.policy} (estimator {experiment.estimator}, seed {experiment.seed})"


_Due = tuple[Experiment, Cache | None, str]


def _in_turn(due: Sequence[_Due], watch: Watch) -> Iterator[Outcome]:
    for one in due:
        outcome = _run(*one, partial(watch, one[0]))
        watch(one[0], None)
        yield outcome


def _run(
    experiment: Experiment, cache: Cache | None, key: str, watch: Callable[[Progress], None]
) -> Outcome:
    try:
        outcome = simulate(experiment, watch)
    except CarmaError as error:
        raise CarmaError(f"{title(experiment)}: {error.message}", error.hint) from error
    except Exception as error:
        error.add_note(f"while simulating {title(experiment)}")
        raise
    if cache is not None:
        cache.put(key, outcome)
    return outcome


# -- Processes, each on a connection of its own whose other end nobody else holds: one that is
# killed, in the middle of a message even, leaves neither a lock nor a pipe that can be waited for
# in vain. (Under a ProcessPoolExecutor they share both.)


def _in_parallel(due: Sequence[_Due], jobs: int, watch: Watch) -> Iterator[Outcome]:
    workers: dict[Connection, SpawnProcess] = {}
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        resource_tracker.ensure_running()  # else the first process starts it, and unblocks signals
        with _block_signals():
            for _ in range(jobs):
                connection, process = _start()
                workers[connection] = process
        yield from _answers(due, list(workers), watch)
    finally:
        with _block_signals():
            for connection, process in workers.items():
                process.kill()
                process.join()
                connection.close()
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)  # as in a shell


@contextmanager
def _block_signals() -> Iterator[None]:
    """Blocks Ctrl-C and SIGTERM; processes started meanwhile inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start() -> tuple[Connection, SpawnProcess]:
    # Not forked: the caller may have threads, for example for a progress bar.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,))
    process.start()
    theirs.close()
    return ours, process


def _work(connection: Connection) -> None:
    """Returns progress, outcomes and errors over the connection, until it is closed.

    A terminal's Ctrl-C goes to all processes, but only the parent should react: SIGINT stays
    blocked here.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with suppress(EOFError, ConnectionError):
        while True:
            due: _Due = connection.recv()
            answer: Outcome | Exception
            try:
                answer = _run(*due, connection.send)
            except CarmaError as error:
                answer = error
            except Exception:  # noqa: BLE001 - of any kind; its text is sent
                answer = RuntimeError(traceback.format_exc())
            connection.send(answer)


def _answers(due: Sequence[_Due], idle: list[Connection], watch: Watch) -> Iterator[Outcome]:
    """In the order of `due`; errors are raised as soon as they occur."""
    waiting = deque(range(len(due)))
    at_work: dict[Connection, int] = {}
    found: dict[int, Outcome] = {}
    for turn in range(len(due)):
        while turn not in found:
            while idle and waiting:
                connection, number = idle.pop(), waiting.popleft()
                with _alive(due[number]):
                    connection.send(due[number])
                at_work[connection] = number
            ready = wait(at_work)
            for connection in [one for one in at_work if one in ready]:
                number = at_work[connection]
                with _alive(due[number]):
                    answer: Outcome | Exception | Progress = connection.recv()
                if isinstance(answer, Exception):
                    raise answer
                if isinstance(answer, Progress):
                    watch(due[number][0], answer)
                    continue
                watch(due[number][0], None)
                del at_work[connection]
                found[number] = answer
                idle.append(connection)
        yield found.pop(turn)


@contextmanager
def _alive(due: _Due) -> Iterator[None]:
    """Turns the death of the process working on `due` into an error."""
    try:
        yield
    except (EOFError, OSError):
        raise CarmaError(
            f"{title(due[0])}: its process was killed",
            "is there too little memory? try fewer at once with --jobs",
        ) from None
