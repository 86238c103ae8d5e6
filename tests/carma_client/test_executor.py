"""Functions as jobs, with a real daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from carma_client import Client, Executor, JobFailed, Refused
from carma_client.executor import LOOK_S
from tests.attack.users import HOSTILE, needs_root
from tests.carma_client.test_python_client import carmad, client
from tests.daemon import NO_KERNELS, ROOT, running
from tests.functions import (
    add,
    fail,
    first_runs_out_of_memory,
    killed_the_second_time,
    search_path,
    train_until,
    train_until_there,
)
from tests.pythons import find_python
from tests.waiting import PATIENCE_S, until

__all__ = ["carmad", "client"]


@pytest.fixture
def executor(client: Client) -> Iterator[Executor]:
    with Executor(client=client, gpus=0) as executor:
        yield executor
        executor.shutdown(cancel_futures=True)


def calls() -> list[Path]:
    return list(Path(os.environ["XDG_CACHE_HOME"], "carma/calls").glob("*"))


def test_a_function_returns_its_result(client: Client) -> None:
    before = set(calls())
    with Executor(client=client, gpus=1, memory_mib=1000) as executor:
        future = executor.submit(add, 1, b=2)
        assert future.result() == future.result() == 3
    job = client.job(future.job)
    assert (job["name"], job["state"], job["memory"]["declared_mib"]) == ("add", "succeeded", 1000)
    assert list(client.logs(future.job)) == ["adding"]
    assert set(calls()) == before
    client.requeue(future.job)
    assert client.wait(future.job)["state"] == "failed"
    assert list(client.logs(future.job))[-1].startswith("this call is done")


def test_what_is_mapped_is_one_array(client: Client) -> None:
    before = set(calls())
    with Executor(2, client=client, gpus=0, name="mapped") as executor:
        assert list(executor.map(add, [1, 2, 3], [10, 20, 30])) == [11, 22, 33]
        assert list(executor.map(add, range(5), range(5), chunksize=2)) == [0, 2, 4, 6, 8]
        assert list(executor.map(add, [], [])) == []
        arrays = list(executor.map(os.getenv, ["CARMA_ARRAY_JOB_ID", "CARMA_ARRAY_JOB_ID"]))
    assert arrays[0] == arrays[1]
    assert len(client.jobs(arrays[0])) == 2
    assert set(calls()) == before


def test_more_jobs_than_a_request_may_name_are_found(client: Client) -> None:
    array = client.submit(["true"], gpus=0, held=True, array={"indices": list(range(600))})
    labels = [f"{array}_{index}" for index in range(600)]
    assert [job["label"] for job in client.jobs(labels)] == labels
    client.cancel(*labels)
    assert {job["state"] for job in client.jobs(labels[-2:])} == {"cancelled"}


def test_results_come_as_they_are_there(executor: Executor, tmp_path: Path) -> None:
    slow, quick = (
        executor.submit(train_until_there, str(tmp_path / "go")),
        executor.submit(add, 1, 2),
    )
    completed = futures.as_completed([slow, quick], timeout=PATIENCE_S)
    assert next(completed) is quick
    assert slow.running()
    with pytest.raises(futures.TimeoutError):
        slow.result(0.01)
    assert not slow.cancel()
    (tmp_path / "go").touch()
    assert next(completed).result() == "there"


def test_what_waits_can_be_cancelled(client: Client) -> None:
    executor = Executor(client=client, gpus=0, held=True)
    first, second, third = (executor.submit(add, 1, 2) for _ in range(3))
    assert first.cancel() and first.cancel()
    assert client.job(first.job)["state"] == "cancelled"
    with pytest.raises(futures.CancelledError):
        first.result()
    client.release(second.job)
    assert second.result() == 3
    executor.shutdown(cancel_futures=True)
    assert third.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1, 2)


def test_a_cancelled_call_has_not_failed_though_its_job_is_seen_to_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel_slowly(*labels: str) -> None:
        Client(client.socket).cancel(*labels)
        time.sleep(5 * LOOK_S)

    monkeypatch.setattr(client, "cancel", cancel_slowly)
    future = Executor(client=client, gpus=0, held=True).submit(add, 1, 2)
    assert future.cancel() and future.cancelled()


def test_all_that_could_be_cancelled_are_though_another_could_not(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel_but_one(*labels: str) -> None:
        Client(client.socket).cancel(*labels[:-1])
        raise Refused("the last has ended", code="refused")

    executor = Executor(client=client, gpus=0, held=True)
    calls = [executor.submit(add, 1, 2) for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(client, "cancel", cancel_but_one)
        executor.shutdown(wait=False, cancel_futures=True)
    assert [call.cancelled() for call in calls] == [True, True, False]
    client.release(calls[2].job)
    assert calls[2].result() == 3


def test_a_job_that_somebody_cancels_has_failed(client: Client, tmp_path: Path) -> None:
    future = Executor(client=client, gpus=0).submit(train_until_there, str(tmp_path / "none"))
    until(future.running)
    client.cancel(future.job)
    with pytest.raises(JobFailed, match="without a result: cancelled"):
        future.result()


@needs_root
def test_a_result_of_another_user_is_not_unpickled(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Executor(client=client, gpus=0)
    future = executor.submit(train_until_there, str(tmp_path / "go"))
    (folder,) = (path for path in calls() if path == future._calls.folder)
    (folder / "0.result").write_bytes(b"x")
    os.chown(folder / "0.result", HOSTILE[0], -1)
    client.cancel(future.job)
    with pytest.raises(Refused, match="is not yours"):
        future.result()


def test_what_it_raises_is_raised_here(executor: Executor, client: Client) -> None:
    known, strange = executor.submit(fail, "no luck"), executor.submit(fail, "")
    with pytest.raises(ValueError, match="no luck") as raised:
        known.result()
    assert f"job {known.job}" in str(raised.value.__cause__)
    assert "in fail" in str(raised.value.__cause__)
    with pytest.raises(RuntimeError, match="OwnError: 1 and 2"):  # it cannot be unpickled
        strange.result()
    with pytest.raises(JobFailed, match="without a result: failed") as failed:
        executor.submit(os._exit, 3).result()
    assert (failed.value.job["exit"] or {})["code"] == 3
    with pytest.raises(TypeError, match="pickle"):  # what cannot be pickled is found out in the job
        executor.submit(threading.Lock).result()


def test_a_result_of_an_earlier_attempt_does_not_count(client: Client, tmp_path: Path) -> None:
    # With a neighbour, or it would not be run again; that gets a GPU of its own.
    neighbour = client.submit(["sleep", "600"], gpus=3)
    executor = Executor(client=client)
    future = executor.submit(first_runs_out_of_memory, str(tmp_path / "trace"))
    until(lambda: client.job(future.job)["recovering"], "it to be retried")
    client.cancel(neighbour)
    assert future.result() == "went on"
    assert client.job(future.job)["attempt"] == 2
    with pytest.raises(ValueError, match="of the first attempt"):
        executor.submit(killed_the_second_time, str(tmp_path / "other")).result()


def test_a_refused_call_leaves_nothing(client: Client) -> None:
    before = set(calls())
    with pytest.raises(Refused):
        Executor(client=client, gpus=99).submit(add, 1, 2)
    with pytest.raises(TypeError, match="array"):
        Executor(client=client, array={"indices": [1, 2]})
    assert set(calls()) == before


def test_modules_are_looked_for_as_in_the_program(executor: Executor) -> None:
    mine = [str(Path(each).absolute()) for each in sys.path]
    assert executor.submit(search_path).result()[: len(mine)] == mine


SCRIPT = """
import sys
if {without}: sys.modules["cloudpickle"] = None
from carma_client import Executor, Problem
def twice(x): return 2 * x
class Own(Exception): pass
def fails(): raise Own("of the script")
try:
    print(Executor(gpus=0).submit(twice, 21).result())
    Executor(gpus=0).submit(fails).result()
except Problem as problem: print(problem, "|", problem.hint)
except Own as error: print("Own:", error)
"""


@pytest.mark.parametrize("without", [True, False])
def test_a_function_of_the_script_itself_needs_cloudpickle(client: Client, without: bool) -> None:
    if not without:
        pytest.importorskip("cloudpickle")
    script = Path("script.py")
    script.write_text(SCRIPT.format(without=without))
    env = os.environ | {"CARMA_SOCKET": client.socket}
    ran = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    said = "twice is defined in the script itself | define it in a module of its own, or install"
    for word in (said,) if without else ("42", "Own: of the script"):
        assert word in ran.stdout, ran


def test_a_call_outlasts_a_restart_of_carmad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running(tmp_path, **NO_KERNELS) as carmad:
        executor = Executor(client=Client(carmad.socket), gpus=0)
        future = executor.submit(train_until_there, str(tmp_path / "go"))
        until(future.running)
        carmad.kill()
        carmad.start()
        (tmp_path / "go").touch()
        assert future.result(PATIENCE_S) == "there"


def test_joblib_runs_its_calls_as_jobs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    joblib = pytest.importorskip("joblib")
    from carma_client.joblib import CarmaBackend

    monkeypatch.setenv("CARMA_SOCKET", client.socket)
    backend = CarmaBackend(gpus=0, name="of joblib")
    with joblib.parallel_config(backend=backend, n_jobs=2):
        jobs = joblib.Parallel()([joblib.delayed(os.getenv)("CARMA_JOB_ID")] * 3)
        assert [client.job(job)["name"] for job in set(jobs)] == ["of joblib"] * 3
        with pytest.raises(ZeroDivisionError) as raised:
            joblib.Parallel()(joblib.delayed(divmod)(1, each) for each in (1, 0))
        assert "In CARMA's job" in str(raised.value.__cause__)
        assert joblib.Parallel(n_jobs=-1, batch_size=2)([joblib.delayed(add)(1, 2)] * 4) == [3] * 4


def test_dask_runs_its_tasks_as_jobs(executor: Executor, client: Client) -> None:
    dask = pytest.importorskip("dask")
    jobs = [dask.delayed(os.getenv)("CARMA_JOB_ID", pure=False) for _ in range(3)]
    (found,) = dask.compute(dask.delayed(sorted)(jobs), scheduler=executor)
    assert len({client.job(job)["label"] for job in found}) == 3


@pytest.mark.long
def test_what_python_asks_of_an_executor(client: Client, tmp_path: Path) -> None:
    suite = "test.test_concurrent_futures"
    python = next(filter(None, (find_python(f"3.{minor}", suite) for minor in (13, 12, 11))), None)
    if python is None:
        pytest.skip("no Python here has its tests")
    env = os.environ | {"CARMA_SOCKET": client.socket, "PYTHONPATH": str(ROOT)}
    argv = [python, "-m", "unittest", "-v", "tests.cpython_executor"]
    ran = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-8000:]
    assert ran.stderr.count("... ok") >= 15


@pytest.mark.long
def test_a_function_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    go = tmp_path / "go"
    with running(tmp_path, CARMA_ESTIMATOR="trace", **NO_KERNELS) as carmad:
        future = Executor(client=Client(carmad.socket)).submit(train_until, str(go), 512)

        def source() -> str | None:
            found: str | None = carmad.job(int(future.job))["memory"]["estimate_source"]
            return found

        until(lambda: source() == "trace", "it to be traced", within_s=600)
        go.touch()
        assert future.result() == 512
