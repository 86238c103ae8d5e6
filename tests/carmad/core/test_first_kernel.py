"""When the driver does not say who keeps a GPU busy, as under MPS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_testing import FakeServer, a_job
from carmad.config import Collocation, Monitor, Settings
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.gpus.readings import Reading, has_run_kernel
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState

SETTINGS = Settings(monitor=Monitor(window_s=5.0))
HERE = GpuId("GPU-a")


def job() -> Job:
    return a_job(7, state=JobState.STARTING, gpus=(HERE,), started_at=0.0, attempt=2)


def readings(
    activity: list[float | None],
    memory: list[int | None] | None = None,
    util: float | None = None,
    **changes: object,
) -> list[Reading]:
    """One a second. `memory`: the job's from when it is first seen on; 800 MiB throughout if not
    given, and -1 where it has no process."""
    memory = memory or [800] * len(activity)
    found = []
    for at, (active, mib) in enumerate(zip(activity, memory, strict=True)):
        own = ProcessUse(1, mib, util, job=job().id, attempt=2)
        sample = GpuSample(HERE, float(at), 900, sm_active=active)
        there = () if mib == -1 else (replace(own, **changes),)  # type: ignore[arg-type]
        found.append((replace(sample, processes=there), 1.0))
    return found


@pytest.mark.parametrize(
    ("activity", "alone", "seen"),
    [
        ([0.0, 0.0], True, False),
        ([0.0, 0.04], True, False),  # it may be anything
        ([0.9, 0.06], True, True),  # the 0.9 was the load of one that has left
        ([0.4, 0.3, 0.44], False, False),  # its neighbour's own ups and downs
        ([0.4, 0.3, 0.46], False, True),
        ([0.46], False, False),  # nothing to compare with
        ([None, 0.46], False, False),
    ],
)
def test_a_rise_of_the_gpu_s_activity_is_a_first_kernel(activity, alone, seen):
    assert has_run_kernel(job(), readings(activity), alone, SETTINGS) is seen


def test_a_change_of_metric_is_no_rise():
    """NVML's utilisation stands in for SMACT while that cannot be read, and is far higher."""
    steps: list[tuple[dict[str, float], bool]] = [
        ({"sm_active": 0.4, "utilization": 0.98}, False),
        ({"utilization": 0.98}, False),
        ({"utilization": 1.0}, False),
        ({"sm_active": 0.44, "utilization": 1.0}, False),
        ({"sm_active": 0.5, "utilization": 1.0}, True),
    ]
    found: list[Reading] = []
    for (sample, seconds), (its, seen) in zip(readings([None] * 5), steps, strict=True):
        found.append((replace(sample, **its), seconds))  # type: ignore[arg-type]
        assert has_run_kernel(job(), found, False, Settings(monitor=Monitor(window_s=60.0))) is seen


@pytest.mark.parametrize(
    ("memory", "seen"),
    [
        ([800, 800, 805, 800, 800], True),
        ([800, 800, 900, 900, 900], False),
        ([-1, 800, 800, 800, 800], False),  # not yet for a whole window
        ([800, 800, 800], False),
        ([500, 500, 500, 500, 500], False),  # a bare context
        ([544, 544, 544, 544, 544], False),
        ([None, None, None, None, None], True),  # by the whole GPU's 900
    ],
)
def test_beside_a_busy_neighbour_steady_memory_is_one_too(memory, seen):
    assert has_run_kernel(job(), readings([1.0] * len(memory), memory), False, SETTINGS) is seen


@pytest.mark.parametrize(
    ("other", "seen"),
    [
        (ProcessUse(2, 5_000, 0.4), False),
        (ProcessUse(2, 5_000), False),
        (ProcessUse(2, None), False),
        (ProcessUse(2, 5_000, job=JobId(8)), False),  # one that has ended, for CARMA
        (ProcessUse(2, 5_000, 0.0), True),  # idle
        (ProcessUse(2, 60, 0.4), True),  # such as the MPS server, blamed for its client's kernels
    ],
)
def test_beside_a_busy_process_of_no_resident_a_context_is_no_kernel(other, seen):
    busy = [
        (replace(sample, processes=(*sample.processes, other)), seconds)
        for sample, seconds in readings([0.4] * 5, [500] * 5)
    ]
    assert has_run_kernel(job(), busy, True, SETTINGS) is seen
    *before, (last, seconds) = busy
    assert has_run_kernel(job(), [*before, (replace(last, sm_active=0.5), seconds)], True, SETTINGS)


def test_on_an_idle_gpu_no_kernel_has_run_however_steady_the_memory():
    assert not has_run_kernel(job(), readings([0.0] * 5), True, SETTINGS)
    assert has_run_kernel(job(), readings([0.01] * 5), True, SETTINGS)


def test_without_activity_memory_decides_and_without_either_presence():
    unknown: list[float | None] = [None] * 5
    assert has_run_kernel(job(), readings(unknown), False, SETTINGS)
    assert not has_run_kernel(job(), readings(unknown, [1, 2, 3, 4, 5]), False, SETTINGS)
    blind = [(replace(s, memory_used_mib=None), 1.0) for s, _ in readings([None], [None])]
    assert has_run_kernel(job(), blind, False, SETTINGS)


def test_a_sample_of_the_process_itself_decides():
    assert has_run_kernel(job(), readings([0.0], util=0.2), False, SETTINGS)
    assert not has_run_kernel(job(), readings([0.1, 0.9], util=0.0), False, SETTINGS)


def test_a_faint_one_does_if_it_lasts_for_a_window():
    """An H100 says 1 % of a context that has run nothing."""
    faint = readings([0.0] * 5, util=0.01)
    assert not has_run_kernel(job(), faint[:1], True, SETTINGS)
    assert not has_run_kernel(job(), faint[:4], True, SETTINGS)
    assert has_run_kernel(job(), faint, True, SETTINGS)
    paused = [*faint[:2], *readings([0.0], util=0.0), *faint[3:]]
    assert not has_run_kernel(job(), paused, True, SETTINGS)
    assert has_run_kernel(job(), readings([0.0], util=0.011), True, SETTINGS)


@pytest.mark.parametrize("changes", [{"job": 8}, {"attempt": 1}, {"job": None}])
def test_other_processes_do_not_count(changes):
    assert not has_run_kernel(job(), readings([0.1, 0.9], **changes), False, SETTINGS)


def test_an_mps_client_s_context_does_not_open_its_gpu():
    """It loads data for longer than a window; then its kernels are seen, and a window passes."""
    server = FakeServer(gpus=1, settings=Settings(collocation=Collocation(mps=True)))
    shown = server.reading

    def blaming_the_server(gpu, at):
        sample = shown(gpu, at)
        return replace(sample, processes=tuple(replace(p, sm_util=None) for p in sample.processes))

    server.reading = blaming_the_server
    first, second = server.submit(), server.submit()
    server.run_kernel(first, 500)  # only a context, for all the driver says
    server.pass_time(60)
    assert server.job(first).state is JobState.STARTING
    assert server.why(second)[0] == {0: ["first_kernel"]}
    server.sm_active[server.gpus[0].id] = 0.3
    server.sample(1)
    assert server.job(first).state is JobState.RUNNING
    assert server.why(second)[0] == {0: ["settling"]}
    server.pass_time(31)
    assert server.job(second).state is JobState.STARTING
