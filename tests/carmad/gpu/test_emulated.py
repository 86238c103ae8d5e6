"""Emulated GPUs, the source that reads them, and the job that uses them."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from carmad.core.gpus.gpu import GpuSample
from carmad.errors import CarmaError
from carmad.gpu.card import SUFFIX, Card, CardLost, OutOfMemory
from carmad.gpu.emulated import EmulatedSource, create
from carmad.gpu.kinds import KINDS
from carmad.gpu.source import utilization
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[3]
SIZE = r"(?:\d+ bytes|\d+\.\d\d [KMG]iB)"
TORCH_OOM = re.compile(
    rf"^torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate (?P<tried>{SIZE})\. "
    rf"GPU (?P<gpu>\d+) has a total capacity of (?P<total>{SIZE}) of which (?P<free>{SIZE}) "
    rf"is free\. (?P<others>(?:Process \d+ has {SIZE} memory in use\. )*)"
    rf"Including non-PyTorch memory, this process has {SIZE} memory in use\. "
    rf"Of the allocated memory {SIZE} is allocated by PyTorch, "
    rf"and {SIZE} is reserved by PyTorch but unallocated\. .*expandable_segments:True",
    re.MULTILINE,
)
fork = multiprocessing.get_context("fork")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmulatedSource]:
    create(tmp_path, "2xA100-40GB")
    opened = EmulatedSource(tmp_path)
    opened.discover()
    yield opened
    opened.close()


@pytest.fixture
def paths(source: EmulatedSource, tmp_path: Path) -> tuple[str, ...]:
    return tuple(str(tmp_path / f"{gpu.id}{SUFFIX}") for gpu in source.discover())


def start_job(directory: Path, *argv: str, gpus: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "carmad.gpu.emulated_job", *argv],
        cwd=ROOT,
        env=os.environ | {"CARMA_EMULATED_DIR": str(directory), "CUDA_VISIBLE_DEVICES": gpus},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(source: EmulatedSource, wanted: Callable[[GpuSample], bool]) -> GpuSample:
    """The first sample of the first GPU that satisfies the condition."""
    sample: GpuSample = until(lambda: source.sample(0.0)[0], "such a sample", wanted=wanted)
    return sample


# Making and finding cards.


def test_a_plus_begins_another_island(tmp_path: Path) -> None:
    create(tmp_path, "2xA100-40GB+1xA100-40GB,1xT4-16GB")
    opened = EmulatedSource(tmp_path)
    assert [gpu.island for gpu in opened.discover()] == ["0", "0", "1", "1"]
    opened.close()


def test_without_one_all_are_near_each_other(source: EmulatedSource) -> None:
    assert [gpu.island for gpu in source.discover()] == ["", ""]


def test_made_up_uuids_are_stable_and_well_formed(tmp_path: Path) -> None:
    for directory in (tmp_path / "one", tmp_path / "two"):
        create(directory, "2xA100-40GB,V100-16GB")
    one, two = (EmulatedSource(tmp_path / name).discover() for name in ("one", "two"))
    assert one == two
    assert [gpu.index for gpu in one] == [0, 1, 2]
    assert [gpu.memory_mib for gpu in one] == [40_960, 40_960, 16_384]
    assert len({gpu.id[:12] for gpu in one}) == 3
    for gpu in one:
        assert re.fullmatch(r"GPU-e[0-9a-f]{7}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.id)


def test_making_cards_again_keeps_their_tenants(
    source: EmulatedSource, paths: tuple[str, ...], tmp_path: Path
) -> None:
    card = Card(paths[0])
    card.attach()
    card.allocate(1000)
    create(tmp_path, "2xA100-40GB")
    assert source.sample(0.0)[0].memory_used_mib == 1000
    card.close()


@pytest.mark.usefixtures("source")
def test_bad_requests_are_the_users_error(tmp_path: Path) -> None:
    for spec in ("3xA100-41GB", "", "0xA100-40GB"):
        with pytest.raises(CarmaError):
            create(tmp_path / "other", spec)
    with pytest.raises(CarmaError, match="has emulated cards other"):
        create(tmp_path, "1xT4-16GB")
    with pytest.raises(CarmaError, match="no emulated cards"):
        EmulatedSource(tmp_path.parent).discover()


def test_cards_are_open_to_every_user(paths: tuple[str, ...]) -> None:
    assert all(Path(path).stat().st_mode & 0o777 == 0o666 for path in paths)


# Memory.


def grab(path: str, gate: object, out: Queue[int], hold: object) -> None:
    card = Card(path)
    gate.wait()  # type: ignore[attr-defined]
    card.attach()
    got = 0
    try:
        while True:
            card.allocate(97)
            got += 97
    except OutOfMemory:
        out.put(got)
    hold.wait()  # type: ignore[attr-defined]
    os._exit(0)  # without a word, as a crash would


def test_racing_allocations_never_exceed_the_card(
    source: EmulatedSource, paths: tuple[str, ...]
) -> None:
    count = 12
    gate, hold, out = fork.Barrier(count), fork.Event(), fork.Queue()
    jobs = [fork.Process(target=grab, args=(paths[0], gate, out, hold)) for _ in range(count)]
    for job in jobs:
        job.start()
    got = sum(out.get(timeout=PATIENCE_S) for _ in jobs)
    sample = source.sample(0.0)[0]
    assert sample.memory_used_mib == got
    assert 40_960 - 97 < got <= 40_960
    assert {use.pid for use in sample.processes} == {job.pid for job in jobs}
    hold.set()
    for job in jobs:
        job.join()
    assert source.sample(0.0)[0].memory_used_mib == 0


def test_a_killed_job_gives_its_memory_back(source: EmulatedSource, tmp_path: Path) -> None:
    job = start_job(tmp_path, "--memory-mib", "30000", "--seconds", "60", "--warmup", "0")
    held = wait_for(source, lambda sample: sample.memory_used_mib == 30_000)
    assert [use.pid for use in held.processes] == [job.pid]
    assert source.pids(held.gpu) == frozenset({job.pid})
    job.kill()
    # Not yet waited for: a zombie holds no memory.
    wait_for(source, lambda sample: sample.memory_used_mib == 0)
    assert source.pids(held.gpu) == frozenset()
    job.communicate()


def test_a_reused_pid_is_not_the_old_process(
    source: EmulatedSource, paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(paths[0])
    with monkeypatch.context() as patch:
        patch.setattr("carmad.gpu.card._start_of", lambda _: 1)  # an earlier process of our pid
        card.attach()
        card.allocate(1000)
    assert source.sample(0.0)[0].processes == ()


# Speed, activity, energy.


def test_sharing_slows_down_by_the_stated_model(
    source: EmulatedSource, paths: tuple[str, ...]
) -> None:
    first, second = Card(paths[0]), Card(paths[0])
    for card in (first, second):
        card.attach()
    first.launch(0.9, 0.4, 0.5)
    assert first.rate() == 1.0
    second.launch(0.6, 0.2, 0.1)
    assert first.rate() == second.rate() == pytest.approx(1 / 1.5)
    shared, idle = source.sample(0.0)
    assert (shared.sm_active, shared.utilization) == (1.0, 1.0)
    # The simulator's cards, which may not know these ones, say the same.
    assert (shared.utilization, shared.memory_utilization) == pytest.approx(utilization(1.0, 0.4))
    assert shared.sm_occupancy == pytest.approx(0.4)
    assert shared.dram_active == pytest.approx(0.4)
    assert [use.sm_util for use in shared.processes] == pytest.approx([0.6, 0.4])
    assert (shared.power_w, idle.power_w) == (347.5, 50.0)
    second.close()
    assert first.rate() == 1.0
    first.close()


@pytest.mark.parametrize("kind", ["DGX-Station-A100-40GB", "L40S-48GB"])
def test_an_emulated_card_draws_the_power_of_a_simulated_one(tmp_path: Path, kind: str) -> None:
    create(tmp_path, kind)
    opened = EmulatedSource(tmp_path)
    (gpu,) = opened.discover()
    card = Card(str(tmp_path / f"{gpu.id}{SUFFIX}"))
    card.attach()
    for sm, dram in ((0.0, 0.0), (0.3, 0.1), (0.1, 0.3), (1.0, 0.4)):
        card.launch(sm, 0.1, dram)
        assert opened.sample(0.0)[0].power_w == pytest.approx(KINDS[kind].power_w(sm, dram))
    card.close()
    opened.close()


def test_a_shared_job_takes_longer(source: EmulatedSource, tmp_path: Path) -> None:
    demand = ("--sm", "0.9", "--warmup", "0")
    neighbour = start_job(tmp_path, *demand, "--seconds", "60")
    wait_for(source, lambda sample: bool(sample.sm_active))
    began = time.monotonic()
    job = start_job(tmp_path, *demand, "--seconds", "0.5", gpus="1,0")  # as slow as the slower GPU
    job.communicate()
    assert job.returncode == 0
    assert time.monotonic() - began > 0.5 * 1.6
    neighbour.terminate()
    neighbour.communicate()


def test_energy_never_goes_back(source: EmulatedSource, paths: tuple[str, ...]) -> None:
    card = Card(paths[0])
    seen = []
    for _ in range(3):
        card.attach()
        card.launch(1.0, 0.5, 0.5)
        time.sleep(0.02)
        seen.append(source.sample(0.0)[0].energy_mj)
        card.detach()
        again = EmulatedSource(Path(paths[0]).parent)  # the counter is the card's, not the reader's
        again.discover()
        seen.append(again.sample(0.0)[0].energy_mj)
        again.close()
    card.close()
    assert None not in seen
    assert seen == sorted(seen)  # type: ignore[type-var]
    busy, idle = source.sample(0.0)
    assert busy.energy_mj and idle.energy_mj and busy.energy_mj > idle.energy_mj


# The job.


def test_the_first_kernel_comes_after_the_warm_up(source: EmulatedSource, tmp_path: Path) -> None:
    job = start_job(tmp_path, "--warmup", "0.5", "--seconds", "60", "--memory-mib", "8000")
    loading = wait_for(source, lambda sample: bool(sample.memory_used_mib))
    assert (loading.memory_used_mib, loading.sm_active) == (2_000, 0.0)
    assert [use.sm_util for use in loading.processes] == [0.0]
    working = wait_for(source, lambda sample: bool(sample.sm_active))
    assert all(use.sm_util for use in working.processes)
    wait_for(source, lambda sample: sample.memory_used_mib == 8_000)
    job.send_signal(signal.SIGUSR2)
    assert job.stdout is not None
    while job.stdout.readline() != "checkpoint\n":
        assert job.poll() is None
    job.terminate()
    job.communicate()
    assert job.returncode == -signal.SIGTERM


def test_out_of_memory_reads_as_pytorch_says_it(tmp_path: Path, source: EmulatedSource) -> None:
    tenant = start_job(tmp_path, "--memory-mib", "30000", "--seconds", "60", "--warmup", "0")
    wait_for(source, lambda sample: sample.memory_used_mib == 30_000)
    at_once = "--warmup", "0", "--ramp", "0"
    job = start_job(tmp_path, "--memory-mib", "20000", *at_once, gpus="1,0")
    _, stderr = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 1
    assert stderr.startswith("Traceback (most recent call last):\n")
    found = TORCH_OOM.search(stderr)
    assert found is not None, stderr
    assert found["gpu"] == "1"  # as the job counts
    assert (found["tried"], found["total"]) == ("14.65 GiB", "40.00 GiB")
    assert found["free"] == f"{(40_960 - 30_000 - 5_000) / 1024:.2f} GiB"
    assert found["others"] == f"Process {tenant.pid} has 29.30 GiB memory in use. "
    assert {use.pid for use in source.sample(0.0)[0].processes} == {tenant.pid}
    tenant.terminate()
    tenant.communicate()


def test_a_job_runs_to_its_end_and_reports(tmp_path: Path, source: EmulatedSource) -> None:
    first = source.discover()[0].id
    job = start_job(tmp_path, "--seconds", "0.1", "--warmup", "0", gpus=f"{first},nonsense,1")
    stdout, stderr = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, stderr) == (0, "")
    assert "1 GPU(s)" in stdout
    assert re.search(r"^step +5/5  loss \d\.\d{3}  \d+ ms a step$", stdout, re.MULTILINE)


def test_a_job_without_gpus_or_sense_fails(tmp_path: Path) -> None:
    create(tmp_path, "1xT4-16GB")
    none = start_job(tmp_path, gpus="")
    assert "No CUDA GPUs are available" in none.communicate()[1]
    senseless = start_job(tmp_path, "--colour", "blue")
    assert "unrecognized arguments: --colour blue" in senseless.communicate()[1]
    assert (none.returncode, senseless.returncode) == (1, 2)


# Faults.


def test_a_lost_card_is_reported_once_and_fails_its_jobs(
    source: EmulatedSource, paths: tuple[str, ...]
) -> None:
    card = Card(paths[1])
    card.attach()
    card.set_lost(True)
    fine, lost = source.sample(1.0)
    assert (fine.fault, lost.fault, lost.memory_free_mib) == (None, "GPU is lost", None)
    source.sample(2.0)
    assert [(news.gpu, news.at, news.drain) for news in source.health()] == [(lost.gpu, 1.0, True)]
    assert source.health() == ()
    assert source.pids(lost.gpu) is None
    for use in (card.rate, lambda: card.allocate(1), lambda: card.launch(0.5, 0.2, 0.1)):
        with pytest.raises(CardLost):
            use()
    card.set_lost(False)
    assert source.sample(3.0)[1].fault is None
    card.close()


@pytest.mark.parametrize("python", ["/usr/bin/python3", sys.executable])
def test_the_example_needs_no_packages(source: EmulatedSource, tmp_path: Path, python: str) -> None:
    if not Path(python).exists():
        pytest.skip("no Python of the system's")
    env = os.environ | {"CARMA_EMULATED_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    words = ["--memory-mib", "8000", "--load", "0.9", "--steps", "5", "--grow", "9000"]
    ran = subprocess.run(
        [python, "-I", "-S", ROOT / "examples/emulated_train.py", *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"step +(\d)/5  loss [\d.]+  \d+ ms a step", ran.stdout) == [
        "1",
        "2",
        "3",
        "4",
    ]
    assert ran.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.79 GiB." in ran.stderr
