"""What other threads read of the core: the last decisions, and the memory that jobs hold."""

from __future__ import annotations

from carma_testing import a_gpu_view, a_job, a_spec, a_view
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.gpus.gpuview import GpuView
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.tasks import JobsById
from carmad.core.placing.decision import Decision, Placement
from carmad.core.scene import Scene, memory_by_job

FIRST, SECOND = a_job(1), a_job(2)


def decided(*at: float) -> dict[JobId, Decision]:
    """The last decisions on the jobs 1, 2, …, made at these times."""
    return {
        JobId(n): Decision(then, "fifo", Placement(JobId(n))) for n, then in enumerate(at, start=1)
    }


def scene(decisions: dict[JobId, Decision], *queue: int) -> Scene:
    line = FIRST, SECOND
    view = a_view([a_gpu_view()], [job for job in line if job.id in queue])
    return Scene(view, {}, JobsById(line), {}, line, decisions=decisions)


def test_a_decision_that_is_older_than_that_on_the_head_of_the_line_is_not_current() -> None:
    stopped, passed = decided(20.0, 10.0), decided(20.0, 20.0)
    assert scene(stopped, 1, 2).current(SECOND.id) is None
    assert scene(passed, 1, 2).current(SECOND.id) is passed[SECOND.id]


def test_a_decision_is_current_if_no_job_may_start() -> None:
    before = decided(20.0, 10.0)
    assert scene(before).current(SECOND.id) is before[SECOND.id]


def test_jobs_without_gpus_have_a_line_of_their_own() -> None:
    line = a_job(1), a_job(2, spec=a_spec(gpus=0)), a_job(3), a_job(4, spec=a_spec(gpus=0))
    seen = Scene(a_view([a_gpu_view()], line), {}, JobsById(line), {}, line)
    assert [seen.place(job.id) for job in line] == [1, 1, 2, 2]
    assert seen.place(JobId(5)) is None


def test_a_job_holds_what_all_of_its_processes_hold_on_the_gpu_where_that_is_most() -> None:
    def view(index: int, *processes: ProcessUse) -> GpuView:
        sample = GpuSample(f"GPU-{index}", 0.0, processes=processes)
        return a_gpu_view(index, sample=sample)

    def process(memory_mib: int | None, job: int | None = 1) -> ProcessUse:
        return ProcessUse(9, memory_mib, job=job)

    few = view(0, process(700), process(800), process(None), process(9000, job=None))
    most = view(1, process(2000), process(None, job=3), process(5, job=2))
    assert memory_by_job([few]) == {1: 1500}
    assert memory_by_job([few, most, few]) == {1: 2000, 2: 5}
    assert memory_by_job([a_gpu_view(0, sample=None)]) == {}
