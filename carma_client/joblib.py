"""A backend of joblib whose batches of calls are CARMA's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joblib.parallel import ParallelBackendBase

from carma_client.executor import Executor

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from carma_client.executor import JobFuture
    from carma_client.options import Options

MANY = 1000  # calls at once, if as many as possible are asked for


class CarmaBackend(ParallelBackendBase):  # type: ignore[misc]
    """Jobs with these options, for `joblib.parallel_config(backend=CarmaBackend(...))`."""

    supports_retrieve_callback = True

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()
        self._options = options
        self._executor = Executor(**options)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        return n_jobs if n_jobs is not None and n_jobs > 0 else MANY

    def submit(self, func: Callable[[], Any], callback: Callable[..., object]) -> JobFuture[Any]:
        future = self._executor.submit(func)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: JobFuture[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the jobs that wait: a call has failed, and nobody wants the results."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = Executor(**self._options)
