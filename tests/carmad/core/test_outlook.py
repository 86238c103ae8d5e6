"""When a job would start and end if nobody shared, in words for its owner."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import a_gpu_view, a_job, a_spec, a_view
from carma_testing.builders import changed
from carmad.api.outlook import foresee, outlook_out, start_out
from carmad.api.wire import iso
from carmad.config import Limits, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Prediction
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import Held
from carmad.core.jobs.spec import After, ArrayTask
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import JobsById
from carmad.core.placing.decision import Decision, Placement, Reason, Verdict
from carmad.core.placing.outlook import (
    FORESEEN,
    LAUNCH_S,
    OVERRUN,
    SLACK,
    Outlook,
    forecast,
    left,
    outlook,
)
from carmad.core.rules.limits import Reservation, slots
from carmad.core.scene import Scene
from tests.owners import who

NOW = 1000.0


def waiting(id: int, expected_s: float | None = 100.0, **spec: object) -> Job:
    return a_job(id, spec=a_spec(expected_s=expected_s, **spec))


def running(id: int, expected_s: float | None = 100.0, ran_s: float = 40.0, **spec: object) -> Job:
    return a_job(
        id,
        spec=a_spec(expected_s=expected_s, **spec),
        state=JobState.RUNNING,
        gpus=("GPU-00000000",),
        started_at=NOW - ran_s,
    )


def of(job: Job, *line: Job, on: tuple[tuple[Job, ...], ...] = ((), ())) -> Outlook:
    """`on`: the jobs on each GPU."""
    gpus = [a_gpu_view(n, residents=residents) for n, residents in enumerate(on)]
    return outlook(job, line, gpus, NOW)


def test_a_free_gpu_is_taken_at_once() -> None:
    job = waiting(5)
    assert of(job, job) == Outlook(NOW, NOW + 100)
    assert of(job) == Outlook(NOW, NOW + 100), "it is last where it does not stand in line yet"


def test_gpus_are_free_when_those_on_them_end() -> None:
    on = ((running(1), running(2, 300.0)), (running(3, 90.0),))
    assert of(waiting(5), on=on) == Outlook(NOW + 50, NOW + 150)
    assert of(waiting(5, gpus=2), on=on) == Outlook(NOW + 260, NOW + 360)
    late = ((running(1, 10.0),), (running(2, 300.0),))
    assert of(waiting(5), on=late) == Outlook(NOW + 10, NOW + 110), "it is not about to end"


def test_the_line_goes_before_in_its_order() -> None:
    job = waiting(5)
    line = waiting(9, 70.0), waiting(8, 40.0), job, waiting(7, 1000.0)
    assert of(job, *line) == Outlook(NOW + 40, NOW + 140)
    wide = waiting(9, 70.0, gpus=2), job
    assert of(job, *wide) == Outlook(NOW + 70, NOW + 170)
    held = a_job(9, spec=a_spec(expected_s=70.0, gpus=2), held=True), job
    assert of(job, *held) == Outlook(NOW, NOW + 100)


def test_a_job_on_a_drained_gpu_has_not_ended() -> None:
    last = running(1, 300.0, 100.0)
    drained = a_gpu_view(0, residents=(last,), drained="maintenance")
    follows = waiting(5, after=(After(last.id),))
    found = outlook(follows, [follows], [drained, a_gpu_view(1)], NOW)
    assert found == Outlook(NOW + 200, NOW + 300)


def test_a_job_that_runs_without_gpus_has_not_ended() -> None:
    spec = a_spec(expected_s=300.0, gpus=0)
    first = a_job(1, spec=spec, state=JobState.RUNNING, gpus=(), started_at=NOW - 100)
    follows = waiting(5, after=(After(first.id),))
    gpus = [a_gpu_view(0)]
    assert outlook(follows, [follows], gpus, NOW, [first]) == Outlook(NOW + 200, NOW + 300)
    (found,) = forecast([follows], gpus, NOW, [first]).values()
    assert (found.likely.at, found.likely.after) == (NOW + 200, first.id)


def test_what_nobody_can_say_is_infinite() -> None:
    unknown = running(1, None), running(2, None)
    assert of(waiting(5), on=(unknown[:1], unknown[1:])) == Outlook(inf, inf)
    assert of(waiting(5), on=(unknown, ())) == Outlook(NOW, NOW + 100), "it is not in the way"
    assert of(waiting(5, None)) == Outlook(NOW, inf)
    limited = ((running(1, None, time_limit_s=240.0),), unknown[1:])
    assert of(waiting(5), on=limited) == Outlook(NOW + 200, NOW + 300)
    assert of(waiting(5, gpus=3)) == Outlook(inf, inf)


def test_a_prediction_of_nothing_is_none() -> None:
    """What a predictor says of a job that it has never seen: nobody is to believe that it is over,
    or to let it go first because of it."""
    unseen = Prediction(0.0, "median")
    job, there = (replace(job, prediction=unseen) for job in (waiting(5), running(1)))
    assert job.expected_s is None and there.expected_s is None
    assert of(job) == Outlook(NOW, inf) and of(there) == Outlook(NOW - 40, inf)
    assert of(waiting(5), on=((there,),)) == Outlook(inf, inf)
    assert replace(job, prediction=Prediction(1.0, "median")).expected_s == 1.0
    assert replace(job, prediction=None).expected_s == 100.0


def test_begin_times_and_dependencies_count() -> None:
    assert of(waiting(5, begin_at=NOW + 500)) == Outlook(NOW + 500, NOW + 600)
    job = waiting(5, after=(After(JobId(9)), After(JobId(77))))
    assert of(job, waiting(9, 300.0), job) == Outlook(NOW + 300, NOW + 400)


def test_who_may_not_start_yet_lets_others_go_first() -> None:
    later, job = waiting(8, 300.0, begin_at=NOW + 500), waiting(5)
    busy = (running(1, 140.0),)
    assert of(job, later, job, on=(busy,)) == Outlook(NOW + 100, NOW + 200)
    soon = waiting(8, 300.0, begin_at=NOW + 50)
    assert of(job, soon, job, on=(busy,)) == Outlook(NOW + 400, NOW + 500), "it is first then"
    chained = waiting(8, 300.0, after=(After(JobId(1)),))
    assert of(job, chained, job, on=(busy, ())) == Outlook(NOW, NOW + 100)
    assert of(job, chained, job, on=(busy,)) == Outlook(NOW + 400, NOW + 500)


def test_nobody_knows_when_the_end_comes_of_what_is_held_or_behind() -> None:
    job = waiting(5, after=(After(JobId(9)),))
    held = a_job(9, spec=a_spec(expected_s=70.0), held=True)
    assert of(job, held, job) == of(job, job, waiting(9, 70.0)) == Outlook(inf, inf)
    chained = waiting(8, 300.0, after=(After(JobId(9)),))
    assert of(waiting(5), held, chained, on=((),)) == Outlook(NOW, NOW + 100)
    assert of(held) == Outlook(inf, inf)


def test_gpus_that_take_no_job_do_not_count() -> None:
    gpus = [a_gpu_view(0, drained="broken"), a_gpu_view(1, residents=(running(1),))]
    assert outlook(waiting(5), (), gpus, NOW) == Outlook(NOW + 60, NOW + 160)


def told(job: Job, *residents: Job) -> str | None:
    view = a_view([a_gpu_view(0, residents=residents)], (), now=NOW)
    live = {one.id: one for one in (job, *residents)}
    line = (job,) if job.state is JobState.QUEUED else ()
    found = outlook_out(job, Scene(view, {}, JobsById(live.values()), {}, line))
    return found and found["text"]


def test_those_whose_memory_is_being_estimated_stand_in_line() -> None:
    """Two jobs submitted one after the other, while the first has no estimate yet."""
    first = a_job(4, spec=a_spec(expected_s=3600.0), state=JobState.PENDING)
    spec = a_spec(expected_s=60.0, deadline_at=NOW + 7200, after=(After(first.id),))
    second = a_job(5, spec=spec, state=JobState.PENDING)
    view = a_view([a_gpu_view(0), a_gpu_view(1)], (), now=NOW)
    found = outlook_out(second, Scene(view, {}, JobsById((first, second)), {}, (first, second)))
    assert found and found["starts_at"] == iso(NOW + 3600)


@pytest.mark.parametrize(
    "held",
    [Held(gpus=Counter({who("ada"): 1})), Held(tasks=Counter({JobId(4): 1}))],
    ids=["quota", "array_limit"],
)
def test_who_waits_for_more_than_gpus_is_told_no_start(held: Held) -> None:
    array = ArrayTask(JobId(4), 1, limit=1)
    job = waiting(5, 3600.0, deadline_at=NOW + 7200, user="ada", array=array)
    settings = Settings(limits=Limits(gpus_per_user=1))
    view = a_view([a_gpu_view(0)], (), now=NOW, settings=settings)
    scene = Scene(view, {}, JobsById((job,)), {}, (job,), held=held)
    found = outlook_out(job, scene)
    assert found and found["text"] == "predicted to meet its deadline, 60 min before it"


@pytest.mark.parametrize(
    ("job", "residents", "text"),
    [
        (
            waiting(5, 3600.0, deadline_at=NOW + 7200),
            (running(1, 6040.0),),
            "predicted to miss its deadline by 40 min (would start in about 1.7 h)",
        ),
        (
            waiting(5, 3600.0, deadline_at=NOW + 7200),
            (),
            "predicted to meet its deadline, 60 min before it (could start now)",
        ),
        (
            running(5, 3600.0, deadline_at=NOW + 60),
            (),
            "predicted to miss its deadline by 58 min",
        ),
        (
            waiting(5, None, deadline_at=NOW + 60),
            (),
            "whether it meets its deadline is not predicted: not known how long it runs: give"
            " --expect",
        ),
        (
            replace(
                waiting(5, deadline_at=NOW + 600),
                prediction=Prediction(10.0, "history", is_guess=True),
            ),
            (),
            "whether it meets its deadline is not predicted: not known how long it runs: give"
            " --expect",
        ),
        (
            waiting(5, None, deadline_at=NOW + 60),
            (running(1, 160.0),),
            "predicted to miss its deadline (would start in about 2 min)",
        ),
        (
            waiting(5, 10.0, deadline_at=NOW + 60),
            (running(1, None),),
            "whether it meets its deadline is not predicted: "
            "it is not known when the jobs ahead of it end",
        ),
        (waiting(5, 10.0, deadline_at=NOW - 60), (), "its deadline was 60 s ago"),
        (waiting(5, 10.0), (), None),
    ],
)
def test_what_its_owner_is_told(job: Job, residents: tuple[Job, ...], text: str | None) -> None:
    assert told(job, *residents) == text


# -- an expected start, with its error


def foreseen(line: list[Job], *residents: Job, settling: Reason | None = None) -> list[str]:
    """What each of these is told, on a server with one GPU."""
    gpu = a_gpu_view(0, residents=residents, settling=settling)
    view = a_view([gpu], line, now=NOW)
    live = {job.id: job for job in (*line, *residents)}
    scene = Scene(view, {}, JobsById(live.values()), {}, tuple(line))
    said = [start_out(job, scene) for job in line]
    return [each["text"].replace("1970-01-01 00:", "") for each in said if each]


def test_a_start_is_expected_when_those_before_have_run_as_long_as_predicted() -> None:
    predicted = replace(running(1), prediction=Prediction(100.0, "history", at_most_s=280.0))
    limited = a_job(5, spec=a_spec(expected_s=60.0, time_limit_s=3000.0))
    line = [limited, waiting(6), waiting(7)]
    assert foreseen(line, predicted) == [
        "as soon as a GPU suits it, most likely by 21 UTC",  # 1000 + 240 + 20 s
        "most likely from 17 UTC to 22 UTC",  # the first has settled; 1260 + 1.4 × 60 + 20 s
        "most likely from 17 UTC to 25 UTC",
    ]


def test_of_a_job_at_its_time_limit_nothing_is_left() -> None:
    over = running(1, expected_s=200.0, ran_s=50.0, time_limit_s=50.0)
    gpu = a_gpu_view(0, residents=(over,))
    (found,) = forecast([waiting(5)], [gpu], NOW, shares=False).values()
    assert (found.earliest, found.latest.at) == (NOW, NOW + LAUNCH_S)


def test_an_expected_start_waits_until_the_gpu_has_settled() -> None:
    """Said was the end of the job before, or at once: settling was left out."""
    settling = Reason("settling", 60.0, 15.0, "s", "job 1")
    long = running(1, 3600.0)
    (found,) = forecast(
        [waiting(5)], [a_gpu_view(0, residents=(long,), settling=settling)], NOW, window_s=60.0
    ).values()
    assert found.earliest == NOW + 45.0
    assert found.likely.at == NOW + 3560.0
    assert found.latest.at == NOW + 3600.0 * SLACK - 40.0 + LAUNCH_S
    assert foreseen([waiting(5)], long, settling=settling) == [
        "most likely from 17 UTC to 1970-01-01 01:40 UTC"
    ]


def test_those_that_share_end_later() -> None:
    pair = running(1, 3600.0), running(2, 3600.0)
    gpu = a_gpu_view(0, residents=pair)
    (found,) = forecast([waiting(5)], [gpu], NOW).values()
    assert found.likely.at == NOW + 2 * 3600.0 - 40.0
    assert found.latest.at == NOW + 2 * 3600.0 * SLACK - 40.0 + LAUNCH_S


@pytest.mark.parametrize("attempts", [0, 1])
def test_under_a_policy_that_shares_nothing_a_start_waits_for_an_end(attempts: int) -> None:
    """A job that is tried again alone finds a GPU busy under any policy."""
    job, there = waiting(5), running(1, 3600.0)
    if attempts:
        job = changed(job, attempt=1)
    gpu = a_gpu_view(0, residents=(there,))
    busy = Placement(job.id, verdicts=(Verdict(gpu.gpu.id, (Reason("busy", 0, 1, "jobs"),)),))
    decisions = {job.id: Decision(NOW, "exclusive", busy)}
    view = a_view([gpu], (job,), now=NOW)
    live = JobsById((job, there))
    scene = Scene(view, {}, live, {}, (job,), decisions=decisions)
    expected = NOW if attempts else NOW + 0.5 * 3600.0 - 40.0
    assert foresee(scene)[job.id].earliest == expected


def test_a_start_that_nobody_can_tell_is_not_told() -> None:
    endless = running(1, None)
    assert foreseen([waiting(5), waiting(6)], endless) == ["unknown: job 1 has no known end"] * 2
    line = [waiting(5, None), waiting(6), a_job(7, held=True), waiting(8, gpus=2)]
    assert foreseen(line) == [
        "as soon as a GPU suits it",
        "unknown: job 5 has no known end",
        "unknown: it is held",
        "unknown: fewer than 2 GPUs take jobs",
    ]
    outlived = running(1, 30.0, ran_s=50.0)
    assert foreseen([waiting(5)], outlived) == [
        "as soon as a GPU suits it; by when is unknown, as job 1 has no known end"
    ]
    (found,) = forecast([waiting(5)], [a_gpu_view(0, residents=(outlived,))], NOW).values()
    assert found.likely.at == NOW + OVERRUN * 50.0
    only_likely = replace(running(1, None), prediction=Prediction(100.0, "forest"))
    (said,) = foreseen([waiting(5)], only_likely)
    assert said == "as soon as a GPU suits it, most likely by 18 UTC"


def test_who_has_used_up_a_quota_is_told_so() -> None:
    mine = running(1)
    view = a_view([a_gpu_view(0, residents=(mine,))], (), now=NOW)
    view = replace(view, settings=Settings(limits=Limits(gpus_per_user=1)))
    job = waiting(5)
    scene = Scene(view, {}, JobsById((mine, job)), {}, (job,), held=Held(Counter({who("ada"): 1})))
    found = start_out(job, scene)
    assert found and found["text"] == "unknown: ada holds 1 GPUs of 1 allowed"
    assert start_out(mine, scene) is None


def test_a_reserved_gpu_is_free_when_that_is_over() -> None:
    kept = Reservation(1, (a_gpu_view(0).id,), ("eve",), (NOW - 10.0,), 310.0, "root")
    gpu = a_gpu_view(0, reserved=slots((kept,), a_gpu_view(0).id, NOW))
    (found,) = forecast([waiting(5)], [gpu], NOW).values()
    assert found.earliest == found.likely.at == found.latest.at == NOW + 300


def test_what_a_forecast_costs_is_bounded() -> None:
    line = [waiting(id) for id in range(1, FORESEEN + 2)]
    assert len(forecast(line, [a_gpu_view(0)], NOW)) == FORESEEN


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 90), st.integers(0, 90)), max_size=8),
)
def test_the_latest_start_is_not_before_the_likely_one(
    gpus: int, jobs: list[tuple[int, int, int]]
) -> None:
    line = [
        a_job(id, spec=a_spec(gpus=n, time_limit_s=float(s + more), expected_s=float(s)))
        for id, (n, s, more) in enumerate(jobs, 1)
    ]
    found = forecast(line, [a_gpu_view(n) for n in range(gpus)], NOW)
    for each in found.values():
        assert NOW <= each.earliest <= each.likely.at <= each.latest.at


@pytest.mark.parametrize(
    ("its", "ran_s", "seconds", "known_s"),
    [
        ({"time_limit_s": 100.0}, 40.0, 60.0, 60.0),
        ({"expected_s": 100.0}, 40.0, 60.0, 60.0),
        ({"expected_s": 100.0, "time_limit_s": 50.0}, 40.0, 10.0, 10.0),
        ({"expected_s": 100.0}, 200.0, 50.0, inf),  # a quarter of what it has run
        ({}, 40.0, 40.0, inf),  # as long again
        ({}, 0.0, 60.0, inf),
        ({"prediction": Prediction(36.0, "history", is_guess=True)}, 30.0, 7.5, inf),
        ({"prediction": Prediction(36.0, "history", is_guess=True)}, 102.0, 25.5, inf),
        ({"prediction": Prediction(0.1, "history", is_guess=True), "time_limit_s": 90.0}, 0, 1, 90),
        ({"prediction": Prediction(36.0, "history", at_most_s=90.0)}, 40.0, 10.0, 50.0),
    ],
)
def test_one_answer_says_how_long_a_job_still_runs_and_what_is_known(
    its: dict[str, object], ran_s: float, seconds: float, known_s: float
) -> None:
    spec = {"expected_s": None} | its
    prediction = spec.pop("prediction", None)
    job = replace(running(1, ran_s=ran_s, **spec), prediction=prediction)  # type: ignore[arg-type]
    found = left(job, NOW)
    assert (found.seconds, found.known_s) == (seconds, known_s)
