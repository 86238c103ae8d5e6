"""`--watch-stages`: a job's own Python measures its stages, and does nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from carma_testing import a_job, a_spec
from carmad.attempt.environment import HOOKS, job_environment, scrub
from carmad.core.jobs.attempt import GpuId, Mode
from carmad.hooks import stages
from tests.fake_daemon import FakeDaemon, serving
from tests.waiting import PATIENCE_S

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 40
    def __getitem__(self, n):
        time.sleep(0.004)
        return torch.ones(64), torch.zeros(1)

model = torch.nn.Sequential(torch.nn.Linear(64, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for inputs, targets in DataLoader(Slow(), batch_size=1):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    steps += 1
from torch.autograd.profiler import profile
from torch.optim import optimizer as module
assert not module._global_optimizer_post_hooks, "it is still there"
assert profile.__init__.__module__ == "torch.autograd.profiler", "it is still there"
print("done", steps, any("carmad/hooks" in each for each in sys.path))
"""

LOOP = """
import sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
"""


WATCHED = a_job(spec=a_spec(watch_stages=True), gpus=(GpuId("GPU-1"),), mode=Mode.STREAMS)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    with serving(tmp_path / "carmad.sock") as daemon:
        yield daemon


def run(
    fake: FakeDaemon, script: str, *options: str, path: str = HOOKS, **env: str
) -> subprocess.CompletedProcess[str]:
    names = {"CARMA_JOB_ID": "42", "CARMA_SOCKET": str(fake.path), "PYTHONPATH": path}
    names["KINETO_LOG_LEVEL"] = job_environment(WATCHED, WATCHED.gpus)["KINETO_LOG_LEVEL"]
    return subprocess.run(
        [sys.executable, *options, "-c", script],
        env=os.environ | names | {"OMP_NUM_THREADS": "1"} | env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


@needs_torch
def test_a_job_is_watched_once_and_tells(fake: FakeDaemon) -> None:
    ran = run(fake, TRAINING)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done 40 False\n", "")
    [(method, path, _, body)] = fake.asked
    assert (method, path) == ("POST", "/v1/jobs/42/step")
    told = body["stages"]
    parts = [told[name] for name in ("load_s", "forward_s", "backward_s", "communication_s")]
    assert body["seconds"] == pytest.approx(sum(parts), rel=0.5)
    assert told["load_s"] > 0
    assert told["backward_s"] > 0
    assert told["forward_s"] > 0
    assert (told["communication_s"], told["sync"]) == (0.0, "forward")


@pytest.mark.long
@needs_torch
def test_the_jobs_own_profiler_goes_first(fake: FakeDaemon) -> None:
    own = "import torch\nwith torch.profiler.profile(): pass\n"
    ran = run(fake, own + TRAINING)
    assert (ran.returncode, ran.stdout) == (0, "done 40 False\n")
    [line] = ran.stderr.splitlines()
    assert "the job uses PyTorch's profiler itself" in line
    assert fake.asked == []


@pytest.mark.long
@needs_torch
def test_a_job_without_a_standard_error_goes_on(fake: FakeDaemon) -> None:
    own = "sys.stderr.close()\nwith torch.profiler.profile(): pass\nprint('done')"
    ran = run(fake, f"{LOOP}\n{own}")
    assert (ran.returncode, ran.stdout) == (0, "done\n")


@pytest.mark.long
@needs_torch
def test_only_the_first_process_tells(fake: FakeDaemon) -> None:
    ran = run(fake, TRAINING, RANK="1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done 40 False\n", "")
    assert fake.asked == []


@needs_torch
def test_a_job_that_ends_while_it_is_watched_ends_as_ever(fake: FakeDaemon) -> None:
    steps = stages.WARM_UP + stages.TIMED + 2
    ran = run(fake, f"{LOOP}\nfor _ in range({steps}): step()\n1 / 0")
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.split("\n")[-2:-1] == ["ZeroDivisionError: division by zero"]
    assert fake.asked == []


@pytest.mark.long
@needs_torch
def test_a_step_that_is_compiled_is_let_alone(fake: FakeDaemon) -> None:
    """Dynamo traces what runs in it, and fails on code that it does not understand."""
    compiled = "\nstep = torch.compile(step, backend='eager')\n"
    ran = run(fake, f"{LOOP}{compiled}for _ in range(30): step()\nprint('done')")
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert fake.asked == []


def test_the_jobs_own_sitecustomize_is_run_too(fake: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 7\n")
    path = f"{HOOKS}{os.pathsep}{tmp_path}"
    ran = run(fake, "import sitecustomize; print(mine, sitecustomize.__file__)", path=path)
    assert (ran.stdout, ran.stderr) == (f"7 {tmp_path}/sitecustomize.py\n", "")


def test_a_torch_that_cannot_be_imported_fails_as_ever(fake: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no driver')")
    path = f"{HOOKS}{os.pathsep}{tmp_path}"
    look = "import importlib.util; importlib.util.find_spec('torch')\n"
    ran = run(fake, look + "try: import torch\nexcept ImportError as e: print(e)", path=path)
    assert (ran.stdout, ran.stderr) == ("no driver\n", "")
    (tmp_path / "torch.py").write_text("x = 1")  # not the torch that is hoped for
    ran = run(fake, look + "import torch; print(torch.x)", path=path)
    assert ran.stdout == "1\n"
    assert ran.stderr.startswith("carma: ") and len(ran.stderr.splitlines()) == 1


def test_the_folder_is_put_before_the_jobs_own_path() -> None:
    gpus = (GpuId("GPU-1"),)
    spec = a_spec(watch_stages=True, env=(("PYTHONPATH", "/mine"),))
    job = a_job(spec=spec, gpus=gpus, mode=Mode.STREAMS)
    assert job_environment(job, gpus)["PYTHONPATH"] == f"{HOOKS}{os.pathsep}/mine"
    assert "KINETO_LOG_LEVEL" not in job_environment(job, ())
    assert job_environment(job, ())["PYTHONPATH"] == "/mine", "it is only tried out"
    other = a_job(spec=a_spec(), gpus=gpus, mode=Mode.STREAMS)
    assert "PYTHONPATH" not in job_environment(other, gpus)
    assert {path.name for path in Path(HOOKS).glob("*.py")} == {
        "__init__.py",
        "sitecustomize.py",
        "stages.py",
    }


def test_a_job_that_a_watched_one_submits_is_not_watched() -> None:
    env = job_environment(WATCHED, WATCHED.gpus)
    assert "PYTHONPATH" not in scrub(env)
    assert scrub(env | {"PYTHONPATH": f"{HOOKS}{os.pathsep}/mine"})["PYTHONPATH"] == "/mine"


# What a profile of a GPU job looks like, made up: no GPU is at hand here.


def event(name: str, start_ms: float, end_ms: float, *kernels: tuple[str, float]) -> object:
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name="CPU"),
        time_range=SimpleNamespace(start=start_ms * 1000, end=end_ms * 1000),
        kernels=[SimpleNamespace(name=kernel, duration=ms * 1000) for kernel, ms in kernels],
    )


def iteration(at: float) -> list[object]:
    """100 ms: 10 of loading, kernels of 30, 50 and 5, and an all-reduce of 20."""
    return [
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 10),
        event("aten::mm", at + 12, at + 13, ("gemm", 30)),
        event(f"{stages.BACKWARD}: MmBackward0", at + 20, at + 22),
        event("aten::mm", at + 20.5, at + 21, ("gemm", 50)),
        event("nccl:all_reduce", at + 21, at + 22, ("ncclDevKernel_AllReduce_Sum_f32", 20)),
        event("Optimizer.step#SGD.step", at + 30, at + 99, ("Optimizer.step#SGD.step", 60)),
        event("aten::add_", at + 31, at + 32, ("add", 5)),
        event(stages.MARK, at + 98, at + 98),
    ]


def test_kernels_are_told_apart_by_where_they_are_launched() -> None:
    profiled = [one for n in range(5) for one in iteration(100.0 * n)]
    found = stages.divide(profiled, seconds=0.05)
    assert found == {
        "load_s": pytest.approx(0.005),  # the host's: the job takes half as long without a profiler
        "forward_s": pytest.approx(0.035),
        "backward_s": pytest.approx(0.050),
        "communication_s": pytest.approx(0.020),
        "sync": "backward",
    }
    with pytest.raises(ValueError, match="not recorded"):
        stages.divide(profiled[:8], seconds=0.05)


def test_what_is_told_is_a_request(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_JOB_ID", "42")
    monkeypatch.setenv("CARMA_SOCKET", str(fake.path))
    body = {"load_s": 0.0, "forward_s": 0.1}
    stages.tell(0.25, body)
    assert fake.body == {"seconds": 0.25, "stages": body}
    fake.refuse_all = (409, "conflict")
    with pytest.raises(ValueError, match="no"):
        stages.tell(0.25, body)
    monkeypatch.setenv("CARMA_SOCKET", "/nowhere")
    with pytest.raises(OSError, match="No such file"):
        stages.tell(0.25, body)
