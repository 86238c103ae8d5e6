"""submitit's function as CARMA's job: as `python -m`, the job's command, and what the function
finds of its job.

The command's arguments are the folder, what tells the function, and the number of tasks if there
are several: CARMA learns the memory of jobs by their commands. Each task is a process with a log
of its own; the first one's log is the job's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from submitit.core import job_environment, logger
from submitit.core.submission import process_job
from submitit.core.utils import DelayedSubmission, JobPaths

from carma_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Handler = Callable[[int, FrameType | None], None]

NO_JOB = "0"  # the id of a job that is only tried, for its memory
COUNT = "SUBMITIT_CARMA_TASKS"
RANK = "SUBMITIT_CARMA_RANK"
LOOK_S = 0.1
REST_S = 30  # for the other tasks to end by themselves, once one has failed
LAST_WORDS = 4096  # bytes of the log of a task that failed


class CarmaJobEnvironment(job_environment.JobEnvironment):
    _env: ClassVar[dict[str, str]] = {
        "job_id": "CARMA_JOB_ID",
        "array_job_id": "CARMA_ARRAY_JOB_ID",
        "array_task_id": "CARMA_ARRAY_TASK_ID",
        "num_tasks": COUNT,
        "global_rank": RANK,
        "local_rank": RANK,
    }
    num_nodes = property(lambda self: 1)
    node = property(lambda self: 0)

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        """SIGTERM: CARMA takes the GPU back, to start the job again later, or somebody cancels it:
        save its state. The signal before the time limit: save it, and ask to be run again. Of
        several tasks, the first does this."""
        handler = job_environment.SignalHandler(self, paths, submission)
        signal.signal(signal.SIGTERM, _in_this_process(handler.checkpoint_and_exit))
        signal.signal(self._usr_sig(), _in_this_process(handler.checkpoint_and_try_requeue))
        _hold_back(signal.SIG_UNBLOCK)

    def _requeue(self, countdown: int) -> None:
        """CARMA stops the job for that: its state is saved, and needs not be saved once more."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Client().requeue(self.job_id)
        logger.get_logger().info(
            f"Job {self.job_id} will run again ({countdown} remaining timeouts)"
        )


def trial_path(folder: str | Path, digest: str) -> Path:
    """The pickle that a trial runs: it is there before the job has an id, and until it ends."""
    return JobPaths.get_first_id_independent_folder(folder) / f"{digest}_tried.pkl"


def socket() -> dict[str, str]:
    """For the job, to reach the same daemon; other CARMA_ variables are not for it."""
    return {"CARMA_SOCKET": os.environ["CARMA_SOCKET"]} if "CARMA_SOCKET" in os.environ else {}


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


def _hold_back(how: int) -> None:
    signal.pthread_sigmask(how, (CarmaJobEnvironment._usr_sig(),))


def main() -> None:
    folder, digest, count = [*sys.argv[1:], "1"][:3]
    os.environ[COUNT] = count
    trial = trial_path(folder, digest)
    if os.environ["CARMA_JOB_ID"] == NO_JOB:
        DelayedSubmission.load(trial).result()
        return
    _hold_back(signal.SIG_BLOCK)  # until there is a handler, it would kill the job
    if RANK in os.environ:
        process_job(folder)
        return
    job = CarmaJobEnvironment().job_id
    paths = [JobPaths(folder, job, rank) for rank in range(int(count))]
    for each in paths:  # an earlier attempt's
        each.result_pickle.unlink(missing_ok=True)
    try:
        if count == "1":
            process_job(folder)
        else:
            sys.exit(_run_tasks(paths))
    finally:
        trial.unlink(missing_ok=True)


def _run_tasks(paths: list[JobPaths]) -> int:
    """Run a process for each of these. Returns the exit code of the first that failed, or 0.

    CARMA's signals reach all processes of a job, these too. Once the first task has heeded one, or
    a while after a task has failed, the others are killed: they might wait for it forever."""
    signals: list[int] = []
    tasks = [_start(rank, each) for rank, each in enumerate(paths)]
    for signum in (signal.SIGTERM, CarmaJobEnvironment._usr_sig()):
        signal.signal(signum, lambda signum, frame: signals.append(signum))
    _hold_back(signal.SIG_UNBLOCK)
    failed: int | None = None
    until = float("inf")
    while True:
        codes = [task.poll() for task in tasks]
        if failed is None and any(codes):
            failed = next(rank for rank, code in enumerate(codes) if code)
            until = time.monotonic() + REST_S
            _quote(failed, paths[failed])
        if None not in codes:
            break
        if time.monotonic() > until or (signals and codes[0] is not None):
            for task in tasks:
                task.kill()
        time.sleep(LOOK_S)
    code = 0 if failed is None else tasks[failed].returncode
    return code if code >= 0 else 128 - code


def _start(rank: int, paths: JobPaths) -> subprocess.Popen[bytes]:
    """The signal that is held back here stays so there, until there is a handler."""
    argv = [sys.executable, "-u", "-m", "carma_client.submitit_job", *sys.argv[1:]]
    env = {**os.environ, RANK: str(rank)}
    if not rank:
        return subprocess.Popen(argv, env=env)
    with paths.stdout.open("ab") as out:
        if os.path.sameopenfile(1, 2):
            return subprocess.Popen(argv, env=env, stdout=out, stderr=out)
        with paths.stderr.open("ab") as errors:
            return subprocess.Popen(argv, env=env, stdout=out, stderr=errors)


def _quote(rank: int, paths: JobPaths) -> None:
    """Repeat the last words of a task that failed in the job's log, where CARMA looks for what went
    wrong."""
    if rank:
        path = paths.stdout if os.path.sameopenfile(1, 2) else paths.stderr
        words = path.read_bytes()[-LAST_WORDS:].decode(errors="replace")
        print(f"task {rank} has failed:\n{words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
