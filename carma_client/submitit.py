"""submitit's executor for CARMA: `submitit.AutoExecutor(folder, cluster="carma")`.

submitit finds it by its entry points; nothing else imports it. The job's command is
`carma_client.submitit_job`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from submitit.core import core, logger
from submitit.core.utils import DelayedSubmission, FailedSubmissionError, JobPaths

from carma_client import Client, submitit_job
from carma_client.submitit_job import CarmaJobEnvironment
from carmad.options import PLAIN
from carmad.paths import socket_path
from carmad.states import ENDED

# Options of a job that submitit has no word for: `carma_memory_mib` and so on.
OWN = frozenset(PLAIN) - {"gpus", "cpus", "host_memory_mib", "stderr"}

R = TypeVar("R", covariant=True)

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
        self._info_dict.update({id: _info(told.get(id)) for id in wanted})


def _info(job: Mapping[str, Any] | None) -> dict[str, str]:
    if job is None:
        return {"State": GONE}
    state = STATES.get(job["state"], job["state"].upper())
    return {"State": state, "Reason": job.get("reason") or "", "JobID": job["label"]}


class CarmaJob(core.Job[R]):
    watcher = CarmaInfoWatcher(delay_s=1)
    _results_timeout_s = 2  # the job ran on this server, and has ended

    def done(self, force_check: bool = False) -> bool:
        """Whether it has ended for good. A result alone does not tell: CARMA may be about to run a
        job again that ran out of GPU memory."""
        if self._sub_jobs:
            return all(task.done(force_check) for task in self._sub_jobs)
        there = self.paths.result_pickle.exists()
        mode = "force" if force_check or there else "standard"
        state = self.watcher.get_state(self.job_id, mode)
        return there if state == "UNKNOWN" else state in _OVER

    def cancel(self, check: bool = True) -> None:
        try:
            if not self.done(force_check=True):
                Client().cancel(self.job_id)
                self.watcher.register_job(self.job_id)  # what is known of it is out of date
        except Exception:
            if check:
                raise


_OVER = frozenset({GONE, *(STATES.get(state, state.upper()) for state in ENDED)})


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
        return {"array_parallelism", "setup", "signal_delay_s", *OWN}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        if kwargs.get("nodes", 1) != 1:
            raise ValueError(f"nodes={kwargs['nodes']}: CARMA has one server; use nodes=1")
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: list[DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """The jobs are held until their pickles and folders are there."""
        pickles = [self._pickle(each) for each in delayed_submissions]
        digest = _digest(pickles)
        tried = submitit_job.trial_path(self.folder, digest)
        with contextlib.suppress(FileExistsError):  # the same function was submitted before
            os.link(pickles[0], tried)
        try:
            label = Client().submit(
                self._command(digest),
                held=True,
                export={"SUBMITIT_EXECUTOR": "carma", **submitit_job.socket()},
                **self._options(len(pickles)),
            )
        except Exception as error:
            for pickle in (*pickles, tried):
                pickle.unlink(missing_ok=True)
            raise FailedSubmissionError(str(error)) from error
        labels = [f"{label}_{index}" for index in range(len(pickles))] if pickles[1:] else [label]
        tasks = range(self._count_tasks())
        jobs: list[core.Job[Any]] = [self.job_class(self.folder, each, tasks) for each in labels]
        for job, pickle in zip(jobs, pickles):
            job.paths.move_temporary_file(pickle, "submitted_pickle")
        Client().release(label)
        return jobs

    def _count_tasks(self) -> int:
        count: int = self.parameters.get("tasks_per_node", 1)
        return count

    def _command(self, digest: str) -> list[str]:
        """Python, or a shell that becomes it after the lines of `setup`."""
        count = self._count_tasks()
        argv = [*self.python, "-u", "-m", submitit_job.__name__, str(self.folder), digest]
        argv += [str(count)] if count > 1 else []
        if lines := self.parameters.get("setup"):
            # A line's end rather than a space: the line may end in a comment.
            return ["bash", "-c", " &&\n".join([*lines, f"exec {shlex.join(argv)}"])]
        return argv

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
        options.update({ours: asked[name] for name, ours in SAME.items() if name in asked})
        options["stdout"] = _pattern(paths.stdout, count > 1)
        if not asked.get("stderr_to_stdout"):
            options["stderr"] = _pattern(paths.stderr, count > 1)
        if "mem_gb" in asked:
            options["host_memory_mib"] = round(asked["mem_gb"] * 1024)
        if limit_s := 60.0 * asked.get("timeout_min", 0) or options.get("time_limit_s"):
            before_s = min(asked.get("signal_delay_s", SIGNAL_DELAY_S), limit_s / 2)
            signum = int(CarmaJobEnvironment._usr_sig())
            options["time_limit_s"] = limit_s
            options["warn"] = {"signum": signum, "before_s": before_s}
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
