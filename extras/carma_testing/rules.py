"""The rules for plugins: a class for each kind, which has the cases that are tried and, as its
public methods, the rules. A rule that is broken raises AssertionError."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from carma_testing.builders import (
    a_gpu,
    a_gpu_view,
    a_job,
    a_server,
    a_spec,
    a_view,
    histories,
    outcomes,
    random_view,
    specs,
)
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.findings import Estimate, Indicator, Prediction, Profile, Refusal
from carmad.core.jobs.history import History, Past
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import AskAgain, Placement, Preemption, Proposal, Remember
from carmad.core.placing.view import Policy, View
from carmad.core.ports import Estimator, Predictor, Recovery, Run, Server, Trial
from carmad.validation import ANSWER, PROPOSAL, is_valid

# -- policies

Plan = tuple[Proposal, ...]


class PlanCase(NamedTuple):
    view: View
    plan: Plan
    again: Plan  # of the same view, asked at once


class PolicyRules:
    """Views, and what the policy plans for each: planned once for all rules."""

    def __init__(self, policy: Policy, settings: Settings, views: int) -> None:
        self._policy = policy
        self._settings = settings
        self._views = views

    def _plan(self, view: View) -> Plan:
        return tuple(self._policy.plan(view))

    @cached_property
    def random(self) -> list[PlanCase]:
        return [self._trial(random_view(seed, self._settings)) for seed in range(self._views)]

    @cached_property
    def impossible(self) -> PlanCase:
        return self._trial(a_view([a_gpu_view()], [a_job(gpus_wanted=9)]))

    @cached_property
    def all(self) -> list[PlanCase]:
        return [*self.random, self.impossible]

    @cached_property
    def placements(self) -> list[tuple[View, Job, Placement]]:
        """Each with its job and the view as the placements before it leave it."""
        return list(self._placements())

    def _placements(self) -> Iterator[tuple[View, Job, Placement]]:
        for view, plan, _ in self.all:
            for placement in plan:
                if not isinstance(placement, Placement):
                    continue
                job = view.find_job(placement.job)
                if job is None:  # another rule is broken
                    continue
                yield view, job, placement
                if not view.node_of.keys() >= set(placement.gpus):  # another rule is broken
                    break
                if placement.gpus:
                    view = view.with_placement(
                        job, placement.gpus, placement.profiling, placement.accumulation
                    )

    def _trial(self, view: View) -> PlanCase:
        return PlanCase(view, self._plan(view), self._plan(view))

    def the_name_is_an_identifier(self) -> None:
        name = self._policy.name
        assert name and name.isidentifier(), "a policy's name is an identifier"

    def the_same_job_has_the_same_place_in_line(self) -> None:
        places = [self._policy.order(a_job(id)) for id in (1, 2, 1)]
        assert places[0] == places[2], "the same job must have the same place in line"

    def a_place_in_line_is_a_number(self) -> None:
        places = [self._policy.order(a_job(id)) for id in (1, 2)]
        assert all(place == place for place in places), "a place in line is a number"

    def an_empty_queue_needs_no_plan(self) -> None:
        assert self._plan(a_view([], [])) == (), "with no queue there is nothing to plan"

    def the_same_view_gives_the_same_plan(self) -> None:
        for _, plan, again in self.random:
            assert plan == again, "the same view must give the same plan"

    def a_plan_does_not_depend_on_earlier_ones(self) -> None:
        for view, plan, _ in reversed(self.random):
            assert plan == self._plan(view), "a plan must not depend on earlier ones"

    def a_plan_is_made_of_valid_proposals(self) -> None:
        for _, plan, _ in self.all:
            valid = all(is_valid(each, *PROPOSAL) for each in plan)
            assert valid, "a plan is made of proposals, and those of their types"

    def somebody_in_line_is_told_why(self) -> None:
        for view, plan, _ in self.all:
            assert plan or not view.queue, "jobs wait, and not one of them is told why"

    def a_job_has_one_proposal(self) -> None:
        for _, plan, _ in self.all:
            judged = [each.job for each in plan if not isinstance(each, AskAgain | Remember)]
            assert len(set(judged)) == len(judged), "one proposal per job"

    def only_running_jobs_are_preempted(self) -> None:
        for view, plan, _ in self.all:
            running = {job.id for job in view.running}
            preempted = {each.job for each in plan if isinstance(each, Preemption)}
            assert preempted <= running, "only running jobs are preempted"

    def only_queued_jobs_are_placed(self) -> None:
        for view, plan, _ in self.all:
            placed = [each.job for each in plan if isinstance(each, Placement)]
            assert all(map(view.find_job, placed)), "only queued jobs are placed"

    def verdicts_are_on_gpus_of_the_view(self) -> None:
        for view, plan, _ in self.all:
            known = {gpu.id for gpu in view.gpus}
            judged = {v.gpu for each in plan if isinstance(each, Placement) for v in each.verdicts}
            assert judged <= known, "verdicts are on GPUs of the view"

    def a_job_that_wants_too_many_gpus_waits(self) -> None:
        assert not _places(self.impossible.plan), "a job that wants 9 of 1 GPU must wait"

    def each_gpu_is_given_once(self) -> None:
        for _, _, placement in self.placements:
            assert len(set(placement.gpus)) == len(placement.gpus), "each GPU is given once"

    def a_job_gets_as_many_gpus_as_it_wants(self) -> None:
        for _, job, placement in self.placements:
            assert len(placement.gpus) in (0, job.spec.gpus), "as many GPUs as the job wants"

    def only_admissible_gpus_are_given(self) -> None:
        for view, job, placement in self.placements:
            wanted = view.demand(job, profiling=placement.profiling is not None)
            admissible = {gpu.id for gpu in view.gpus if not view.refusals(wanted, gpu)}
            assert admissible.issuperset(placement.gpus), "only admissible GPUs"

    def no_gpu_is_refused_and_given(self) -> None:
        for _, _, placement in self.placements:
            refused = {verdict.gpu for verdict in placement.verdicts if verdict.refused}
            assert refused.isdisjoint(placement.gpus), "no GPU is refused and given"

    def a_batch_is_split_into_equal_parts(self) -> None:
        for _, job, placement in self.placements:
            parts, batch = placement.accumulation, job.spec.batch_size
            assert parts == 1 or (batch and batch % parts == 0), "parts of a batch are equal"

    def a_job_that_waits_is_told_why(self) -> None:
        for view, job, placement in self.placements:
            refused = {verdict.gpu for verdict in placement.verdicts if verdict.refused}
            too_few = len(view.gpus) - len(refused) < job.spec.gpus
            told = placement.gpus or placement.reasons or too_few
            assert told, "a job that waits is told why"

    def a_job_starts_on_an_idle_server(self) -> None:
        alone = self._plan(a_view([a_gpu_view()], [a_job()]))
        assert _places(alone), "one job and one idle GPU: it must start"


def _places(plan: Plan) -> bool:
    return any(isinstance(each, Placement) and each.gpus for each in plan)


# -- recoveries


EARLIER = (
    None,
    Retry("out of memory", margin_mib=4096),
    Retry("out of memory", exclusive=True),
)


class CrashCase(NamedTuple):
    answer: Retry | None
    again: Retry | None


class RecoveryRules:
    """Crashes of jobs, alone and beside others, at the first attempt and later."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery

    @cached_property
    def all(self) -> list[CrashCase]:
        decide = self._recovery.decide
        exit = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory", tried_mib=100, free_mib=10)
        found = []
        for shared, before in product((False, True), EARLIER):
            job = a_job(
                state=JobState.RUNNING,
                gpus=(a_gpu().id,),
                shared=shared,
                retry=before,
                failures=(exit,) if before else (),
            )
            found.append(CrashCase(decide(job, exit), decide(job, exit)))
        return found

    def it_has_a_name(self) -> None:
        assert self._recovery.name, "a recovery has a name"

    def the_answer_is_a_retry_or_none(self) -> None:
        for answer, _ in self.all:
            assert answer is None or is_valid(answer, Retry), "the answer is a Retry or None"

    def the_same_crash_gives_the_same_answer(self) -> None:
        for answer, again in self.all:
            assert answer == again, "the same crash must give the same answer"

    def a_retry_says_why(self) -> None:
        for answer, _ in self.all:
            assert answer is None or answer.why, "a retry says why"


# -- estimators


Answer = Estimate | Refusal


class EstimateCase(NamedTuple):
    outcome: Trial
    runs: tuple[Run, ...]
    spec: JobSpec
    answer: Answer


class EstimatorRules:
    """Jobs of many kinds, on servers where running a program fails in every way."""

    def __init__(
        self,
        make: Callable[[Settings, Server], Estimator],
        settings: Settings,
        answers: Collection[bytes],
    ) -> None:
        self._make = make
        self._settings = settings
        self._answers = answers

    def _estimator(self, server: Server) -> Estimator:
        return self._make(self._settings, server)

    @cached_property
    def all(self) -> list[EstimateCase]:
        return [
            EstimateCase(outcome, runs, spec, self._ask(a_server(outcome, runs), spec))
            for outcome, runs, spec in product(outcomes(self._answers), histories(), specs())
        ]

    def _ask(self, server: Server, spec: JobSpec) -> Answer:
        try:
            return self._estimator(server).estimate(spec)
        except Exception as error:  # foreign code
            raise AssertionError(f"an estimator refuses, it does not raise: {error!r}") from error

    def it_has_a_name(self) -> None:
        assert self._estimator(a_server()).name, "an estimator has a name"

    def it_never_raises(self) -> None:
        for outcome, runs, spec, _ in self.all:
            self._ask(a_server(outcome, runs, gpu="", driver=""), spec)

    def the_answer_is_an_estimate_or_a_refusal(self) -> None:
        for asked in self.all:
            valid = is_valid(asked.answer, *ANSWER)
            assert valid, "the answer is an Estimate with low ≤ mib ≤ high, or a Refusal"

    def an_answer_says_whose_it_is(self) -> None:
        for asked in self.all:
            assert asked.answer.source, "an answer says whose it is"

    def a_refusal_says_why(self) -> None:
        for asked in self.all:
            assert not isinstance(asked.answer, Refusal) or asked.answer.why, "a refusal says why"

    def parts_add_up(self) -> None:
        for asked in self.all:
            answer = asked.answer
            if isinstance(answer, Estimate) and answer.parts:
                total_mib = sum(mib for _, mib in answer.parts)
                assert total_mib == answer.mib, "the parts of an estimate add up to it"

    def the_same_question_gets_the_same_answer(self) -> None:
        for outcome, runs, spec, answer in self.all:
            again = self._ask(a_server(outcome, runs), spec)
            assert _timeless(again) == _timeless(answer), "the same question gets the same answer"


def _timeless(answer: Answer) -> Answer:
    if isinstance(answer, Refusal):
        return replace(answer, seconds=0.0)
    others = tuple(replace(other, seconds=0.0) for other in answer.others)
    return replace(answer, seconds=0.0, others=others)


# -- predictors


NOW = 1e6


PROFILE = Profile(200.0, 8_000, (Indicator("gpu_utilization", 0.5, 0.01),))


GROUPS = ("", "known", "new")


class PredictionCase(NamedTuple):
    job: Job
    runs: tuple[Past, ...]
    answer: Prediction | None


class PredictorRules:
    """Jobs that the history knows and others, with and without a profile and an owner's word. No
    model was trained yet."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    @cached_property
    def all(self) -> list[PredictionCase]:
        return [
            PredictionCase(job, runs, self._ask(job, History(runs)))
            for job, runs in product(jobs(), ((), tuple(_runs())))
        ]

    def _ask(self, job: Job, history: History) -> Prediction | None:
        try:
            return self._predictor.predict(job, history, {}, NOW)
        except Exception as error:  # foreign code
            raise AssertionError(f"a predictor says None, it does not raise: {error!r}") from error

    def it_has_a_name(self) -> None:
        assert self._predictor.name, "a predictor has a name"

    def it_never_raises(self) -> None:
        assert self.all

    def the_answer_is_a_prediction_or_none(self) -> None:
        for asked in self.all:
            valid = asked.answer is None or is_valid(asked.answer, Prediction)
            assert valid, "the answer is None, or a Prediction of 0 s or more"

    def a_prediction_says_whose_it_is(self) -> None:
        for asked in self.all:
            assert asked.answer is None or asked.answer.source, "a prediction says whose it is"

    def the_same_question_gets_the_same_answer(self) -> None:
        for job, runs, answer in reversed(self.all):
            again = self._ask(job, History(runs))
            assert again == answer, "the same question gets the same answer"

    def the_history_is_left_as_it_is(self) -> None:
        history = History(_runs())
        for job in jobs():
            self._ask(job, history)
        same = _show(history) == _show(History(_runs()))
        assert same, "a predictor does not change the history"


def jobs() -> Iterator[Job]:
    for expected_s, user, gpus in product((None, 60.0), ("ada", "eve"), (1, 8)):
        spec = a_spec(expected_s=expected_s, user=user, gpus=gpus)
        for group, profile in product(GROUPS, (None, PROFILE)):
            yield a_job(100, spec=spec, group=group, profile=profile, submitted_at=NOW - 10)


def _runs() -> Iterator[Past]:
    """Runs of two users that last from 0 s to days."""
    for n, seconds in enumerate((0.0, 30.0, 3600.0, 3700.0, 400_000.0)):
        user, state = ("ada", "bob")[n % 2], (JobState.SUCCEEDED, JobState.FAILED)[n // 4]
        begun = 1000.0 * n
        its = ("known", user, "train", 1, begun, seconds, state, PROFILE, ())
        yield Past(JobId(n + 1), 1, *its, uid=a_spec().uid)


def _show(history: History) -> list[object]:
    users = (a_spec(user=user).owner for user in ("ada", "bob", "eve"))
    of_users = [tuple(history.by_user.of(owner)) for owner in users]
    of_groups = [tuple(history.by_group.of(group)) for group in GROUPS]
    return [*of_users, *of_groups, *history.runs]
