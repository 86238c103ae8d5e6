"""What every plugin must do, as named checks. One that fails raises AssertionError.

The `*_checks` functions yield them, for a test runner to report one by one; the `check_*`
functions run them all and stop at the first that fails. CARMA's own plugins pass them too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import isfunction
from typing import ParamSpec

from carma_testing.rules import EstimatorRules, PolicyRules, PredictorRules, RecoveryRules
from carmad.config import Settings
from carmad.core.placing.view import Policy
from carmad.core.ports import (
    Estimator,
    Predictor,
    Recovery,
    Server,
)

P = ParamSpec("P")

Failures = Mapping[str, str]  # checks that are expected to fail, by name: why


@dataclass(frozen=True, slots=True)
class Check:
    """Call it to run it. One that is expected to fail must fail: if it passes, that is an error."""

    name: str
    expected_failure: str  # why; "": none is expected
    _run: Callable[[], None]

    def __call__(self) -> None:
        if not self.expected_failure:
            self._run()
            return
        try:
            self._run()
        except Exception:  # noqa: BLE001 - foreign code
            return
        raise AssertionError(f"{self.name} passes, and was expected to fail")

    def __str__(self) -> str:
        return self.name


def policy_checks(
    policy: Policy,
    settings: Settings | None = None,
    views: int = 200,
    expected_failures: Failures | None = None,
) -> Iterator[Check]:
    """Checks of a placement policy, on `views` random servers and queues."""
    rules = PolicyRules(policy, settings or Settings(), views)
    return checks_of(rules, expected_failures)


def recovery_checks(
    recovery: Recovery, expected_failures: Failures | None = None
) -> Iterator[Check]:
    return checks_of(RecoveryRules(recovery), expected_failures)


def estimator_checks(
    make: Callable[[Settings, Server], Estimator],
    settings: Settings | None = None,
    expected_failures: Failures | None = None,
    answers: Collection[bytes] = (),
) -> Iterator[Check]:
    """Checks of an estimator's factory, on jobs of many kinds and on servers where programs fail
    in every way.

    `answers`: what the program that the estimator runs may answer. Those are tried as well.
    """
    rules = EstimatorRules(make, settings or Settings(), answers)
    return checks_of(rules, expected_failures)


def predictor_checks(
    predictor: Predictor, expected_failures: Failures | None = None
) -> Iterator[Check]:
    """Checks of a predictor, on jobs that the history knows and on others."""
    return checks_of(PredictorRules(predictor), expected_failures)


def checks_of(rules: object, expected_failures: Failures | None = None) -> Iterator[Check]:
    """A check per rule, with its name: a method of `rules` that asserts it. They share the cases
    that were tried."""
    names = [name for name, its in vars(type(rules)).items() if isfunction(its) and name[0] != "_"]
    expected = dict(expected_failures or {})
    checks = [Check(name, expected.pop(name, ""), getattr(rules, name)) for name in names]
    if expected:
        raise ValueError(f"there is no check {min(expected)}: {', '.join(names)}")
    return iter(checks)


def _all_of(checks: Callable[P, Iterator[Check]]) -> Callable[P, None]:
    """Runs the checks and stops at the first that fails."""

    @wraps(checks)
    def check(*args: P.args, **kwargs: P.kwargs) -> None:
        for each in checks(*args, **kwargs):
            each()

    return check


check_policy = _all_of(policy_checks)
check_recovery = _all_of(recovery_checks)
check_estimator = _all_of(estimator_checks)
check_predictor = _all_of(predictor_checks)
check_rules = _all_of(checks_of)
