"""An executor of `concurrent.futures` whose calls are CARMA's jobs."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from concurrent import futures
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from carma_client import Problem
from carma_client.client import Client, job_path
from carma_client.function import call_each, outcome, submit_calls
from carma_client.transport import TIMEOUT_S
from carmad.states import ENDED, NEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import ParamSpec, Unpack

    from carma_client.options import Options

    P = ParamSpec("P")

R = TypeVar("R")
S = TypeVar("S")

LOOK_S = 0.1  # at the jobs; later less often
MOST_LOOK_S = 1.0
LOOKED_AT_PER_S = 1000  # jobs: many are looked at less often


class Calls:
    """The folder of a job's calls, until all of them are done."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self._lock = threading.Lock()

    def discard(self, index: int) -> None:
        """Remove what was kept of a call."""
        with self._lock:
            self.count -= 1
            last = not self.count
        if last:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for suffix in ("call", "result"):
            with contextlib.suppress(FileNotFoundError):
                (self.folder / f"{index}.{suffix}").unlink()


class JobFuture(futures.Future[R]):
    """A call that is the job with the label `job`. It is running from when CARMA has started the
    job, and can be cancelled until then; afterwards, `Client.cancel(future.job)` does it."""

    def __init__(self, executor: Executor, job: str, calls: Calls, index: int) -> None:
        super().__init__()
        self.job = job
        self._executor = executor
        self._calls = calls
        self._index = index

    def cancel(self) -> bool:
        if not (self.done() or self.running()):
            self._executor._cancel([self])
        return self.cancelled()

    def _begin(self) -> bool:
        """Whether it was not cancelled."""
        return self.running() or self.set_running_or_notify_cancel()

    def _end(self, job: Mapping[str, Any]) -> None:
        """Set what came of its job."""
        value: Any = None
        error: Exception | None = None
        try:
            value = outcome(job, self._calls.folder, self._index)
        except Exception as raised:  # noqa: BLE001 - of the function, of any making
            error = raised
        self._calls.discard(self._index)  # before anybody has the result
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)
            error = None  # its traceback has this frame


class Executor(futures.Executor):
    """Runs functions as jobs with these options.

    max_workers: how many tasks of a `map` may run at once; None: as many as CARMA finds room for.
    client: None: asks the daemon that `carma` would ask.

    A job is on disk once `submit` or `map` has returned: it runs even if the program ends. Leaving
    the executor's `with` block waits for all jobs.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        client: Client | None = None,
        **options: Unpack[Options],
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if "array" in options:
            raise TypeError("leave out array: map() submits its calls as an array")
        self._max_workers = max_workers or 1000  # by this name, dask asks for it
        self._limit = max_workers
        self._client = client or Client()
        self._options: dict[str, Any] = dict(options)
        # Whenever memory is collected, a `map` that is forgotten is cancelled: locks are reentrant.
        self._lock = threading.RLock()
        self._one_cancels = threading.RLock()
        self._cancelling: set[str] = set()  # labels that the watcher leaves alone
        self._pending: dict[str, JobFuture[Any]] = {}
        self._watcher: threading.Thread | None = None
        self._is_shut = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobFuture[R]:
        """Submit a call, as a job. Raises Refused, or what pickling raises."""
        return self._submit(fn, [(args, kwargs)])[0]

    def map(
        self,
        fn: Callable[..., S],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[S]:
        """As the built-in `map`: all calls are one array, of which each task makes `chunksize`
        calls. Raises TimeoutError from the iterator when a result is not there within `timeout`
        seconds of this call."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        until = None if timeout is None else time.monotonic() + timeout
        calls = list(zip(*iterables))
        if chunksize == 1:
            return _results(self._submit(fn, [(args, {}) for args in calls]), until)
        rest = iter(calls)
        chunks = iter(lambda: list(islice(rest, chunksize)), [])
        lists = self._submit(partial(call_each, fn), [((chunk,), {}) for chunk in chunks])
        return (result for results in _results(lists, until) for result in results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. `cancel_futures`: those whose jobs wait. `wait`: for all others."""
        with self._lock:
            self._is_shut = True
            pending, watcher = list(self._pending.values()), self._watcher
        if cancel_futures:
            self._cancel(pending)
        if wait and watcher:
            watcher.join()

    def _submit(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    ) -> list[JobFuture[Any]]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if not calls:
            return []
        array: dict[str, Any] = {}
        if len(calls) > 1:
            array["array"] = {"indices": list(range(len(calls))), "limit": self._limit}
        options = {**self._options, **array}
        label, folder = submit_calls(self._client, function, calls, options)
        labels = [f"{label}_{index}" for index in range(len(calls))] if array else [label]
        own = Calls(folder, len(calls))
        made: list[JobFuture[Any]] = [
            JobFuture(self, each, own, index) for index, each in enumerate(labels)
        ]
        with self._lock:
            self._pending.update(zip(labels, made))
            if self._watcher is None:  # as a daemon: the jobs do not need this program
                self._watcher = threading.Thread(target=self._watch, name="carma", daemon=True)
                self._watcher.start()
        return made

    def _cancel(self, pending: Sequence[JobFuture[Any]]) -> None:
        """Cancel those whose jobs have not started; none if the daemon does not answer. Meanwhile,
        the watcher must not take a job that it sees cancelled for one that failed."""
        with self._one_cancels:
            with self._lock:
                idle = {
                    future.job: future
                    for future in pending
                    if future.job in self._pending
                    and future.job not in self._cancelling
                    and not future.running()
                }
                self._cancelling.update(idle)
            cancelled: set[str] = set()
            try:
                cancelled = self._cancel_jobs(list(idle))
            finally:
                with self._lock:
                    self._cancelling.difference_update(idle)
                    for label in cancelled:
                        del self._pending[label]
        for future in (idle[label] for label in cancelled):
            futures.Future.cancel(future)
            future.set_running_or_notify_cancel()
            future._calls.discard(future._index)

    def _cancel_jobs(self, labels: Sequence[str]) -> set[str]:
        """The labels of those that had not started, and were cancelled."""
        client = self._client
        try:
            queued = {job["label"] for job in client.jobs(labels) if job["state"] in NEW}
            with contextlib.suppress(Problem):  # another one may have ended since
                client.cancel(*sorted(queued))
                return queued
            found = client.jobs(sorted(queued))
        except Problem:
            return set()
        return {job["label"] for job in found if job["state"] == "cancelled"}

    def _watch(self) -> None:
        """In a thread of its own, as long as calls are pending: find out what becomes of them."""
        look_s = LOOK_S
        while True:
            with self._lock:
                if not self._pending:
                    self._watcher = None
                    return
                labels = [label for label in self._pending if label not in self._cancelling]
            if not labels:
                time.sleep(look_s)
                continue
            jobs, error = self._look(labels, max(look_s, len(labels) / LOOKED_AT_PER_S))
            ended = {label for label in labels if label not in jobs or _has_ended(jobs[label])}
            look_s = LOOK_S if ended else min(MOST_LOOK_S, look_s * 1.5)
            for label in labels:
                with self._lock:
                    if label in self._cancelling or label not in self._pending:
                        continue
                    if label not in ended:
                        if jobs[label]["state"] not in NEW:
                            self._pending[label]._begin()
                        continue
                    future = self._pending.pop(label)
                if future._begin():
                    if label in jobs:
                        future._end(jobs[label])
                    else:  # its job may still run: what it needs stays
                        future.set_exception(error)
                del future
            del jobs

    def _look(
        self, labels: Sequence[str], look_s: float
    ) -> tuple[dict[str, Mapping[str, Any]], Exception]:
        """The jobs once the first has ended, or after a while, by their labels; without those that
        carmad does not know, for which there is an error."""
        client, path = self._client, f"{job_path(labels[0])}/wait"
        error = Problem("carmad does not know the job any more")
        try:
            client.patiently(lambda: client.get(path, look_s + TIMEOUT_S, timeout_s=look_s))
        except Problem as problem:  # not known: others may be
            error = problem
        try:
            found = client.patiently(lambda: client.jobs(labels))
            return {job["label"]: job for job in found}, error
        except Exception as problem:  # noqa: BLE001 - raised where a result is waited for
            return {}, problem


def _has_ended(job: Mapping[str, Any]) -> bool:
    return job["state"] in ENDED


def _results(pending: list[JobFuture[S]], until: float | None) -> Iterator[S]:
    """Each is forgotten once it is returned. What is left is cancelled if nobody wants it."""

    def iterate() -> Iterator[S]:
        pending.reverse()
        try:
            while pending:
                left_s = None if until is None else max(0.0, until - time.monotonic())
                yield _result(pending.pop(), left_s)
        finally:
            if pending:
                pending[0]._executor._cancel(pending)

    return iterate()


def _result(future: JobFuture[S], within_s: float | None) -> S:
    try:
        return future.result(within_s)
    except futures.TimeoutError:
        future.cancel()
        raise
    finally:
        del future  # the exception's traceback would keep it
