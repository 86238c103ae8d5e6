"""Who shared a GPU with whom, how much it slowed them, and what that saved: numbers by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import a_job
from carmad.core.gpus.sharing import (
    AttemptSummary,
    ExitSummary,
    JobSummary,
    Overlaps,
    SpecSummary,
    StatusSummary,
    Stay,
    label,
    overlaps,
)
from carmad.core.gpus.slowdown import Basis, Receipt, receipt, slowdown
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId, Mode
from carmad.core.jobs.findings import Company, Estimate, Indicator, Loaded, Profile, Usage
from carmad.core.jobs.states import JobState
from carmad.store import codec

HOUR = 3600.0
FOREVER = 1e12
NOBODY = Loaded((), 0.0)


def stay(
    begin_h: float, end_h: float | None, *gpus: str, cause: Cause = Cause.SUCCESS, **its: object
) -> AttemptSummary:
    ended_at = None if end_h is None else end_h * HOUR
    exit = None if end_h is None else ExitSummary(cause)
    ids = tuple(GpuId(gpu) for gpu in gpus or ("g0",))
    return AttemptSummary(ids, Mode.STREAMS, begin_h * HOUR, ended_at, exit=exit, **its)  # type: ignore[arg-type]


def job(id: int, *stays: AttemptSummary, user: str = "ada", **its: object) -> JobSummary:
    whose = SpecSummary(user, 1000, f"train-{id}")
    state = its.pop("state", JobState.SUCCEEDED)
    status = StatusSummary(state, stays[-1] if stays else None)  # type: ignore[arg-type]
    usual = {"spec": whose, "status": status, "submitted_at": 0.0}
    return JobSummary(JobId(id), earlier=stays[:-1], **usual | its)  # type: ignore[arg-type]


def seen(
    *jobs: JobSummary, since_h: float = 0.0, until_h: float = 1000.0, now_h: float = 1000.0
) -> Overlaps:
    return overlaps(jobs, since_h * HOUR, until_h * HOUR, now_h * HOUR)


def known(runs_h: Sequence[float] = (), sm: Mapping[int, float] = {}) -> Basis:
    runs = [hours * HOUR for hours in runs_h]
    return Basis(0.0, lambda _: runs, {JobId(id): active for id, active in sm.items()})


def of(
    one: JobSummary,
    *jobs: JobSummary,
    runs_h: Sequence[float] = (),
    sm: Mapping[int, float] = {},
) -> Receipt:
    return receipt(one, seen(*jobs).stays[one.id], known(runs_h, sm))


def beside(neighbour: int, ratio: float) -> Company:
    return Company(JobId(neighbour), ratio, NOBODY, NOBODY, False)


def test_two_jobs_share_for_part_of_their_time() -> None:
    one, two = job(1, stay(0, 4)), job(2, stay(3, 5))
    found = seen(one, two)
    (mine,), (its,) = found.stays[JobId(1)], found.stays[JobId(2)]
    assert (mine.run_s, mine.shared_s, mine.share) == (4 * HOUR, HOUR, 3.5 * HOUR)
    assert (its.run_s, its.shared_s, its.share) == (2 * HOUR, HOUR, 1.5 * HOUR)
    assert mine.beside == {2: HOUR}
    gpu = found.gpus[GpuId("g0")]
    assert (gpu.busy_s, gpu.shared_s, len(gpu.jobs)) == (5 * HOUR, HOUR, 2)


@st.composite
def histories(draw: st.DrawFn) -> list[JobSummary]:
    """Jobs that come and go at whole seconds, some of them several times."""
    made = []
    for id in range(1, draw(st.integers(2, 6))):
        stays, at = [], 0
        for _ in range(draw(st.integers(1, 3))):
            begin = at + draw(st.integers(0, 6))
            at = begin + draw(st.integers(0, 8))
            gpus = draw(st.sets(st.sampled_from(("g0", "g1", "g2")), min_size=1))
            stays.append(stay(begin / HOUR, at / HOUR, *sorted(gpus)))
        if draw(st.booleans()):
            stays[-1] = replace(stays[-1], ended_at=None)
        made.append(job(id, *stays))
    return made


@given(histories(), st.integers(0, 20), st.integers(1, 20), st.integers(0, 20))
def test_it_is_what_looking_every_second_shows(
    jobs: list[JobSummary], since: int, length: int, later: int
) -> None:
    until, now = since + length, since + length + later
    found = overlaps(jobs, since, until, now)
    stays = [(job.id, stay) for job in jobs for stay in job.attempts]
    followed = [each for job in jobs for each in found.stays.get(job.id, ())]
    looked = {id(each.attempt): Stay(each.job, each.attempt) for each in followed}
    busy, shared = Counter[GpuId](), Counter[GpuId]()
    for second in range(64):  # those that have ended may do so later than `now`
        on: dict[GpuId, list[tuple[JobId, AttemptSummary]]] = {}
        for whose, here in stays:
            end = now if here.ended_at is None else round(here.ended_at)
            if round(here.started_at or 0) <= second < end:
                for gpu in here.gpus:
                    on.setdefault(gpu, []).append((whose, here))
        inside = since <= second < until
        for gpu, there in on.items():
            busy[gpu] += inside
            shared[gpu] += inside and len(there) > 1
        for here in {id(here): here for there in on.values() for _, here in there}.values():
            its = looked[id(here)]
            others = {who for gpu in here.gpus for who, one in on[gpu] if one is not here}
            its.run_s, its.held_s = its.run_s + 1, its.held_s + inside
            its.share += inside * sum(1 / len(on[gpu]) for gpu in here.gpus)
            if others:
                its.shared_s += 1
                its.held_shared_s += inside
                its.others = (its.others or set()) | others
            if len(others) == 1:
                its.beside = {**(its.beside or {})}
                its.beside[min(others)] = its.beside.get(min(others), 0) + 1
    for each in followed:
        its = looked[id(each.attempt)]
        for name in ("run_s", "shared_s", "held_s", "held_shared_s", "share"):
            assert getattr(each, name) == pytest.approx(getattr(its, name), abs=1e-6), name
        assert (each.beside or {}) == pytest.approx(its.beside or {}, abs=1e-6)
        assert each.others == its.others
    for gpu, time in found.gpus.items():
        assert (time.busy_s, time.shared_s) == pytest.approx((busy[gpu], shared[gpu]), abs=1e-6)


def test_only_what_is_inside_the_period_counts() -> None:
    long, after = job(1, stay(0, 10)), job(2, stay(11, 12))
    found = seen(long, job(3, stay(1, 3)), after, since_h=2, until_h=5)
    (mine,) = found.stays[JobId(1)]
    assert (mine.held_s, mine.held_shared_s, mine.share) == (3 * HOUR, HOUR, 2.5 * HOUR)
    assert mine.run_s == 10 * HOUR, "of its whole run"
    assert found.stays[JobId(2)][0].held_s == 0.0
    gpu = found.gpus[GpuId("g0")]
    assert (gpu.busy_s, gpu.shared_s, gpu.jobs) == (3 * HOUR, HOUR, {1, 3})


def test_a_job_that_runs_ends_now_and_one_that_follows_another_does_not_share() -> None:
    going, before = job(1, stay(1, None), state=JobState.RUNNING), job(2, stay(0, 1))
    found = seen(going, before, now_h=3)
    assert found.stays[JobId(1)][0].run_s == 2 * HOUR
    assert not found.stays[JobId(1)][0].others


def test_each_of_a_job_s_gpus_counts_and_the_slowest_decides() -> None:
    """On g0 it is alone; on g1 another job is there half of the time."""
    wide, other = job(1, stay(0, 2, "g0", "g1")), job(2, stay(0, 1, "g1"))
    its = of(replace(wide, company=(beside(2, 1.25),)), wide, other)
    assert (its.held, its.shared, its.share) == (4.0, 2.0, 3.5)
    assert its.alone == pytest.approx(2.0 + 2.0 / 1.25)
    assert its.saving == pytest.approx(0.1)


def test_a_mig_instance_is_a_gpu_of_its_own() -> None:
    one, two = job(1, stay(0, 1, "MIG-1")), job(2, stay(0, 1, "MIG-2"))
    assert of(one, one, two) == Receipt(1.0, 0.0, 1.0, frozenset(), None, 1.0)


def test_what_is_saved_is_what_alone_would_have_been_held_less_what_was() -> None:
    """Two jobs of 1 h each take 1.25 h together: they save 0.75 GPU-hours."""
    one = job(1, stay(0, 1.25), company=(beside(2, 1.25),))
    two = job(2, stay(0, 1.25), company=(beside(1, 1.25),))
    its, others = of(one, one, two), of(two, one, two)
    assert (its.alone, its.share, its.saving) == (1.0, 0.625, 0.375)
    assert its.most_saving == 0.625
    assert (its.saving or 0) + (others.saving or 0) == 2 * 1.0 - 1.25


def test_sharing_may_cost_more_than_it_gives() -> None:
    one = job(1, stay(0, 2), company=(beside(2, 4.0),))
    assert of(one, one, job(2, stay(0, 2))).saving == -0.5


def test_an_attempt_that_sharing_crashed_is_lost_and_one_alone_is_not() -> None:
    crash = stay(0, 1, cause=Cause.GPU_OOM)
    one = job(1, crash, stay(2, 4))
    assert of(one, one, job(2, stay(0, 1))) == Receipt(
        3.0, 1.0, 2.5, frozenset({JobId(2)}), None, 2.0
    )
    assert of(one, one).saving == 0.0


def test_without_anything_to_go_by_nothing_is_said() -> None:
    one = job(1, stay(0, 2))
    its = of(one, one, job(2, stay(0, 2)))
    assert (its.slowdown, its.alone, its.saving, its.most_saving) == (None, None, None, 1.0)


def test_reported_steps_count_for_the_time_beside_each_neighbour() -> None:
    """3 h beside one that slows it by 1.5 are 2 h of work, 1 h beside the other one is 1 h."""
    one = job(1, stay(0, 4), company=(beside(2, 1.5), beside(3, 0.9)))
    how = of(one, one, job(2, stay(0, 3)), job(3, stay(3, 4))).slowdown
    assert how and (how.source, how.known_from) == ("steps", 2)
    assert (how.ratio, how.low, how.high) == (pytest.approx(4 / 3), 1.0, 1.5)


def test_a_neighbour_of_a_small_part_does_not_speak_for_all() -> None:
    one = job(1, stay(0, 4), company=(beside(2, 1.5),))
    assert of(one, one, job(2, stay(0, 1)), job(3, stay(1, 4))).slowdown is None


def test_three_together_are_measured_by_no_pair() -> None:
    one = job(1, stay(0, 2), company=(beside(2, 1.5),))
    assert of(one, one, job(2, stay(0, 2)), job(3, stay(0, 2))).slowdown is None


def test_runs_of_the_same_job_alone_are_compared_with() -> None:
    """It ran 3 h, 2 of them shared; alone it takes 2.6 h, 2.5 to 2.8."""
    one, other = job(1, stay(0, 3)), job(2, stay(1, 3))
    how = of(one, one, other, runs_h=(2.5, 2.8, 2.6)).slowdown
    assert how and (how.source, how.known_from) == ("runs", 3)
    assert how.ratio == pytest.approx(2 / 1.6)
    assert (how.low, how.high) == (pytest.approx(2 / 1.8), pytest.approx(2 / 1.5))


@pytest.mark.parametrize(
    ("changes", "runs_h"),
    [
        pytest.param({}, (2.5, 2.6), id="too few"),
        pytest.param({}, (2.0, 2.6, 2.6), id="too different"),
        pytest.param({}, (0.9, 0.9, 0.9), id="less than it ran for alone"),
        pytest.param({"state": JobState.FAILED}, (2.5, 2.6, 2.7), id="it did not come to its end"),
    ],
)
def test_runs_that_tell_nothing(changes: dict[str, object], runs_h: Sequence[float]) -> None:
    one = job(1, stay(0, 3), **changes)
    assert of(one, one, job(2, stay(1, 3)), runs_h=runs_h).slowdown is None


def test_sm_activity_tells_what_was_done_together() -> None:
    """Alone, they keep 0.9 and 0.6 of the SMs busy; together 0.75: half as much as both alone."""
    one = job(1, stay(0, 3), usage=Usage(paired_seconds=2 * HOUR, paired_sm_seconds=1.5 * HOUR))
    two = job(2, stay(1, 3))
    its = of(one, one, two, sm={1: 0.9, 2: 0.6})
    assert its.slowdown and (its.slowdown.source, its.slowdown.ratio) == ("activity", 2.0)
    assert its.alone == pytest.approx(1 + 2 / 2)
    for sm in ({1: 0.9}, {2: 0.6}):
        assert of(one, one, two, sm=sm).slowdown is None, "alone, one of them was not measured"
    unread = replace(one, usage=Usage())
    assert of(unread, unread, two, sm={1: 0.9, 2: 0.6}).slowdown is None


def test_the_neighbours_of_a_job_that_began_before_are_not_all_known() -> None:
    one, other = job(1, stay(0, 3)), job(2, stay(1, 3))
    what = replace(known((2.6, 2.6, 2.6)), since=HOUR)
    assert slowdown(one, seen(one, other).stays[one.id], what) is None


def test_preempted_attempts_are_part_of_its_work_and_retried_ones_are_not() -> None:
    first = stay(0, 1, cause=Cause.PREEMPTED)
    lost = stay(1, 2, cause=Cause.LOST)
    one, other = job(1, first, lost, stay(2, 4)), job(2, stay(2, 4))
    how = of(one, one, other, runs_h=(2.6, 2.6, 2.6)).slowdown
    assert how and how.ratio == pytest.approx(2 / 1.6)


def test_a_job_is_read_from_its_row_as_from_the_core() -> None:
    whole = a_job(
        7,
        state=JobState.SUCCEEDED,
        gpus=(GpuId("g0"), GpuId("g1")),
        mode=Mode.MPS,
        started_at=5.0,
        shared=True,
        ended_at=9.0,
        exit=Exit(Cause.SUCCESS, 0, evidence="…"),
        usage=Usage(9_000, 1.0, 2.0, 3.0),
        estimate=Estimate(8_000, "trace", notes=("a note",)),
        company=(beside(3, 1.1),),
        profile=Profile(200.0, 9_000, (Indicator("sm_active", 0.5, 0.01),)),
        group="abc",
    )
    read = codec.decode_summary(codec.encode_job(whole))
    for name in ("id", "state", "submitted_at", "group", "estimate", "usage", "company", "profile"):
        assert getattr(read, name) == getattr(whole, name)
    assert read.spec.owner == whole.spec.owner and label(read) == label(whole)
    (stay,), (attempt,) = read.attempts, whole.attempts
    for name in ("gpus", "mode", "started_at", "ended_at", "shared"):
        assert getattr(stay, name) == getattr(attempt, name)
    assert stay.exit and attempt.exit and stay.exit.cause is attempt.exit.cause
