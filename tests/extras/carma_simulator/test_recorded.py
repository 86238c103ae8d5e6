"""A daemon's journal replayed, and its history as a trace: by hand, and from a real daemon."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from carma_simulator import past, recorded
from carma_simulator.experiment import Attempt, Load
from carma_simulator.metrics import figures
from carma_simulator.past import Ran
from carma_simulator.run import simulate
from carma_simulator.traces import rows
from carma_simulator.workload import Workload
from carmad.api.job import AttemptOut, attempts_out
from carmad.api.wire import iso, stamp
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, GpuId, JobId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step
from carmad.errors import CarmaError
from carmad.store import journal
from carmad.store.sql import SqlStore
from lab.replay import reproduce
from tests.busy import Busy
from tests.daemon import Carmad, Json, running, train

A, B = GpuId("GPU-a"), GpuId("GPU-b")


# -- who did how much, and how long it takes alone


class Halved:
    """Jobs that share train at half speed, or under MPS at three quarters."""

    def speeds(self, loads: Sequence[Load], mode: Mode) -> tuple[float, ...]:
        alone = len(loads) == 1 or mode is Mode.EXCLUSIVE
        return (1.0 if alone else 0.75 if mode is Mode.MPS else 0.5,) * len(loads)


def ran(*attempts: Attempt, sm: float | None = None) -> Ran:
    return Ran(attempts, sm)


def attempt(
    launched: float,
    ready: float | None,
    ended: float,
    *gpus: GpuId,
    cause: Cause = Cause.SUCCESS,
    mode: Mode = Mode.STREAMS,
) -> Attempt:
    return Attempt(gpus or (A,), mode, launched, ready, ended, cause)


def alone_s(*jobs: Ran) -> list[float]:
    loads = [Load()] * len(jobs)
    return past.alone_s(jobs, past.stretches(jobs), loads, Halved())


def activity(*jobs: Ran) -> list[float | None]:
    return past.activity(jobs, past.stretches(jobs))


def test_a_job_alone_takes_what_it_took_from_its_first_kernel_on() -> None:
    assert alone_s(ran(attempt(0, 10, 110))) == [100]
    assert alone_s(ran(attempt(0, 10, 50)), ran(attempt(50, 60, 90))) == [40, 30]
    assert alone_s(ran(attempt(0, 10, 50, A)), ran(attempt(0, 10, 50, B))) == [40, 40]
    assert alone_s(ran(attempt(0, None, 50))) == [0], "it never used its GPU"


def test_time_together_counts_at_the_speed_it_went_at() -> None:
    assert alone_s(ran(attempt(0, 0, 100)), ran(attempt(50, 50, 150))) == [75, 75]
    starting = ran(attempt(10, 50, 150))  # beside it for 40 s before it slows anybody
    assert alone_s(ran(attempt(0, 0, 100)), starting) == [75, 75]
    mps = attempt(0, 0, 100, mode=Mode.MPS), attempt(0, 0, 100, mode=Mode.MPS)
    assert alone_s(ran(mps[0]), ran(mps[1])) == [75, 75]


def test_a_job_on_several_gpus_goes_at_the_pace_of_the_slowest() -> None:
    wide = ran(attempt(0, 0, 100, A, B))
    assert alone_s(wide, ran(attempt(40, 40, 60, B))) == [90, 10]
    at_once = alone_s(wide, ran(attempt(40, 40, 60, A)), ran(attempt(50, 50, 70, B)))
    assert at_once == [85, 10, 10]


def test_lost_work_does_not_count_and_saved_work_does() -> None:
    crashed = attempt(0, 10, 60, cause=Cause.GPU_OOM)
    preempted = attempt(0, 10, 60, cause=Cause.PREEMPTED)
    assert alone_s(ran(crashed, attempt(100, 110, 150))) == [40]
    assert alone_s(ran(preempted, attempt(100, 110, 150))) == [90]
    beside = ran(attempt(0, 0, 200))
    assert alone_s(ran(crashed, attempt(100, 110, 150)), beside) == [20, 155]


def test_activity_is_told_apart_by_who_was_there_when() -> None:
    """One causes 0.6 and the other 0.2; they share half of their time."""
    found = activity(ran(attempt(0, 0, 100), sm=0.7), ran(attempt(50, 50, 150), sm=0.5))
    assert found == pytest.approx([0.6, 0.2])


def test_activity_of_those_always_together_is_shared_evenly() -> None:
    together = [ran(attempt(0, 0, 100), sm=0.9) for _ in range(3)]
    assert activity(*together) == pytest.approx([0.3] * 3)


def test_activity_counts_from_the_first_kernel() -> None:
    assert activity(ran(attempt(0, 20, 100), sm=0.4)) == pytest.approx([0.5])
    assert activity(ran(attempt(0, 0, 100))) == [None]
    assert activity(ran(attempt(0, None, 100), sm=0.1)) == [None]


def test_activity_on_several_gpus_is_that_of_each() -> None:
    """0.5 on both, beside 0.4 on one of them: 0.5 on one and 0.9 on the other, 0.7 in the mean."""
    found = activity(ran(attempt(0, 0, 100, A, B), sm=0.7), ran(attempt(0, 0, 100, B), sm=0.9))
    assert found == pytest.approx([0.5, 0.4], abs=1e-6)


# -- a history, by hand


def at(second: float) -> str:
    return f"2026-11-20T12:{int(second) // 60:02}:{second % 60:06.3f}Z"


def tried(started: float, kernel: float | None, ended: float, *gpus: str, **other: Any) -> Json:
    made = {
        "gpus": list(gpus or (A,)),
        "mode": "streams",
        "started_at": at(started),
        "first_kernel_at": None if kernel is None else at(kernel),
        "ended_at": at(ended),
        "cause": "success",
    }
    return made | other


def past_job(id: int, submitted: float, *attempts: Json, **other: Any) -> Json:
    """A job as in /v1/history."""
    made: Json = {
        "id": id,
        "name": f"job{id}",
        "user": "ada",
        "state": "succeeded",
        "submitted_at": at(submitted),
        "begin_at": None,
        "after": [],
        "started_at": attempts[-1]["started_at"] if attempts else None,
        "ended_at": attempts[-1]["ended_at"] if attempts else at(submitted),
        "gpus": [{"id": gpu} for gpu in (attempts[-1]["gpus"] if attempts else ())],
        "gpus_wanted": 1,
        "memory": {"declared_mib": None, "estimate_mib": 12_000, "peak_mib": 10_000},
        "sm_active_mean": 0.5,
        "energy_j": 1000.0,
        "exclusive": False,
        "shared": False,
        "time_limit_s": None,
        "exit": {"tried_mib": None},
        "attempts": list(attempts),
    }
    return made | other


def history(
    *ended: Json, live: Sequence[Json] = (), name: str = "NVIDIA A100-PCIE-40GB"
) -> recorded.History:
    gpus = [{"id": id, "name": name, "memory_mib": 40_000} for id in (A, B)]
    asked: Any = (list(ended), list(live), gpus)
    return recorded.history(*asked, Settings())


def test_a_trace_begins_with_the_first_job_and_is_in_the_order_of_submission() -> None:
    word = {"declared_mib": 8_000, "estimate_mib": 8_000, "peak_mib": 7_000}
    second = past_job(2, 30, tried(40, 50, 90), user="bob", gpus_wanted=1, memory=word)
    first = past_job(1, 10, tried(11, 13, 33, B))
    found = history(second, first, past_job(3, 5))
    tasks = found.experiment.trace.tasks
    assert [(t.name, t.user, t.submit_s, t.duration_s) for t in tasks] == [
        ("job1", "ada", 0, 20),
        ("job2", "bob", 20, 40),
    ]
    assert tasks[0].load == Load("", 0, 10_000, 0.55, 0.275, pytest.approx(0.22))
    assert tasks[0].estimates == (("recorded", 12_000),)
    assert [task.declared_mib for task in tasks] == [None, 8_000]
    assert tasks[0].reference == "A100-40GB"
    assert found.notes == ("1 jobs ended before they started, and are left out",)


def test_physics_are_the_medians_of_what_was_seen() -> None:
    oom = tried(100, 104, 107, cause="gpu_oom")
    found = history(
        past_job(1, 0, tried(0, 10, 50)),
        past_job(2, 0, tried(60, 66, 90)),
        past_job(3, 0, oom, tried(110, 120, 130)),
    )
    assert found.experiment.estimator == "recorded"
    physics = found.experiment.physics
    assert (physics.first_kernel_s, physics.oom_s) == (8, 0)  # of 4, 6, 10, 10; of a crash at 7


def test_jobs_that_waited_for_something_are_submitted_when_they_could_start() -> None:
    found = history(
        past_job(1, 0, tried(0, 0, 100)),
        past_job(2, 5, tried(110, 110, 120), after=[{"job": 1, "kind": "afterok"}]),
        past_job(3, 6, tried(210, 210, 220), begin_at=at(200)),
        past_job(4, 7, tried(30, 30, 50, B), after=[{"job": 3, "kind": "afterany"}]),
    )
    submitted = {task.name: task.submit_s for task in found.experiment.trace.tasks}
    assert submitted == {"job1": 0, "job2": 100, "job3": 200, "job4": 30}  # job 3 was requeued


def test_those_that_did_not_succeed_end_as_they_did() -> None:
    found = history(
        past_job(1, 0, tried(0, 1, 10, cause="failure"), state="failed"),
        past_job(2, 0, tried(10, 11, 20, cause="cancelled"), state="cancelled"),
        past_job(3, 0, tried(20, 21, 30), state="timed_out", time_limit_s=10.0),
        past_job(4, 0, tried(30, 31, 40, cause="gpu_oom"), state="out_of_memory"),
        past_job(5, 0, tried(40, 41, 50), time_limit_s=60.0, exclusive=True),
    )
    tasks = found.experiment.trace.tasks
    assert [task.fails for task in tasks] == [True, True, True, False, False]
    assert [task.time_limit_s for task in tasks] == [None, None, None, None, 60]
    assert [task.load.memory_mib for task in tasks] == [10_000, 10_000, 10_000, 40_001, 10_000]
    assert tasks[4].exclusive
    assert [job.state for job in found.outcome.jobs][:4] == [
        JobState.FAILED,
        JobState.FAILED,
        JobState.FAILED,
        JobState.OUT_OF_MEMORY,
    ]
    told = figures(found.outcome)
    assert (told.finished, told.errors, told.oom_lost, told.oom_crashes) == (4, 3, 1, 1)


def test_jobs_that_end_before_they_use_a_gpu_are_left_out() -> None:
    """Both others take 10 s to their first kernel. `/bin/false` waited for 85 s and took 40 ms;
    the one that computed elsewhere for 50 s held its GPU all the same."""
    never: Json = {"estimate_mib": None, "declared_mib": None, "peak_mib": 0}
    found = history(
        past_job(1, 0, tried(0, None, 10), state="failed", memory=never),
        past_job(2, 5, tried(5, 15, 85)),
        past_job(3, 5, tried(90, None, 90.04), state="failed", memory=never, shared=True),
        past_job(4, 5, tried(90, 100, 150), shared=True),
        past_job(5, 150, tried(150, None, 200, B), memory=never),
    )
    tasks = found.experiment.trace.tasks
    assert [(task.name, task.submit_s, task.duration_s) for task in tasks] == [
        ("job2", 0, 70),
        ("job4", 0, 50),
        ("job5", 145, 40),
    ]
    assert tasks[2].load == Load("", 0, 0, 0, 0, 0), "nothing was measured to be there"
    assert tasks[0].load.memory_mib == 10_000
    assert figures(simulate(found.experiment)).finished == 3
    told = figures(found.outcome)
    assert told.slowdown is not None and told.slowdown.worst == 1.0
    assert told.finish_ratio is not None and told.finish_ratio.worst == (150 - 5) / 60
    assert found.notes == (
        "2 jobs ended before they could have used a GPU, and are left out",
        "1 jobs never used their GPUs: memory and activity of 0",
    )


def test_what_was_trained_before_a_brief_last_attempt_counts() -> None:
    first = tried(0, 10, 60, cause="preempted")
    found = history(past_job(1, 0, first, tried(70, None, 71, cause="cancelled")))
    assert len(found.experiment.trace.tasks) == 1


def test_exclusive_is_the_users_wish_and_not_the_recoverys() -> None:
    crash = tried(0, 1, 5, cause="gpu_oom")
    found = history(past_job(1, 0, crash, tried(6, 7, 20), exclusive=True))
    assert not found.experiment.trace.tasks[0].exclusive


def test_the_recorded_run_has_figures_like_any_other() -> None:
    """Two jobs of 1000 J each overlap on one GPU of two for 20 s of a history of 100 s."""
    no_word: Json = {"declared_mib": None, "estimate_mib": None}
    found = history(
        past_job(1, 0, tried(0, 0, 60), memory={**no_word, "peak_mib": 8000}),
        past_job(2, 20, tried(40, 40, 100), memory={**no_word, "peak_mib": 4000}),
    )
    run, told = found.outcome, figures(found.outcome)
    assert told.makespan_s == 100
    assert told.jct and told.jct.mean == (60 + 80) / 2
    assert told.wait and told.wait.mean == (0 + 20) / 2
    assert told.gpus_busy == 0.5
    idle_w = found.experiment.cluster.nodes[0].kind.idle_w
    assert told.energy_mj * 1e6 == pytest.approx(2000 + idle_w * 100)
    assert run.gpus[0].busy_s == 100 and run.gpus[1].busy_s == 0
    assert run.gpus[0].memory_mib_s == 8000 * 60 + 4000 * 60
    assert list(run.timeline.at) == [0, 20, 40, 60, 100]
    assert list(run.timeline.queued) == [0, 1, 0, 0, 0]
    assert list(run.timeline.running) == [1, 1, 2, 1, 0]
    assert list(run.timeline.busy_gpus) == [1, 1, 1, 1, 0]
    assert list(run.timeline.memory) == pytest.approx([0.1, 0.1, 0.15, 0.05, 0])
    idle = 2 * idle_w
    watts = [idle - idle_w + w for w in (1000 / 60, 1000 / 60, 2000 / 60, 1000 / 60)]
    assert list(run.timeline.power_w) == pytest.approx([*watts, idle])
    assert "2 of 2 jobs shared GPUs" in found.notes[0]
    assert [job.task.duration_s < 60 for job in run.jobs] == [True, True]


def test_jobs_that_still_run_are_neighbours_and_no_tasks() -> None:
    live = past_job(2, 0, tried(50, 50, 60), state="running", sm_active_mean=0.9)
    del live["attempts"]
    live["gpus"] = [{"id": A, "first_kernel_at": at(50)}]
    ended = past_job(1, 0, tried(0, 0, 100), shared=True, sm_active_mean=0.6)
    found = history(ended, live=[live])
    assert [job.id for job in found.outcome.jobs] == [1]
    assert 50 < found.experiment.trace.tasks[0].duration_s < 100
    assert found.experiment.trace.tasks[0].load.sm_active == 0.3, "half of its time beside 0.6"
    assert found.notes == (
        "1 jobs that run or wait are left out",
        "1 of 1 jobs shared GPUs: their duration alone is modelled",
    )


def test_neighbours_that_are_not_on_record_are_told_of() -> None:
    found = history(past_job(1, 0, tried(0, 0, 100), shared=True))
    assert found.notes == (
        "1 jobs shared with jobs that are not on record here, and count as alone",
    )


def test_a_trace_with_a_job_that_used_no_gpu_is_read_as_it_was_written(tmp_path: Path) -> None:
    never: Json = {"estimate_mib": None, "declared_mib": None, "peak_mib": 0}
    trace = history(past_job(1, 0, tried(0, None, 50), memory=never)).experiment.trace
    rows.write_trace(trace, tmp_path / "history.csv")
    assert rows.read_trace(tmp_path / "history.csv") == trace


def test_with_no_job_there_is_nothing_to_replay() -> None:
    for nothing in (past_job(1, 0), past_job(1, 0, tried(0, None, 5))):
        with pytest.raises(CarmaError, match="no past job that could"):
            history(nothing)


@pytest.mark.parametrize(
    ("name", "memory_mib", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", 40_960, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 81_920, "A100-80GB"),
        ("NVIDIA A10", 23_028, "A10-24GB"),
        ("Tesla V100-SXM2-16GB", 16_384, "V100-16GB"),
        ("NVIDIA H100 80GB HBM3", 81_559, "H100-80GB"),
        ("NVIDIA GeForce RTX 3090", 24_576, "RTX3090-24GB"),
        ("NVIDIA RTX 6000 Ada Generation", 49_140, "RTX6000Ada-48GB"),
        ("NVIDIA L40S", 46_068, "L40S-48GB"),
        ("A100-40GB", 40_960, "A100-40GB"),
        ("NVIDIA L400 Turbo", 10_000, "NVIDIA-L400-Turbo"),
    ],
)
def test_gpus_are_known_by_the_drivers_names(name: str, memory_mib: int, kind: str) -> None:
    found = recorded.kind_of(name, memory_mib)
    assert (found.name, found.memory_mib) == (kind, memory_mib)


def test_a_gpu_that_nobody_knows_can_be_simulated_all_the_same() -> None:
    found = history(past_job(1, 0, tried(0, 0, 100)), name="NVIDIA Z1 Pro")
    assert found.experiment.cluster.nodes[0].kind.name == "NVIDIA-Z1-Pro"
    assert found.experiment.trace.tasks[0].reference == "A100-40GB", "what it is taken for"


def test_what_an_unknown_gpu_trained_is_as_fast_there_again() -> None:
    """The server's first GPU is a slower one: it is not what the job was measured on."""
    asked: Any = [
        {"id": A, "name": "Tesla T4", "memory_mib": 15_360},
        {"id": B, "name": "NVIDIA Z1 Pro", "memory_mib": 40_000},
    ]
    ended: Any = [past_job(1, 0, tried(0, 0, 100, B)), past_job(2, 0, tried(0, 0, 50, "gone"))]
    found = recorded.history(ended, [], asked, Settings())
    slow, unknown = (node.kind for node in found.experiment.cluster.nodes)
    workload = Workload(found.experiment)
    assert workload.full_rate(JobId(1), unknown) == 1.0
    assert workload.full_rate(JobId(1), slow) == 0.21
    assert found.experiment.trace.tasks[1].reference == "", "its GPU is gone"


def test_history_is_asked_for_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "PAGE", 2)
    jobs = [past_job(id, id, tried(id, id, id + 1)) for id in (5, 4, 3, 2, 1)]
    asked: list[Json] = []

    def get(path: str, **query: Any) -> Json:
        if path == "/v1/history":
            asked.append(query)
            older = [job for job in jobs if job["id"] < (query.get("before") or 99)]
            return {"jobs": older[: query["limit"]]}
        gpus = [{"id": A, "name": "A100-40GB", "memory_mib": 40_960}]
        return {"jobs": [], "gpus": gpus, "settings": {"policy": "rr"}}

    found = recorded.from_history(get, user="ada", since="S", until="U")
    assert [task.name for task in found.experiment.trace.tasks] == [f"job{n}" for n in range(1, 6)]
    assert [each.get("before") for each in asked] == [None, 4, 2, 1]
    assert all((each["user"], each["since"], each["until"]) == ("ada", "S", "U") for each in asked)
    assert found.experiment.settings == Settings(policy="rr")


# -- the attempts of a job, from the store


def test_attempts_are_told_as_they_were(tmp_path: Path) -> None:
    """Of every job of a busy day, by what its versions said at the time."""
    server = Busy()
    with contextlib.closing(SqlStore.open(tmp_path / "carma.db")) as store:
        for _ in server.busy_day(600):
            pass
        happened = attempts_of(server.steps)
        for step in server.steps:
            store.commit(step)
        ended = [job for job in store.history(limit=1000) if job.ended]
        for job in ended:
            assert attempts_out(job) == happened.get(job.id, [])
    assert sum(len(happened.get(job.id, ())) > 1 for job in ended) > 1
    assert any(job.id not in happened for job in ended)


def attempts_of(steps: Sequence[Step]) -> dict[JobId, list[AttemptOut]]:
    found: dict[JobId, list[AttemptOut]] = defaultdict(list)
    running: dict[JobId, Job] = {}
    for step in steps:
        for job in step.jobs:
            if job.holds_gpus:
                running[job.id] = job
            elif was := running.pop(job.id, None):
                found[job.id].append(as_told(was, job, step.events[-1].at))
    return found


def as_told(was: Job, now: Job, at: float) -> AttemptOut:
    exit = now.exit or now.failures[-1]
    assert was.started_at is not None
    return {
        "gpus": was.gpus,
        "mode": was.mode,
        "started_at": stamp(was.started_at),
        "first_kernel_at": iso(was.kernels[0][1] if was.kernels else None),
        "ended_at": stamp(at),
        "cause": exit.cause,
        "evidence": exit.evidence,
        "neighbours": exit.neighbours,
    }


# -- a real daemon


def test_what_a_daemon_decided_is_decided_again_and_what_it_ran_can_be_simulated(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "2xA100-40GB") as daemon:
        sizes = (6000, 25_000, 25_000)
        jobs = [
            daemon.submit(*train(memory_mib=mib, sm=0.4, seconds=0.4, warmup=0)) for mib in sizes
        ]
        large = daemon.submit(*train(memory_mib=50_000, warmup=0))
        daemon.cancel(daemon.submit("true", held=True))
        jobs.append(daemon.submit(*train(memory_mib=9000, seconds=0.4, warmup=0), held=True))
        for job in (*jobs[:-1], large):
            daemon.ended(job)
        daemon.stop()
        daemon.start()
        daemon.post("/v1/release", {"select": str(jobs[-1])})
        daemon.ended(jobs[-1])
        told = daemon.carma("simulate", "--history", "--export", "day.csv")
        on_stdout = daemon.carma("simulate", "--history", "--export", "-")
        found = recorded.from_history(asker(daemon))
        daemon.stop()

    segments = journal.segments(tmp_path / "state" / "journal")
    replayed = [reproduce(segment) for segment in segments]
    assert [each.first for each in replayed] == [None, None]
    assert sum(each.decisions for each in replayed) >= len(jobs)
    assert all(each.steps > 5 for each in replayed)

    assert "carma simulate day.csv --gpus 2xA100-40GB --estimator none --set physics." in told
    assert on_stdout == (tmp_path / "work" / "day.csv").read_text(encoding="utf-8")
    trace = rows.read_trace(tmp_path / "work" / "day.csv")
    assert trace.tasks == found.experiment.trace.tasks
    assert len(trace.tasks) == len(jobs) + 1, "all but the one that never started"
    *fit, too_much = sorted(task.load.memory_mib for task in trace.tasks)
    assert (fit, too_much > 40_960) == (sorted([*sizes, 9000]), True)
    assert all(0.2 < task.duration_s < 5 for task in trace.tasks if task.load.memory_mib < 40_000)
    assert figures(found.outcome).oom_lost == 1
    again = figures(simulate(found.experiment))
    assert (again.jobs, again.finished, again.oom_lost) == (5, 4, 1)


def test_jobs_without_gpus_are_left_out(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB") as daemon:
        daemon.ended(daemon.submit("true", gpus=0))
        assert "no past job" in daemon.carma("simulate", "--history", rc=None)


def asker(daemon: Carmad) -> Callable[..., Json]:
    def get(path: str, **query: object) -> Json:
        given = urlencode({key: value for key, value in query.items() if value is not None})
        return daemon.get(f"{path}?{given}")

    return get
