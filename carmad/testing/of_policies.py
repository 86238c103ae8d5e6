"""The rules for placement policies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from carmad.config import Settings
from carmad.core.decision import AskAgain, Placement, Preemption, Proposal, Remember
from carmad.core.ports import Policy
from carmad.core.types import Job
from carmad.core.view import View
from carmad.testing.builders import a_gpu_view, a_job, a_view, random_view
from carmad.validation import is_proposal

Plan = tuple[Proposal, ...]


class Trial(NamedTuple):
    view: View
    plan: Plan
    again: Plan  # of the same view, asked at once


class Trials:
    """Views, and what the policy plans for each: planned once for all rules."""

    def __init__(self, policy: Policy, settings: Settings, views: int) -> None:
        self.policy = policy
        self._settings = settings
        self._views = views

    def plan(self, view: View) -> Plan:
        return tuple(self.policy.plan(view))

    @cached_property
    def random(self) -> list[Trial]:
        return [self._trial(random_view(seed, self._settings)) for seed in range(self._views)]

    @cached_property
    def impossible(self) -> Trial:
        return self._trial(a_view([a_gpu_view()], [a_job(gpus_wanted=9)]))

    @cached_property
    def all(self) -> list[Trial]:
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
                job = view.queued(placement.job)
                if job is None:  # another rule is broken
                    continue
                yield view, job, placement
                if not view.node_of.keys() >= set(placement.gpus):  # another rule is broken
                    break
                if placement.gpus:
                    view = view.with_placement(
                        job, placement.gpus, placement.profiling, placement.accumulation
                    )

    def _trial(self, view: View) -> Trial:
        return Trial(view, self.plan(view), self.plan(view))


def the_name_is_an_identifier(trials: Trials) -> None:
    name = trials.policy.name
    assert name and name.isidentifier(), "a policy's name is an identifier"


def the_same_job_has_the_same_place_in_line(trials: Trials) -> None:
    places = [trials.policy.order(a_job(id)) for id in (1, 2, 1)]
    assert places[0] == places[2], "the same job must have the same place in line"


def a_place_in_line_is_a_number(trials: Trials) -> None:
    places = [trials.policy.order(a_job(id)) for id in (1, 2)]
    assert all(place == place for place in places), "a place in line is a number"


def an_empty_queue_needs_no_plan(trials: Trials) -> None:
    assert trials.plan(a_view([], [])) == (), "with no queue there is nothing to plan"


def the_same_view_gives_the_same_plan(trials: Trials) -> None:
    for _, plan, again in trials.random:
        assert plan == again, "the same view must give the same plan"


def a_plan_does_not_depend_on_earlier_ones(trials: Trials) -> None:
    for view, plan, _ in reversed(trials.random):
        assert plan == trials.plan(view), "a plan must not depend on earlier ones"


def a_plan_is_made_of_valid_proposals(trials: Trials) -> None:
    for _, plan, _ in trials.all:
        valid = all(map(is_proposal, plan))
        assert valid, "a plan is made of proposals, and those of their types"


def somebody_in_line_is_told_why(trials: Trials) -> None:
    for view, plan, _ in trials.all:
        assert plan or not view.queue, "jobs wait, and not one of them is told why"


def a_job_has_one_proposal(trials: Trials) -> None:
    for _, plan, _ in trials.all:
        judged = [each.job for each in plan if not isinstance(each, AskAgain | Remember)]
        assert len(set(judged)) == len(judged), "one proposal per job"


def only_running_jobs_are_preempted(trials: Trials) -> None:
    for view, plan, _ in trials.all:
        running = {job.id for job in view.running}
        preempted = {each.job for each in plan if isinstance(each, Preemption)}
        assert preempted <= running, "only running jobs are preempted"


def only_queued_jobs_are_placed(trials: Trials) -> None:
    for view, plan, _ in trials.all:
        placed = [each.job for each in plan if isinstance(each, Placement)]
        assert all(map(view.queued, placed)), "only queued jobs are placed"


def verdicts_are_on_gpus_of_the_view(trials: Trials) -> None:
    for view, plan, _ in trials.all:
        known = {gpu.id for gpu in view.gpus}
        judged = {v.gpu for each in plan if isinstance(each, Placement) for v in each.verdicts}
        assert judged <= known, "verdicts are on GPUs of the view"


def each_gpu_is_given_once(trials: Trials) -> None:
    for _, _, placement in trials.placements:
        assert len(set(placement.gpus)) == len(placement.gpus), "each GPU is given once"


def a_job_gets_as_many_gpus_as_it_wants(trials: Trials) -> None:
    for _, job, placement in trials.placements:
        assert len(placement.gpus) in (0, job.spec.gpus), "as many GPUs as the job wants"


def only_admissible_gpus_are_given(trials: Trials) -> None:
    for view, job, placement in trials.placements:
        wanted = view.demand(job, profiling=placement.profiling is not None)
        admissible = {gpu.id for gpu in view.gpus if not view.refusals(wanted, gpu)}
        assert admissible.issuperset(placement.gpus), "only admissible GPUs"


def no_gpu_is_refused_and_given(trials: Trials) -> None:
    for _, _, placement in trials.placements:
        refused = {verdict.gpu for verdict in placement.verdicts if verdict.refused}
        assert refused.isdisjoint(placement.gpus), "no GPU is refused and given"


def a_batch_is_split_into_equal_parts(trials: Trials) -> None:
    for _, job, placement in trials.placements:
        parts, batch = placement.accumulation, job.spec.batch_size
        assert parts == 1 or (batch and batch % parts == 0), "parts of a batch are equal"


def a_job_that_waits_is_told_why(trials: Trials) -> None:
    for view, job, placement in trials.placements:
        refused = {verdict.gpu for verdict in placement.verdicts if verdict.refused}
        too_few = len(view.gpus) - len(refused) < job.spec.gpus
        told = placement.gpus or placement.reasons or too_few
        assert told, "a job that waits is told why"


def a_job_that_wants_too_many_gpus_waits(trials: Trials) -> None:
    assert not _places(trials.impossible.plan), "a job that wants 9 of 1 GPU must wait"


def a_job_starts_on_an_idle_server(trials: Trials) -> None:
    alone = trials.plan(a_view([a_gpu_view()], [a_job()]))
    assert _places(alone), "one job and one idle GPU: it must start"


def _places(plan: Plan) -> bool:
    return any(isinstance(each, Placement) and each.gpus for each in plan)


CHECKS = (
    the_name_is_an_identifier,
    the_same_job_has_the_same_place_in_line,
    a_place_in_line_is_a_number,
    an_empty_queue_needs_no_plan,
    the_same_view_gives_the_same_plan,
    a_plan_does_not_depend_on_earlier_ones,
    a_plan_is_made_of_valid_proposals,
    somebody_in_line_is_told_why,
    a_job_has_one_proposal,
    only_running_jobs_are_preempted,
    only_queued_jobs_are_placed,
    verdicts_are_on_gpus_of_the_view,
    a_job_that_wants_too_many_gpus_waits,
    each_gpu_is_given_once,
    a_job_gets_as_many_gpus_as_it_wants,
    only_admissible_gpus_are_given,
    no_gpu_is_refused_and_given,
    a_batch_is_split_into_equal_parts,
    a_job_that_waits_is_told_why,
    a_job_starts_on_an_idle_server,
)
