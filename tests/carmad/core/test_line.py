"""The line moves: who may go before a job that waits, and for how long. Seen on a lab's day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import pytest

from carma_testing import FakeServer
from carmad import registry
from carmad.config import Limits, Monitor, Settings
from carmad.core.jobs.spec import After
from carmad.core.jobs.states import JobState
from carmad.core.messages import HoldRequested

BOUND_S = Limits().overtaken_s
SHARING = ("magm", "lug", "rr", "first_fit", "best_fit", "carma")


class Task(NamedTuple):
    at: float
    name: str
    mib: int  # that it uses
    seconds: float  # that it takes
    gpus: int = 1
    declares: bool = True  # its memory
    time_limit_s: float | None = None


def play(
    settings: Settings, tasks: Iterable[Task], gpus: int, until: float, memory_mib: int = 40_960
) -> tuple[dict[str, float], FakeServer]:
    """When each of these jobs, each the first of its kind, starts."""
    predictor = registry.bare_predictor(settings)
    here = FakeServer(gpus, settings, predictor=predictor, memory_mib=memory_mib)
    todo, there, starts = sorted(tasks), dict[int, Task](), dict[str, float]()
    while here.now < until:
        while todo and todo[0].at <= here.now:
            new = todo.pop(0)
            declared = {"memory_mib": new.mib} if new.declares else {}
            id = here.submit(
                name=new.name,
                argv=(new.name,),
                gpus=new.gpus,
                time_limit_s=new.time_limit_s,
                **declared,
            )
            there[id] = new
        for job in tuple(here.scene.running):
            task = there[job.id]
            if job.state is JobState.STARTING:
                starts[task.name] = here.now
                here.run_kernel(job.id, task.mib)
            elif job.attained_s(here.now) >= task.seconds:
                here.exit(job.id)
        here.sample(1.0)
    return starts, here


def test_others_use_what_a_head_that_waits_for_a_gpu_to_settle_cannot() -> None:
    """Case `settling-head`: `small` waited for 29 s."""
    tasks = (
        Task(0, "big", 30_000, 150),
        Task(33, "new", 5_000, 100),
        Task(36, "head", 20_000, 20),
        Task(37, "small", 4_000, 10),
    )
    starts, _ = play(Settings(policy="magm", monitor=Monitor(known_window_s=30.0)), tasks, 2, 70)
    window_s = Monitor().window_s
    assert starts == {"big": 0, "new": 33, "small": 37, "head": 33 + 1 + window_s}


@pytest.mark.parametrize("policy", ["exclusive", "magm"])
def test_idle_gpus_are_used_while_nobody_knows_when_the_head_can_start(policy: str) -> None:
    """Cases `no-promise` and `no-promise-magm`: both debug runs waited for 98 s."""
    declares = policy == "magm"
    tasks = (
        Task(0, "train", 30_000, 90, declares=declares),
        Task(2, "ddp", 12_000, 10, 2, declares=declares),
        Task(4, "debug", 3_000, 5, declares=declares, time_limit_s=60.0),
        Task(5, "debug2", 3_000, 5, declares=False),
    )
    starts, _ = play(Settings(policy=policy), tasks, 2, 110)
    assert (starts["debug"], starts["ddp"]) == (4, 91)
    assert starts["debug2"] < 15


def test_a_wide_job_of_unknown_length_is_not_behind_whoever_comes_later() -> None:
    """Case `carma-wide`: all of n3 to n5 started first, and those that came after."""
    tasks = [Task(0, "n1", 30_000, 20), Task(1, "n2", 30_000, 32), Task(4, "wide", 30_000, 10, 2)]
    tasks += [Task(6 + n, f"n{3 + n}", 30_000, 21) for n in range(0, 200, 2)]
    starts, _ = play(Settings(policy="carma"), tasks, 2, 120)
    assert starts["wide"] <= 4 + BOUND_S + 21 + 1


@pytest.mark.parametrize("predictor", ["declared", "history"])
@pytest.mark.parametrize("policy", [*SHARING, "exclusive"])
def test_an_endless_stream_does_not_starve_a_wide_job(policy: str, predictor: str) -> None:
    """It starts when the jobs have ended that ran when it had waited for too long."""
    lasts_s = 40.0
    tasks = [Task(n * 8, f"s{n}", 12_000, lasts_s) for n in range(25)]
    tasks.append(Task(9, "wide", 30_000, 10, 2))
    settings = Settings(policy=policy, predictor=predictor)
    starts, _ = play(settings, tasks, 2, 9 + BOUND_S + lasts_s + 3)
    assert "wide" in starts, "within the bound and the length of a running job"
    before = [task for task in tasks if starts.get(task.name, 999) < starts["wide"]]
    assert any(task.at > 9 for task in before), "and others went first until then"


@pytest.mark.parametrize(("policy", "gpus"), [("magm", 2), ("magm", 3), ("carma", 3)])
def test_gpus_are_kept_only_against_who_would_delay_the_wide_job(policy: str, gpus: int) -> None:
    """Three jobs of 22G without --time, then one of 2 GPUs and 30G: 12G jobs waited for four
    minutes beside 25 free GiB, for GPUs "expected to be free in 28 s" that were not."""
    gib = 1024
    tasks = [Task(n, f"train{n}", 22 * gib, 900) for n in range(gpus)]
    tasks += [Task(40, "wide", 30 * gib, 10, 2), Task(41, "small", 12 * gib, 900)]
    tasks += [Task(44 + BOUND_S, "late", 12 * gib, 900), Task(150, "large", 47 * gib, 9)]
    starts, here = play(Settings(policy=policy), tasks, gpus, 200, memory_mib=48 * gib)
    assert starts["small"] == 41
    assert starts["late"] == 44 + BOUND_S
    wide, _ = here.scene.line
    (reason,) = here.scene.decisions[wide.id].placement.reasons
    assert (reason.code, reason.have) == ("kept", 2), "nobody knows when"


def test_how_long_a_job_may_be_overtaken_is_a_setting() -> None:
    tasks = [Task(n * 5, f"s{n}", 30_000, 20) for n in range(25)]
    tasks.append(Task(6, "wide", 30_000, 10, 2))
    waits = []
    for bound_s in (0.0, 40.0):
        settings = Settings(policy="magm", limits=replace(Limits(), overtaken_s=bound_s))
        waits.append(play(settings, tasks, 2, 100)[0]["wide"] - 6)
    assert waits[0] <= 20
    assert 40 <= waits[1] <= 40 + 20 + 1


@pytest.mark.parametrize("policy", ["magm", "carma"])
def test_time_in_which_it_could_not_have_run_is_no_wait(policy: str) -> None:
    """A job that waited an hour for another one, or was held, may be overtaken like any other."""
    here = FakeServer(2, Settings(policy=policy), memory_mib=40_960)
    first, second = (here.submit(argv=("train", str(n)), memory_mib=30_000) for n in (1, 2))
    for id in (first, second):
        here.run_kernel(id, 30_000)
    here.pass_time(40)
    spec = {"gpus": 2, "memory_mib": 30_000}
    after = here.submit(argv=("wide",), after=(After(second),), **spec)
    held = here.submit(argv=("wider",), **spec)
    here.tell(HoldRequested(here.now, held, True, "root"))
    here.pass_time(3 * BOUND_S, 5)
    here.tell(HoldRequested(here.now, held, False, "root"))
    here.exit(second)
    small = here.submit(argv=("debug",), memory_mib=12_000)
    assert here.job(small).state is JobState.STARTING
    here.pass_time(BOUND_S)
    late = here.submit(argv=("late",), memory_mib=12_000)
    assert here.job(late).state is not JobState.STARTING, "now they have waited for long enough"
    assert {job.id for job in here.scene.line} >= {after, held}
