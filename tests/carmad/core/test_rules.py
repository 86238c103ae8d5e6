"""Single rules and thresholds of the core, each by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_testing import a_gpu, a_gpu_view, a_job, a_spec, a_view, changed
from carmad import registry
from carmad.config import Collocation, Limits, Settings
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.gpus.gpuview import GpuView, free_memory
from carmad.core.gpus.readings import energy_j, meter
from carmad.core.gpus.slowdown import with_company
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.findings import Estimate, Indicator, Profile, StageTimes, StepTime
from carmad.core.jobs.history import BIN_S, BINS, History, past
from carmad.core.jobs.job import Job
from carmad.core.jobs.knowledge import with_report
from carmad.core.jobs.recurrence import LETTERS, group
from carmad.core.jobs.states import JobState
from carmad.core.messages import Stepped
from carmad.core.placing.deciders import LAST_TRY_S, make_plan
from carmad.core.placing.decision import Placement, Proposal
from carmad.core.placing.view import View, demand, refusals
from carmad.core.rules.limits import Reservation, slots
from carmad.core.state import FIRST_TRY_S, State
from policies.ranked import down_the_line
from tests.planning import queued, running_on

GPU = a_gpu(0)


# -- memory


def test_where_memory_is_not_known_per_process_all_of_it_may_be_the_residents_own() -> None:
    silent = GpuSample(GPU.id, 0.0, 9_000, processes=(ProcessUse(7, None, job=1),))
    for promised_mib, free_mib in ((4_000, 31_960), (20_000, 20_960)):
        resident = a_job(1, estimate=Estimate(promised_mib, "declared", firm=True))
        assert free_memory(GPU, silent, (resident,), True) == (free_mib, 0)
    assert free_memory(GPU, silent, (), True) == (31_960, 9_000), "the job has ended"


def test_a_view_says_which_gpus_the_hard_rules_allow_and_why_not_the_others() -> None:
    drained = a_gpu_view(1, drained="maintenance")
    view = a_view([a_gpu_view(0), drained], ())
    allowed, verdicts = view.judge(queued(1))
    assert [gpu.id for gpu in allowed] == [GPU.id]
    assert [(each.gpu, *(one.code for one in each.refused)) for each in verdicts] == [
        (drained.id, "drained")
    ]


# -- what is known of runs


def test_a_run_lasted_from_its_start_to_its_end_and_never_less_than_nothing() -> None:
    ended = a_job(1, state=JobState.SUCCEEDED, gpus=(GPU.id,), started_at=10.0, ended_at=10.5)
    for ended_at, duration_s in ((10.5, 0.5), (9.0, 0.0)):  # the clock was set back
        found = past(changed(ended, ended_at=ended_at))
        assert found and found.duration_s == duration_s


def test_submissions_are_counted_for_eight_days_and_the_oldest_are_forgotten() -> None:
    history = History()
    for number in range(BINS + 2):
        history.note_submission(number * BIN_S, 2)
    assert sum(count for count, _ in history._bins.values()) == BINS
    assert min(history._bins) == 2


def test_stage_times_on_other_kinds_of_gpu_are_kept() -> None:
    job = a_job(1, state=JobState.RUNNING)
    for kind in ("B", "A", "C", "B"):
        step_s = {"A": 1.0, "B": 2.0, "C": 3.0}[kind] + len(job.stage_times)
        job = with_report(job, Stepped(0.0, job.id, step_s, StageTimes(0.0, step_s, 0.0)), kind)
    assert {each.gpu: each.forward_s for each in job.stage_times} == {"A": 2.0, "B": 5.0, "C": 5.0}


def test_runs_in_other_containers_are_not_of_the_same_job() -> None:
    groups = {group(a_spec(container=image)) for image in (None, "a.sif", "b.sif")}
    assert len(groups) == 3
    assert {len(each.partition("-")[0]) for each in groups} == {LETTERS}
    assert group(a_spec(uid=1)) != group(a_spec(uid=2)), "each is an account's own"


def test_an_allocation_failed_of_fragments_if_enough_was_free() -> None:
    assert not Exit(Cause.GPU_OOM, 1, tried_mib=1).fragmented
    assert Exit(Cause.GPU_OOM, 1, tried_mib=1, unused_mib=1).fragmented


# -- reservations


def reserved(*whose: tuple[str, float]) -> GpuView:
    """A GPU with a reservation of 100 s for each of these users, from the given times on."""
    every = [
        Reservation(id, (GPU.id,), (user,), (at,), 100.0, "root")
        for id, (user, at) in enumerate(whose, 1)
    ]
    return a_gpu_view(0, reserved=slots(every, GPU.id, 0.0))


def reservation_codes(gpu: GpuView, **spec: object) -> list[str]:
    job = a_job(1, spec=a_spec(user="ada", gpus=1, **spec))
    reasons = refusals(demand(job, Settings(), reserved_at=0.0), gpu, Settings())
    return [each.code for each in reasons]


def test_a_job_s_own_reservation_does_not_hide_the_next_one() -> None:
    gpu = reserved(("ada", 0.0), ("bob", 500.0))
    assert reservation_codes(gpu, time_limit_s=499.0) == []
    assert reservation_codes(gpu, time_limit_s=501.0) == ["reservation_ahead"]


def test_of_two_reservations_ahead_the_later_one_counts_too() -> None:
    gpu = reserved(("ada", 200.0), ("bob", 500.0))
    assert reservation_codes(gpu, time_limit_s=501.0) == ["reservation_ahead"]
    assert reservation_codes(reserved(("ada", 200.0), ("ada", 500.0)), time_limit_s=501.0) == []


def test_a_job_of_unknown_duration_meets_the_notice_of_the_second_reservation() -> None:
    notice_s = Settings().limits.reservation_notice_s
    assert reservation_codes(reserved(("ada", 0.0), ("bob", notice_s + 1))) == []
    near = reserved(("ada", 0.0), ("bob", notice_s - 1))
    assert reservation_codes(near) == ["reservation_notice"]


# -- jobs per GPU


@pytest.mark.parametrize(("jobs", "codes"), [(0, []), (1, []), (2, ["jobs_per_gpu"])])
def test_a_gpu_takes_as_many_jobs_as_it_may(jobs: int, codes: list[str]) -> None:
    settings = Settings(collocation=Collocation(max_jobs_per_gpu=2))
    gpu = a_gpu_view(0, residents=tuple(a_job(id, **running_on(0)) for id in range(10, 10 + jobs)))
    found = refusals(demand(queued(1), settings), gpu, settings)
    assert [each.code for each in found] == codes
    assert [(each.need, each.have) for each in found] == [(2, 2)] * len(codes)


# -- energy


def sample(at: float, energy_mj: int | None, power_w: float | None = 100.0) -> GpuSample:
    return GpuSample(GPU.id, at, energy_mj=energy_mj, power_w=power_w)


@pytest.mark.parametrize(
    ("before_mj", "now_mj", "joules"),
    [
        (5_000, 8_000, 3.0),
        (5_000, 5_000, 0.0),  # nothing was used: not 10 s of 100 W
        (5_000, 1_000, 1000.0),  # the counter began anew
        (None, 1_000, 1000.0),
        (5_000, None, 1000.0),
    ],
)
def test_energy_is_the_counter_s_difference(
    before_mj: int | None, now_mj: int | None, joules: float
) -> None:
    before, now = sample(0.0, before_mj), sample(10.0, now_mj)
    assert energy_j(before, now, 10.0) == joules
    job = a_job(1, **running_on(0))
    assert meter({}, (job,), before, now, 60.0)[job.id].energy_j == joules
    assert meter({}, (job, replace(job, id=JobId(2))), before, now, 60.0)[job.id].energy_j == (
        joules / 2
    )


def test_activity_beside_another_counts_while_both_compute() -> None:
    def read(at: float) -> GpuSample:
        return replace(sample(at, None), sm_active=0.7)

    computes = a_job(1, **running_on(0), kernels=((GPU.id, 0.0),))
    loads = a_job(2, **running_on(0))
    other = replace(computes, id=JobId(2))
    for others, shared in (((), 0), ((loads,), 0), ((other,), 10), ((other, loads), 0)):
        usage = meter({}, (computes, *others), read(5.0), read(15.0), 60.0)[computes.id]
        assert (usage.paired_seconds, usage.paired_sm_seconds) == (
            shared,
            pytest.approx(0.7 * shared),
        )
        assert usage.sm_seconds == pytest.approx(7.0)


# -- the back-off of a policy that fails


class Flaky:
    """A policy that fails, and says when it was asked."""

    name = "flaky"

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self.works = False

    def order(self, job: Job) -> float:
        return 0.0

    def plan(self, view: View) -> tuple[Proposal, ...]:
        self.asked_at.append(view.now)
        if not self.works:
            raise KeyError("x")
        return ()


class Steady:
    name = "steady"

    def order(self, job: Job) -> float:
        return 0.0

    def plan(self, view: View) -> tuple[Proposal, ...]:
        return (Placement(view.queue[0].id),)


def a_failing_policy() -> tuple[Flaky, State]:
    policy, settings = Flaky(), Settings()
    recovery = registry.bare_recovery(settings)
    return policy, State(settings, policy, recovery, fallback=Steady())


def plan_every_second(state: State, since: int, until: int) -> None:
    for now in range(since, until):
        view = a_view([a_gpu_view(0)], [queued(1)], now=float(now))
        make_plan(state, view, lambda view=view: view)  # type: ignore[misc]


def test_a_policy_that_goes_on_failing_is_asked_half_as_often_each_time() -> None:
    policy, state = a_failing_policy()
    plan_every_second(state, 0, 1200)
    waits = [b - a for a, b in zip(policy.asked_at, policy.asked_at[1:], strict=False)]
    assert waits[0] == FIRST_TRY_S
    assert waits[:6] == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert set(waits[6:]) == {LAST_TRY_S}


def test_a_policy_that_soon_fails_again_keeps_its_back_off() -> None:
    policy, state = a_failing_policy()
    plan_every_second(state, 0, 20)  # asked at 0, 5 and 15; the next time is 35
    policy.works = True
    plan_every_second(state, 20, 40)
    assert state.deciding.acting is policy
    policy.works, policy.asked_at = False, []
    plan_every_second(state, 75, 120)  # 40 s, twice the last wait, after 35
    assert policy.asked_at == [75.0, 115.0]
    policy, state = a_failing_policy()
    plan_every_second(state, 0, 20)
    policy.works = True
    plan_every_second(state, 20, 40)
    policy.works, policy.asked_at = False, []
    plan_every_second(state, 76, 82)  # later than that: from the beginning
    assert policy.asked_at == [76.0, 81.0]


# -- backfill


def starts(k: int, overtaken: int = 0, behind: int = 4) -> list[int]:
    """The jobs that start behind one that waits, with `limits.backfill` set to k."""
    line = [replace(queued(1), overtaken=overtaken), *(queued(id) for id in range(2, 2 + behind))]
    views = [a_gpu_view(n) for n in range(8)]
    view = a_view(views, line, Settings(limits=Limits(backfill=k)))

    def turn(job: Job, view: View) -> tuple[tuple[str, ...], list[Proposal]]:
        if job.id == 1:
            return (), [Placement(job.id)]
        gpu = a_gpu(job.id).id
        return (gpu,), [Placement(job.id, (gpu,))]

    plan = down_the_line(view, turn)  # type: ignore[arg-type]
    return [int(each.job) for each in plan if isinstance(each, Placement) and each.gpus]


@pytest.mark.parametrize(
    ("k", "overtaken", "found"),
    [
        (0, 0, []),
        (1, 0, [2]),
        (3, 0, [2, 3, 4]),
        (3, 1, [2, 3]),
        (3, 3, []),
        (9, 0, [2, 3, 4, 5]),
    ],
)
def test_k_jobs_pass_the_one_that_waits(k: int, overtaken: int, found: list[int]) -> None:
    assert starts(k, overtaken) == found


# -- how much a neighbour slows a job


@pytest.mark.parametrize(
    ("step_s", "ratio"),
    [
        (0.30, 1.5),
        (0.3029, 1.5),  # less than 1 % more
        (0.2971, 1.5),
        (0.3031, 1.5155),
        (0.2969, 1.4845),
    ],
)
def test_a_ratio_is_worth_saving_if_it_changes_by_one_percent(step_s: float, ratio: float) -> None:
    profile = Profile(60.0, 1000, (Indicator("sm_active", 0.5, 0.0),), gpu=GPU.name)
    fields = {**running_on(0), "profile": profile, "steps": (StepTime(1, 0.2, GPU.name),)}
    one, other = a_job(1, **fields), a_job(2, **fields)
    assert one.state is JobState.RUNNING
    before = with_company(one, 0.3, other, GPU)
    after = with_company(before, step_s, other, GPU)
    assert (after is before) == (ratio == 1.5)
    assert after.company[0].ratio == pytest.approx(ratio)
