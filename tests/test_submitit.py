"""submitit, as it is, on CARMA."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.functions import Counting, add, environment, fail, train_until, train_with
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


@pytest.mark.parametrize("more", [{"nodes": 2}, {"tasks_per_node": 4}])
def test_one_task_on_one_server(executor: Any, more: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="one task on one server"):
        executor.update_parameters(**more)


def test_a_refusal_says_why_and_leaves_nothing(executor: Any, tmp_path: Path) -> None:
    executor.update_parameters(gpus_per_node=99)
    with pytest.raises(submitit.core.utils.FailedSubmissionError, match="GPU"):
        executor.submit(add, 1, 2)
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_function_is_traced(carmad: Carmad, executor: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    go = tmp_path / "go"
    jobs = [executor.submit(train_until, str(go), width) for width in (512, 1024)]

    def estimates() -> list[dict[str, Any]]:
        return [carmad.job(int(job.job_id))["estimate"] or {} for job in jobs]

    def are_traced() -> bool:
        return [one.get("source") for one in estimates()] == ["trace", "trace"]

    until(are_traced, "both to be traced", within_s=600)
    go.touch()
    assert [job.result() for job in jobs] == [512, 1024]
    small, large = estimates()
    assert small["mib"] < large["mib"]
    assert not list(tmp_path.rglob("*_tried.pkl"))
