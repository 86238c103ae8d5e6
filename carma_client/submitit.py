"""submitit's executor for CARMA: `submitit.AutoExecutor(folder, cluster="carma")`.

submitit finds it by its entry points; nothing else imports it. As `python -m`, it is the job's
command, whose arguments are the folder and what tells the function: CARMA learns the memory of
jobs by their commands.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar

from submitit.core import core, job_environment, logger
from submitit.core.submission import process_job
from submitit.core.utils import DelayedSubmission, FailedSubmissionError, JobPaths

from carma_client import Client
from carmad.options import PLAIN
from carmad.paths import socket_path

# Options of a job that submitit has no word for: `carma_memory_mib` and so on.
OWN = frozenset(PLAIN) - {"gpus", "cpus", "host_memory_mib", "stderr"}

R = TypeVar("R", covariant=True)

NO_JOB = "0"  # the id of a job that is only tried, for its memory
GONE = "NOT_FOUND"  # CARMA does not know the job, or not any more
STATES = {  # in submitit's words, which are Slurm's; those left out are the same
    "queued": "PENDING",
    "starting": "RUNNING",
    "stopping": "COMPLETING",
    "succeeded": "COMPLETED",
    "timed_out": "TIMEOUT",
}
SAME = {"name": "name", "cpus_per_task": "cpus", "gpus_per_node": "gpus"}
SIGNAL_DELAY_S = 90  # as with Slurm
ONE_TASK = "a CARMA job is one task on one server; start several processes with torchrun or mpirun"


class CarmaInfoWatcher(core.InfoWatcher):
    """One request tells of all the jobs of this process."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode).get("State", "UNKNOWN")

    def update(self) -> None:
        self._last_status_check = time.time()
        wanted = sorted(self._registered)
        self._num_calls += 1
        try:
            # The youngest first; of an array, its tasks.
            ids = sorted({int(id.partition("_")[0]) for id in wanted}, reverse=True)
            told = {job["label"]: job for job in Client().jobs(map(str, ids))}
        except Exception as error:  # noqa: BLE001 - carmad may be restarting: ask again later
            logger.get_logger().warning(f"CARMA does not answer, states may be old: {error}")
            return
        self._info_dict |= {id: _info(told.get(id)) for id in wanted}


def _info(job: Mapping[str, Any] | None) -> dict[str, str]:
    if job is None:
        return {"State": GONE}
    state = STATES.get(job["state"], job["state"].upper())
    return {"State": state, "Reason": job.get("reason") or "", "JobID": job["label"]}


class CarmaJob(core.Job[R]):
    watcher = CarmaInfoWatcher(delay_s=5)
    _results_timeout_s = 2  # the job ran on this server, and has ended

    def done(self, force_check: bool = False) -> bool:
        """Whether it has ended for good. A result alone does not tell: CARMA may be about to run a
        job again that ran out of GPU memory."""
        there = self.paths.result_pickle.exists()
        state = self._state("force" if force_check or there else "standard")
        return there if state == "UNKNOWN" else state not in _RUNS

    @property
    def state(self) -> str:
        return self._state("standard")

    def _state(self, mode: str) -> str:
        state = self.watcher.get_state(self.job_id, mode)
        try:
            helper = _requeuer(self.paths).read_text()
        except OSError:
            return state
        # The helper's state is not the later one: if its work is done, the job's state shows it.
        again = self.watcher.get_state(helper, mode)
        return "REQUEUED" if state not in _RUNS and again in _RUNS else state

    def cancel(self, check: bool = True) -> None:
        try:
            if not self.done(force_check=True):
                Client().cancel(self.job_id)
        except Exception:
            if check:
                raise


_RUNS = frozenset({"PENDING", "RUNNING", "COMPLETING", "REQUEUED", "UNKNOWN"})


def _requeuer(paths: JobPaths) -> Path:
    """The file with the id of the job that is to run this one again."""
    return paths.submitted_pickle.with_suffix(".requeuer")


class CarmaJobEnvironment(job_environment.JobEnvironment):
    _env: ClassVar[dict[str, str]] = {
        "job_id": "CARMA_JOB_ID",
        "array_job_id": "CARMA_ARRAY_JOB_ID",
        "array_task_id": "CARMA_ARRAY_TASK_ID",
    }
    num_tasks = property(lambda self: 1)
    num_nodes = property(lambda self: 1)
    node = property(lambda self: 0)
    global_rank = property(lambda self: 0)
    local_rank = property(lambda self: 0)

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        """SIGTERM: CARMA takes the GPU back, to start the job again later, or somebody cancels it:
        save its state. The signal before the time limit: save it, and ask to be run again."""
        paths.result_pickle.unlink(missing_ok=True)  # an earlier attempt's
        _requeuer(paths).unlink(missing_ok=True)
        handler = job_environment.SignalHandler(self, paths, submission)
        signal.signal(signal.SIGTERM, _in_this_process(handler.checkpoint_and_exit))
        signal.signal(self._usr_sig(), _in_this_process(handler.checkpoint_and_try_requeue))
        _hold_back(signal.SIG_UNBLOCK)

    def _requeue(self, countdown: int) -> None:
        """CARMA requeues only a job that has ended, so another job does it then."""
        id = self.job_id
        helper = Client().submit(
            [
                sys.executable,
                "-c",
                f"from carma_client import Client; Client().requeue({id!r})",
            ],
            gpus=0,
            name=f"requeue-{id}",
            after=[{"job": id, "kind": "afterany"}],
            stdout=os.devnull,
            export=_socket(),
        )
        _requeuer(self.paths).write_text(helper)
        logger.get_logger().info(f"Job {id} will run again; {countdown} more time-outs allowed")


Handler = Callable[[int, FrameType | None], None]


def _in_this_process(handler: Handler) -> Handler:
    """CARMA signals all processes of a job; those that a data loader forks inherit the handler,
    and are not to save anything."""
    own = os.getpid()

    def handle(signum: int, frame: FrameType | None = None) -> None:
        if os.getpid() == own:
            handler(signum, frame)
        elif signum == signal.SIGTERM:
            os._exit(128 + signum)

    return handle


class CarmaExecutor(core.Executor):
    """Runs functions as CARMA's jobs; several at once as one array.

    folder: for pickles and logs. max_num_timeout: how often a function that can be checkpointed
    may run into its time limit and be run again. python: the command for Python, for the shell.
    """

    job_class = CarmaJob

    def __init__(
        self, folder: str | Path, max_num_timeout: int = 3, python: str | None = None
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.python = [sys.executable] if python is None else shlex.split(python)

    @classmethod
    def affinity(cls) -> int:
        """Only who asks for CARMA gets it: scripts that name no cluster run where they did."""
        return 0 if Path(socket_path()).exists() else -1

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"array_parallelism", "signal_delay_s", *OWN}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        for name in ("nodes", "tasks_per_node"):
            if kwargs.get(name, 1) != 1:
                raise ValueError(f"{name}={kwargs[name]}: {ONE_TASK}")
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: list[DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """The jobs are held until their pickles and folders are there."""
        pickles = [self._pickle(each) for each in delayed_submissions]
        digest = _digest(pickles)
        tried = _tried(self.folder, digest)
        with contextlib.suppress(FileExistsError):  # the same function was submitted before
            tried.hardlink_to(pickles[0])
        try:
            label = Client().submit(
                [*self.python, "-u", "-m", __name__, str(self.folder), digest],
                held=True,
                export={"SUBMITIT_EXECUTOR": "carma", **_socket()},
                **self._options(len(pickles)),
            )
        except Exception as error:
            for pickle in (*pickles, tried):
                pickle.unlink(missing_ok=True)
            raise FailedSubmissionError(str(error)) from error
        labels = [f"{label}_{index}" for index in range(len(pickles))] if pickles[1:] else [label]
        jobs: list[core.Job[Any]] = [self.job_class(self.folder, each) for each in labels]
        for job, pickle in zip(jobs, pickles, strict=True):
            job.paths.move_temporary_file(pickle, "submitted_pickle")
        Client().release(label)
        return jobs

    def _pickle(self, delayed: DelayedSubmission) -> Path:
        delayed.set_timeout(self.parameters.get("timeout_min", 0), self.max_num_timeout)
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.pkl"
        delayed.dump(path)
        return path

    def _options(self, count: int) -> dict[str, Any]:
        """The job's options, by CARMA's names."""
        asked = self.parameters
        paths = JobPaths(self.folder, task_id=0)
        options = {name: asked[name] for name in OWN & asked.keys()}
        options |= {ours: asked[name] for name, ours in SAME.items() if name in asked}
        options["stdout"] = _pattern(paths.stdout, count > 1)
        if not asked.get("stderr_to_stdout"):
            options["stderr"] = _pattern(paths.stderr, count > 1)
        if "mem_gb" in asked:
            options["host_memory_mib"] = round(asked["mem_gb"] * 1024)
        if limit_s := 60.0 * asked.get("timeout_min", 0) or options.get("time_limit_s"):
            before_s = min(asked.get("signal_delay_s", SIGNAL_DELAY_S), limit_s / 2)
            signum = int(CarmaJobEnvironment._usr_sig())
            options |= {"time_limit_s": limit_s, "warn": {"signum": signum, "before_s": before_s}}
        if count > 1:
            limit = min(count, asked.get("array_parallelism", count))
            options["array"] = {"indices": list(range(count)), "limit": limit}
        return options


def _pattern(path: Path, array: bool) -> str:
    """A log file's name as CARMA expands it, from submitit's, which knows only %j and %t."""
    parts = str(path).replace("%t", "0").split("%j")
    return ("%A_%a" if array else "%j").join(part.replace("%", "%%") for part in parts)


def _digest(pickles: Sequence[Path]) -> str:
    """The same for the same functions and arguments, to tell jobs apart whose commands are else
    the same: they do not need the same memory."""
    digest = hashlib.sha256()
    for pickle in pickles:
        digest.update(pickle.read_bytes())
    return digest.hexdigest()[:16]


def _tried(folder: str | Path, digest: str) -> Path:
    """The pickle that a trial runs: it is there before the job has an id, and until it ends."""
    return JobPaths.get_first_id_independent_folder(folder) / f"{digest}_tried.pkl"


def _hold_back(how: int) -> None:
    signal.pthread_sigmask(how, (CarmaJobEnvironment._usr_sig(),))


def _socket() -> dict[str, str]:
    """For the job, to reach the same daemon; other CARMA_ variables are not for it."""
    return {"CARMA_SOCKET": os.environ["CARMA_SOCKET"]} if "CARMA_SOCKET" in os.environ else {}


# in the job


def main() -> None:
    folder, digest = sys.argv[1:]
    tried = _tried(folder, digest)
    if os.environ["CARMA_JOB_ID"] == NO_JOB:
        DelayedSubmission.load(tried).result()
        return
    _hold_back(signal.SIG_BLOCK)  # until there is a handler, it would kill the job
    try:
        process_job(folder)
    finally:
        tried.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
