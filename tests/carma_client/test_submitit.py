"""submitit, as it is, on CARMA."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from carmad.core.jobs.states import ENDED, JobState
from tests.daemon import NO_KERNELS, ROOT, Carmad, running, train
from tests.functions import Counting, add, environment, fail, fail_in_task, train_until, train_with
from tests.waiting import until

submitit = pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("carmad"), **NO_KERNELS) as daemon:
        yield daemon


@pytest.fixture
def executor(carmad: Carmad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
    executor = submitit.AutoExecutor(tmp_path / "100% logs" / "%j", cluster="carma")
    executor.update_parameters(name="unit")
    return executor


def test_a_function_runs_as_a_job_of_carma_with_its_options(carmad: Carmad, executor: Any) -> None:
    executor.update_parameters(timeout_min=7, cpus_per_task=1, mem_gb=0.5, gpus_per_node=2)
    job = executor.submit(add, 1, b=2)
    assert job.result() == 3
    assert (job.done(), job.state) == (True, "COMPLETED")
    assert "adding" in job.stdout() and "Job completed successfully" in job.stderr() + job.stdout()
    told = carmad.job(int(job.job_id))
    assert (told["name"], told["gpus_wanted"], told["cpus"]) == ("unit", 2, 1)
    assert (told["time_limit_s"], told["host_memory_mib"]) == (420, 512)
    assert told["warn"]["before_s"] == 90


def test_map_array_is_one_array_whose_tasks_know_themselves(executor: Any) -> None:
    executor.update_parameters(carma_array_parallelism=2, gpus_per_node=0)
    jobs = executor.map_array(environment, range(2))
    first = jobs[0].job_id.partition("_")[0]
    assert [job.result() for job in jobs] == [(at, f"{first}_{at}", 1, 0) for at in range(2)]
    assert all(job.paths.stdout.exists() and job.paths.folder.name == job.job_id for job in jobs)


def test_errors_come_back(executor: Any) -> None:
    executor.update_parameters(gpus_per_node=0)
    failed, killed = executor.submit(fail, "no such luck"), executor.submit(os._exit, 3)
    with pytest.raises(submitit.core.utils.FailedJobError, match="no such luck"):
        failed.result()
    assert failed.state == "FAILED"
    with pytest.raises(submitit.core.utils.UncompletedJobError, match="not produced any output"):
        killed.result()


def test_a_function_that_ran_out_of_memory_beside_another_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
        neighbour = carmad.submit(*train(memory_mib=20_000, seconds=600), memory_mib=20_000)
        until(lambda: carmad.gpus()[0]["memory_used_mib"] >= 20_000, "the neighbour")
        executor = submitit.AutoExecutor(tmp_path / "logs", cluster="carma")
        executor.update_parameters(carma_memory_mib=5_000)
        job = executor.submit(train_with, 25_000)
        until(lambda: carmad.job(int(job.job_id))["failures"], "the first attempt to fail")
        assert not job.done(force_check=True)
        carmad.cancel(neighbour)
        assert job.result() == 2
        (failure,) = carmad.ended(int(job.job_id))["failures"]
        assert failure["cause"] == "gpu_oom"


def test_cancelled_by_a_copy_of_the_job(executor: Any, tmp_path: Path) -> None:
    job = executor.submit(Counting(tmp_path / "started"))
    until((tmp_path / "started").exists)
    pickle.loads(pickle.dumps(job)).cancel()
    until(lambda: job.done(force_check=True))
    assert job.state == "CANCELLED"


@pytest.mark.parametrize("signum", [signal.SIGUSR2, signal.SIGTERM])
def test_it_goes_on_from_its_checkpoint(
    carmad: Carmad, executor: Any, tmp_path: Path, signum: signal.Signals
) -> None:
    """After the signal before a time limit it asks for another attempt itself; after SIGTERM it is
    for CARMA to know whether there is one."""
    executor.update_parameters(timeout_min=5, gpus_per_node=0)
    job = executor.submit(Counting(tmp_path / "started"))
    until(lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text())
    os.kill(int((tmp_path / "started").read_text()), signum)
    if signum == signal.SIGTERM:
        carmad.await_state(int(job.job_id), "failed")
        carmad.carma("requeue", job.job_id)
    assert job.result() == "went on"
    told = carmad.job(int(job.job_id))
    assert (told["state"], told["attempt"]) == ("succeeded", 2)


def test_without_a_checkpoint_a_time_limit_ends_it(executor: Any) -> None:
    executor.update_parameters(carma_time_limit_s=0.5, gpus_per_node=0)
    with pytest.raises(submitit.core.utils.UncompletedJobError):
        executor.submit(time.sleep, 600).result()


def test_an_error_is_no_result_while_carma_runs_the_job_again(
    carmad: Carmad, executor: Any, tmp_path: Path
) -> None:
    job = executor.submit(Counting(tmp_path / "started"))
    until((tmp_path / "started").exists)
    job.paths.result_pickle.write_bytes(pickle.dumps(("error", "of an earlier attempt")))
    assert not job.done()
    job.cancel()
    carmad.await_state(int(job.job_id), "cancelled")


def test_several_tasks_are_processes_of_one_job(executor: Any) -> None:
    executor.update_parameters(gpus_per_node=0, tasks_per_node=3)
    job = executor.submit(environment, 7)
    assert job.results() == [(7, job.job_id, 3, rank) for rank in range(3)]
    assert [job.task(rank).stdout() for rank in range(3)].count(None) == 0
    first, second = executor.map_array(environment, [1, 2])
    array = first.job_id.partition("_")[0]
    assert second.results() == [(2, f"{array}_1", 3, rank) for rank in range(3)]
    until(first.done)  # the two run at once
    assert first.state == "COMPLETED"


def test_a_task_that_fails_fails_the_job_whose_log_says_why(executor: Any) -> None:
    executor.update_parameters(gpus_per_node=0, tasks_per_node=2)
    job = executor.submit(fail_in_task, 1)
    with pytest.raises(submitit.core.utils.FailedJobError, match="task=1"):
        job.results()
    assert job.state == "FAILED"
    assert job.task(0).result() == 0
    assert "task 1 has failed" in job.task(0).stderr()
    assert "no luck in task 1" in job.task(0).stderr()


def test_several_tasks_go_on_from_the_checkpoint_of_the_first(
    carmad: Carmad, executor: Any, tmp_path: Path
) -> None:
    executor.update_parameters(timeout_min=5, gpus_per_node=0, tasks_per_node=2)
    job = executor.submit(Counting(tmp_path / "started"))

    def processes() -> list[psutil.Process]:
        started = [path.read_text() for path in tmp_path.glob("started*")]
        return [psutil.Process(int(pid)) for pid in started if pid]

    until(lambda: len(processes()) == 2, "both to run")
    for process in (*processes(), processes()[0].parent()):  # CARMA signals all of a job
        process.send_signal(signal.SIGUSR2)
    assert job.results() == ["went on", "went on"]
    assert carmad.job(int(job.job_id))["attempt"] == 2


def test_setup_comes_before_the_function_and_must_succeed(executor: Any, tmp_path: Path) -> None:
    executor.update_parameters(
        gpus_per_node=0, carma_setup=["export WORD='set up' # for it", "cd /"]
    )
    assert executor.submit(os.getenv, "WORD").result() == "set up"
    executor.update_parameters(carma_setup=["false", f"touch {tmp_path}/on"])
    with pytest.raises(submitit.core.utils.UncompletedJobError):
        executor.submit(os.getenv, "WORD").result()
    assert not (tmp_path / "on").exists()


def test_the_state_after_cancel_is_that_of_now(carmad: Carmad, executor: Any) -> None:
    executor.update_parameters(gpus_per_node=0)
    job = executor.submit(time.sleep, 600)
    carmad.await_state(int(job.job_id), "running")
    job.watcher.update()  # what would else be believed for a while
    job.cancel()
    assert job.state in ("COMPLETING", "CANCELLED")


def test_more_than_one_server_is_refused(executor: Any) -> None:
    with pytest.raises(ValueError, match="CARMA has one server"):
        executor.update_parameters(nodes=2)


ITS_INTERNALS = (
    "test_local_job",
    "test_killed",
    "test_cancel",
)  # its process, its words for states
OF_SECONDS = ("test_requeuing", "test_custom_checkpoint")  # a second is too short when it is busy


@pytest.mark.long
def test_what_submitit_asks_of_its_local_executor(carmad: Carmad, tmp_path: Path) -> None:
    left_out = [f"--deselect=::{name}" for name in (*ITS_INTERNALS, *OF_SECONDS)]
    quiet = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hydra_pytest", "schemathesis")]
    argv = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "tests.submitit_local", *quiet]
    argv += ["--basetemp", str(tmp_path / "theirs"), *left_out]
    ran = subprocess.run(
        [*argv, "--pyargs", "submitit.local.test_local"],
        env={**os.environ, "CARMA_SOCKET": carmad.socket, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    assert ran.stdout.count("PASSED") >= 16


def test_a_refusal_says_why_and_leaves_nothing(executor: Any, tmp_path: Path) -> None:
    executor.update_parameters(gpus_per_node=99)
    with pytest.raises(submitit.core.utils.FailedSubmissionError, match="GPU"):
        executor.submit(add, 1, 2)
    assert not list(tmp_path.rglob("*.pkl"))


def test_only_a_job_that_has_ended_is_done() -> None:
    from carma_client.submitit import _OVER, _info

    for state in JobState:
        word = _info({"state": state.value, "label": "1"})["State"]
        assert (word in _OVER) is (state in ENDED), state


@pytest.mark.long
def test_a_function_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    go = tmp_path / "go"
    with running(tmp_path, CARMA_ESTIMATOR="trace", **NO_KERNELS) as carmad:
        monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
        executor = submitit.AutoExecutor(tmp_path / "logs", cluster="carma")
        jobs = [executor.submit(train_until, str(go), width) for width in (512, 1024)]

        def estimates() -> list[dict[str, Any]]:
            return [carmad.job(int(job.job_id))["memory"] for job in jobs]

        def are_traced() -> bool:
            return [one["estimate_source"] for one in estimates()] == ["trace", "trace"]

        until(are_traced, "both to be traced", within_s=600)
        go.touch()
        assert [job.result() for job in jobs] == [512, 1024]
        small, large = estimates()
        assert small["estimate_mib"] < large["estimate_mib"]
        until(lambda: not list(tmp_path.rglob("*_tried.pkl")), "what the trials need to be gone")
