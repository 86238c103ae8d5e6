"""CARMA's own plugins pass the checks that it ships, and faulty plugins do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points

import pytest

from carma_testing import (
    Check,
    a_gpu,
    a_server,
    check_estimator,
    check_policy,
    check_predictor,
    check_recovery,
    estimator_checks,
    policy_checks,
    predictor_checks,
    recovery_checks,
)
from carma_testing.builders import random_view
from carmad import registry
from carmad.config import Collocation, Limits, Profiling, Recovery, Settings
from carmad.plugin import (
    Estimate,
    Exit,
    History,
    Job,
    JobId,
    JobSpec,
    Model,
    Placement,
    Prediction,
    Reason,
    Refusal,
    Retry,
    Server,
    View,
)
from policies import builtin
from tests.owners import who
from tests.reports import ANSWERS

SETTINGS = {
    "default": Settings(),
    "mps": Settings(collocation=Collocation(mps=True)),
    "MPS server per node": Settings(collocation=Collocation(mps=True, mps_scope="node")),
    "backfill": Settings(limits=Limits(backfill=2)),
    "preemption": Settings(limits=Limits(preemption=True)),
    "profiling GPUs": Settings(profiling=Profiling(gpus=1)),
}


def run(checks: Iterator[Check]) -> None:
    """All of them, whichever fail."""
    failures = []
    for check in checks:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - of a plugin
            error.add_note(f"in {check.name}")
            failures.append(error)
    if failures:
        raise ExceptionGroup("failed checks", failures)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", registry.names("policies"))
def test_built_in_policies(name: str, kind: str) -> None:
    settings = SETTINGS[kind]
    policy = registry.bare_policy(replace(settings, policy=name))
    run(policy_checks(policy, settings, views=100 if kind == "default" else 25))


@pytest.mark.parametrize("name", registry.names("recoveries"))
def test_built_in_recoveries(name: str) -> None:
    settings = Settings(recovery=Recovery(name=name, margin_mib=1024))
    run(recovery_checks(registry.bare_recovery(settings)))


@pytest.mark.parametrize("name", registry.names("estimators"))
def test_built_in_estimators(name: str) -> None:
    (point,) = entry_points(group="carma.estimators", name=name)
    run(estimator_checks(point.load(), answers=ANSWERS))


@pytest.mark.parametrize("name", registry.names("predictors"))
def test_built_in_predictors(name: str) -> None:
    predictor = registry.bare_predictor(Settings(predictor=name))
    run(predictor_checks(predictor))


def test_a_failure_that_is_expected() -> None:
    policy = Policy(lambda view: tuple(p if p.gpus else Placement(p.job) for p in good(view)))
    why = {"a_job_that_waits_is_told_why": "it never says why"}
    failed = [check.name for check in policy_checks(policy, views=VIEWS) if not passes(check)]
    assert failed == list(why)
    check_policy(policy, views=VIEWS, expected_failures=why)
    with pytest.raises(AssertionError, match="told_why passes, and was expected to fail"):
        check_policy(Policy(good), views=VIEWS, expected_failures=why)
    with pytest.raises(ValueError, match="there is no check a_job_that_waits"):
        check_policy(policy, expected_failures={"a_job_that_waits": "misspelt"})


def passes(check: Check) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


# -- the checks themselves: each of these plugins is wrong in one way ------------------------------


Plan = Callable[[View], tuple[Placement, ...]]
VIEWS = 60  # enough for each of these mistakes
GOOD = builtin.first_fit(Settings(limits=Limits(backfill=9)))


@dataclass
class Policy:
    plan: Plan
    name: str = "wrong"

    def order(self, job: Job) -> float:
        return 0.0


def good(view: View) -> tuple[Placement, ...]:
    return GOOD.plan(view)


def fails(plan: Plan, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_policy(Policy(plan), views=VIEWS)


def altered(plan: tuple[Placement, ...], **changes: object) -> tuple[Placement, ...]:
    """The same, but with changed placements of jobs that start."""
    return tuple(replace(p, **changes) if p.gpus else p for p in plan)  # type: ignore[arg-type]


def test_a_right_policy_passes() -> None:
    check_policy(Policy(good))


def test_random_servers_are_of_all_kinds() -> None:
    views = [random_view(seed, Settings()) for seed in range(200)]
    gpus = [gpu for view in views for gpu in view.gpus]
    assert any(gpu.gpu.is_mig for gpu in gpus) and any(gpu.external_mib for gpu in gpus)
    assert any(len(view.nodes) > 1 for view in views)
    assert any(job.retry and job.retry.avoid for view in views for job in view.queue)


def test_a_name_that_is_no_identifier() -> None:
    with pytest.raises(AssertionError, match="identifier"):
        check_policy(Policy(good, name="first fit"), views=1)


def test_chance() -> None:
    turns = itertools.count()

    def plan(view: View) -> tuple[Placement, ...]:
        return good(view) if next(turns) % 2 else good(view)[:1]

    fails(plan, "same view must give the same plan")


def test_memory_of_earlier_plans() -> None:
    """Called twice in a row, it answers the same; called again later, it does not."""

    @dataclass
    class Forgetful:
        views: list[View] = field(default_factory=list)
        name: str = "forgetful"

        def order(self, job: Job) -> float:
            return 0.0

        def plan(self, view: View) -> tuple[Placement, ...]:
            if not self.views or self.views[-1] is not view:
                self.views.append(view)
            return good(view) if len(self.views) < 20 else good(view)[:1]

    with pytest.raises(AssertionError, match="must not depend on earlier"):
        check_policy(Forgetful())


def test_no_gpu_is_too_full_for_it() -> None:
    """Judges every job by the original view, ignoring its own placements."""

    def plan(view: View) -> tuple[Placement, ...]:
        plans = [good(replace(view, queue=(job,))) for job in view.queue]
        return tuple(itertools.chain.from_iterable(plans))

    fails(plan, "only admissible GPUs")


def test_hard_rules_ignored() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        ids = tuple(gpu.id for gpu in view.gpus)
        return tuple(
            Placement(job.id, ids[: job.spec.gpus])
            for job in view.queue[:1]
            if job.spec.gpus <= len(ids)
        ) or waits(view, Reason("too_few"))

    fails(plan, "only admissible GPUs")


def waits(view: View, *reasons: Reason) -> tuple[Placement, ...]:
    return tuple(Placement(job.id, reasons=reasons) for job in view.queue[:1])


def test_gpus_that_are_not_there() -> None:
    fails(lambda view: altered(good(view), gpus=(a_gpu(99).id,)), "as many GPUs|only admissible")


def test_fewer_gpus_than_a_job_wants() -> None:
    fails(lambda view: tuple(replace(p, gpus=p.gpus[:1]) for p in good(view)), "as many GPUs")


def test_a_gpu_given_twice() -> None:
    fails(lambda view: tuple(replace(p, gpus=p.gpus * 2) for p in good(view)), "given once")


def test_a_job_that_wants_more_than_there_is() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        (*_, last) = view.queue or (None,)
        if last and last.spec.gpus == 9:
            return (Placement(last.id, (view.gpus[0].id,)),)
        return good(view)

    fails(plan, "9 of 1 GPU must wait")


def test_jobs_that_are_not_queued() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        return tuple(replace(p, job=JobId(p.job + 1000)) for p in good(view))

    fails(plan, "only queued jobs")


def test_running_jobs() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        return (*good(view), *(Placement(job.id, job.gpus) for job in view.running))

    fails(plan, "only queued jobs")


def test_a_job_judged_twice() -> None:
    fails(lambda view: (*good(view), *good(view)[:1]), "one proposal per job")


def test_a_silent_wait() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        return tuple(p if p.gpus else Placement(p.job) for p in good(view))

    fails(plan, "told why")


def test_a_wait_while_gpus_are_willing() -> None:
    """One GPU's refusal does not say why the job did not get another."""

    def plan(view: View) -> tuple[Placement, ...]:
        return tuple(replace(p, gpus=()) for p in good(view))

    fails(plan, "told why")


def test_not_a_word_about_anyone() -> None:
    fails(lambda view: tuple(p for p in good(view) if p.gpus), "not one of them is told why")


def test_a_gpu_refused_and_given() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        reasons = (Reason("mood"),)
        return tuple(
            replace(p, verdicts=tuple(replace(v, refused=reasons) for v in p.verdicts))
            for p in good(view)
        )

    fails(plan, "refused and given")


def test_verdicts_on_other_gpus() -> None:
    def plan(view: View) -> tuple[Placement, ...]:
        return tuple(
            replace(p, verdicts=tuple(replace(v, gpu=a_gpu(99).id) for v in p.verdicts))
            for p in good(view)
        )

    fails(plan, "GPUs of the view")


def test_nothing_ever_starts() -> None:
    fails(lambda view: waits(view, Reason("mood")), "it must start")


def test_an_answer_that_is_no_plan() -> None:
    fails(lambda view: tuple((p.job, p.gpus) for p in good(view)), "made of proposals")  # type: ignore[misc]


@dataclass
class WrongRecovery:
    answers: Iterator[object]
    name: str = "wrong"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        return next(self.answers)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        (itertools.repeat(True), "a Retry or None"),
        (itertools.repeat(Retry("")), "says why"),
        (itertools.cycle((Retry("once"), None)), "the same answer"),
    ],
)
def test_wrong_recoveries(answers: Iterator[object], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_recovery(WrongRecovery(answers))


def test_a_job_that_is_retried_has_failed_before() -> None:
    class Counting:
        name = "counting"

        def decide(self, job: Job, exit: Exit) -> Retry | None:
            assert bool(job.retry) == bool(job.failures) == (job.attempt > 1)
            return Retry("out of memory", exclusive=True)

    check_recovery(Counting())


@dataclass
class WrongEstimator:
    answers: Iterator[object]
    name: str = "wrong"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        return next(self.answers)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (8000, "an Estimate with low ≤ mib ≤ high, or a Refusal"),
        (None, "or a Refusal"),
        (Estimate(0, "wrong"), "an Estimate"),
        (Estimate(100, "wrong", low=200), "low ≤ mib"),
        (Estimate(100, "wrong", high=50), "mib ≤ high"),
        (Estimate(100, "wrong", parts=(("context", 90),)), "add up"),
        (Estimate(100, ""), "whose it is"),
        (Refusal("no", ""), "whose it is"),
        (Refusal("", "wrong"), "says why"),
    ],
)
def test_wrong_estimators(answer: object, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_estimator(lambda settings, server: WrongEstimator(itertools.repeat(answer)))


def test_an_estimator_that_changes_its_mind() -> None:
    mibs = itertools.count(1)
    with pytest.raises(AssertionError, match="the same answer"):
        check_estimator(lambda settings, server: WrongEstimator(Estimate(m, "w") for m in mibs))


def test_an_estimator_may_take_its_time() -> None:
    times = itertools.count(0.1)
    check_estimator(
        lambda settings, server: WrongEstimator(Estimate(1, "w", seconds=s) for s in times)
    )


def test_an_estimator_that_believes_every_answer() -> None:
    @dataclass
    class Believer(WrongEstimator):
        server: Server = field(default_factory=a_server)

        def estimate(self, spec: JobSpec) -> Estimate | Refusal:
            return Estimate(int(self.server.trial(spec, ("look",), 1.0).answer), "wrong")

    with pytest.raises(AssertionError, match="does not raise: ValueError"):
        check_estimator(lambda settings, server: Believer(iter(()), server=server))


@dataclass
class WrongPredictor:
    answer: Callable[[History], object]
    name: str = "wrong"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return self.answer(history)  # type: ignore[return-value]


NUMBERS = itertools.count(1)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda history: 3.0, "None, or a Prediction"),
        (lambda history: Prediction(-1.0, "wrong"), "of 0 s or more"),
        (lambda history: Prediction(float("nan"), "wrong"), "of 0 s or more"),
        (lambda history: Prediction(1.0, ""), "says whose it is"),
        (lambda history: Prediction(next(NUMBERS), "wrong"), "same answer"),
        (lambda history: history.by_user.of("nobody")[0], "does not raise: IndexError"),
        (lambda history: history.by_user.add(who("eve"), 1.0), "does not change the history"),
    ],
)
def test_wrong_predictors(answer: Callable[[History], object], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_predictor(WrongPredictor(answer))
