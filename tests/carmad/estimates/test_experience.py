"""Learning from finished jobs, from a committed step to an estimator, and across restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from carma_testing import a_gpu, a_job, a_run, a_server, a_spec, changed
from carmad.api.estimates import calibrations
from carmad.config import Monitor, Settings
from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.findings import Estimate, Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Step, Tick
from carmad.core.ports import Run, Trial
from carmad.estimates import experience as module
from carmad.estimates.experience import JOBS_PER_USER, Experience, driver_version
from carmad.store.sql import SqlStore
from estimators.tracing import trace

SETTINGS = Settings(monitor=Monitor(period_s=1.0))
OWNER = a_spec().owner


def a_past_job(id: int = 1, peak_mib: int = 8_000, **changes: object) -> Job:
    ended = a_job(
        id,
        state=JobState.SUCCEEDED,
        attempt=1,
        gpus=(a_gpu(0).id,),
        started_at=100.0,
        ended_at=200.0 + id,
        exit=Exit(Cause.SUCCESS, 0),
        usage=Usage(peak_mib=peak_mib),
        estimate=Estimate(7_000, "trace", notes=("n=7",)),
    )
    return changed(ended, **changes)  # type: ignore[arg-type]


def a_step(*jobs: Job, gpus: tuple[Gpu, ...] | None = None) -> Step:
    event = Tick(0.0) if gpus is None else Discovered(0.0, gpus)
    return Step((event,), jobs, (), ())


def test_a_job_that_ended_well_teaches() -> None:
    experience = Experience(SETTINGS)
    experience.on_commit(a_step(gpus=(a_gpu(0), a_gpu(1))))
    job = a_past_job()
    running = changed(job, state=JobState.RUNNING, ended_at=None)
    experience.on_commit(a_step(running, job))
    (run,) = experience.server().runs(OWNER)
    assert list(experience.server().users()) == [OWNER]
    assert run == Run(job.spec, 8_000, job.estimate, a_gpu(0).name, job.started_at, 201.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": JobState.FAILED},
        {"state": JobState.CANCELLED},
        {"usage": Usage()},  # never seen on its GPU
        {"failures": (Exit(Cause.GPU_OOM),)},
        {"served_s": 50.0},  # preempted, and went on
        {"accumulation": 2},  # its whole batch would have taken more
        {"started_at": 197.0, "ended_at": 201.0},  # too short to be sure of its peak
        {"started_at": None},
    ],
)
def test_what_teaches_nothing(changes: dict[str, object]) -> None:
    experience = Experience(SETTINGS)
    experience.on_commit(a_step(a_past_job(**changes)))
    assert list(experience.users()) == []
    assert experience.runs(OWNER) == []


def test_the_newest_come_first_and_each_user_has_his_own() -> None:
    experience = Experience(SETTINGS)
    ada, bob = a_spec(uid=1), a_spec(uid=2)
    experience.remember([a_past_job(1, spec=ada), a_past_job(3, spec=ada), a_past_job(2, spec=bob)])
    assert sorted(experience.users()) == [ada.owner, bob.owner]
    assert [run.ended_at for run in experience.runs(ada.owner)] == [203.0, 201.0]
    assert [run.ended_at for run in experience.runs(bob.owner)] == [202.0]
    assert experience.runs(ada.owner._replace(user="bob")) == []


def test_one_users_array_makes_nobody_forget_the_others() -> None:
    experience = Experience(SETTINGS)
    experience.remember([a_past_job(1, spec=a_spec(uid=2))])
    experience.remember(a_past_job(id) for id in range(2, 2 * JOBS_PER_USER))
    assert len(experience.runs(a_spec(uid=2).owner)) == 1
    mine = experience.runs(OWNER)
    assert len(mine) == JOBS_PER_USER
    assert mine[0].ended_at == 200.0 + 2 * JOBS_PER_USER - 1


def test_it_is_there_again_after_a_restart(tmp_path: Path) -> None:
    settings = SETTINGS
    store = SqlStore.open(tmp_path / "carma.db")
    first = Experience(settings)
    for id in (1, 2, 3):
        step = a_step(a_past_job(id, peak_mib=1_000 * id))
        store.commit(replace(step, events=(Discovered(0.0, (a_gpu(0),)),)))
        first.on_commit(step)
    store.commit(a_step(a_past_job(4, state=JobState.FAILED), gpus=()))
    store.close()

    store = SqlStore.open(tmp_path / "carma.db")
    second = Experience(settings)
    (user,) = store.users()
    second.remember(reversed(store.history(user=user, states=[JobState.SUCCEEDED])))
    store.close()
    assert second.runs(OWNER) == first.runs(OWNER)
    assert [run.peak_mib for run in second.runs(OWNER)] == [3_000, 2_000, 1_000]
    assert second.runs(OWNER)[0].estimate == a_past_job().estimate


def test_a_question_of_an_early_job_waits_for_the_gpus() -> None:
    experience = Experience(SETTINGS)
    server = experience.server()
    found = a_step(gpus=(a_gpu(0, name="A100"),))
    threading.Timer(0.05, experience.on_commit, [found]).start()
    assert server.gpu == "A100"


def test_the_servers_gpus_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GPUS_WITHIN_S", 0.0)
    experience = Experience(SETTINGS, "570.86")
    assert (experience.server().gpu, experience.server().driver) == ("", "570.86")
    cards = (a_gpu(0, name="T4"), a_gpu(1, name="A100"), a_gpu(2, name="A100"))
    experience.on_commit(a_step(gpus=cards))
    assert experience.server().gpu == "A100"


def test_the_drivers_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRIVER", tmp_path / "version")
    assert driver_version() == ""
    (tmp_path / "version").write_text("570.124.06\n")
    assert driver_version() == "570.124.06"


def test_the_same_program_is_tried_once_per_question(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[tuple[object, ...]] = []

    def tried(*given: object) -> Trial:
        tries.append(given)
        return Trial(b"%d" % len(tries), "")

    monkeypatch.setattr(module, "try_program", tried)
    experience = Experience(SETTINGS)
    server, other = experience.server(), experience.server()
    asked: Callable[..., Trial] = server.trial
    assert asked(a_spec(), ["a"], 5.0) == asked(a_spec(), ("a",), 5.0) == Trial(b"1", "")
    assert asked(a_spec(), ["b"], 5.0).answer == b"2"
    assert asked(a_spec(cwd="/"), ["a"], 5.0).answer == b"3"
    assert other.trial(a_spec(), ["a"], 5.0).answer == b"4", "the script may have changed"
    stop, mib, cgroup = tries[0][3:6]
    assert (mib, cgroup) == (SETTINGS.estimation.host_memory_mib + 2048, None)
    assert not stop()  # type: ignore[operator]
    experience.close()
    assert stop()  # type: ignore[operator]


def test_a_question_that_is_abandoned_ends_its_trials_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops: list[Callable[[], bool]] = []

    def tried(*asked: object) -> Trial:
        stops.append(asked[3])  # type: ignore[arg-type]
        return Trial(b"", "")

    monkeypatch.setattr(module, "try_program", tried)
    experience, abandoned = Experience(SETTINGS), threading.Event()
    experience.server(abandoned=abandoned).trial(a_spec(), ["a"], 5.0)
    experience.server().trial(a_spec(), ["a"], 5.0)
    abandoned.set()
    assert [stop() for stop in stops] == [True, False]


# -- what it says of the estimators ----------------------------------------------------------------


def judged(peak_mib: int, *estimates: Estimate) -> Run:
    first, *others = estimates
    return a_run(peak_mib, replace(first, others=tuple(others)))


def test_each_estimator_is_held_against_the_peaks() -> None:
    runs = [
        judged(1_000, Estimate(1_100, "trace", high=1_200), Estimate(900, "horus")),
        judged(2_000, Estimate(1_900, "trace", high=1_950), Estimate(900, "horus")),
        judged(3_000, Estimate(3_050, "trace", high=3_100)),
        a_run(4_000),  # nobody said anything
    ]
    trace, history, horus = calibrations(["trace", "history"], runs)
    assert trace == {
        "name": "trace",
        "jobs": 3,
        "bias_mib": 50,
        "p50_mib": 100,
        "p95_mib": 100,
        "early_p50_mib": 100,
        "recent_p50_mib": 50,
        "untaught_p50_mib": 100,
        "under": 0.3333,
    }
    assert (history["jobs"], history["bias_mib"], history["p95_mib"], history["under"]) == (
        0,
        None,
        None,
        None,
    )
    assert (horus["name"], horus["jobs"], horus["bias_mib"], horus["under"]) == (
        "horus",
        2,
        -600,
        1.0,
    )


def test_that_learning_helps_is_shown() -> None:
    """The first thirty were off by 1,000 MiB, and taught the next twenty."""
    raw = Estimate(9_000, "trace")
    runs = [replace(judged(10_000, raw), ended_at=1.0)] * 30
    taught = replace(judged(10_000, replace(raw, mib=9_900, traced_mib=9_000)), ended_at=2.0)
    (trace,) = calibrations([], [*[taught] * 20, *runs])
    shown = [trace[name] for name in ("early_p50_mib", "recent_p50_mib", "untaught_p50_mib")]  # type: ignore[literal-required]
    assert shown == [1_000, 100, 1_000]


def test_an_estimate_that_comes_twice_counts_once() -> None:
    same = Estimate(1_100, "trace")
    (trace,) = calibrations([], [judged(1_000, same, same)])
    assert trace["jobs"] == 1


def test_the_context_of_each_stack() -> None:
    def traced(peak_mib: int, stack: str) -> Run:
        parts = (("activations", 1_000), ("context", 500))
        return judged(peak_mib, Estimate(1_500, "trace", low=1_400, parts=parts, stack=stack))

    runs = [traced(1_400 + 10 * n, "A100 / torch 2.9") for n in range(3)] + [traced(1_600, "T4")]
    assert trace(Settings(), a_server()).contexts({OWNER: runs}, OWNER) == [
        {"stack": "A100 / torch 2.9", "jobs": 3, "context_mib": 410},
        {"stack": "T4", "jobs": 1, "context_mib": None},
    ]
    to_another = trace(Settings(), a_server()).contexts({OWNER: runs}, a_spec(uid=4).owner)
    assert [(one["jobs"], one["context_mib"]) for one in to_another] == [(3, None), (1, None)]
