"""Finds plugins by name among the installed entry points, and puts guards around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import cast

from carmad.config import Settings
from carmad.core.ports import Estimator, Policy, Predictor, Recovery, Server
from carmad.errors import CarmaError
from carmad.guards import GuardedEstimator, GuardedPolicy, GuardedPredictor, GuardedRecovery

ESTIMATE_SPARE_S = 10.0  # for an estimator, on top of the time that a script may take


def policy(settings: Settings) -> GuardedPolicy:
    return _policy(settings.policy, settings, settings.policy_fallback)


def fallback(settings: Settings) -> GuardedPolicy | None:
    """What decides while the policy fails, if the settings name anything."""
    name = settings.policy_fallback
    return _policy(name, settings) if name else None


def _policy(name: str, settings: Settings, deputy: str = "") -> GuardedPolicy:
    def make() -> Policy:
        return cast(Policy, _load("policies", name, settings))

    return GuardedPolicy(make(), make=make, deputy=deputy)


def bare_policy(settings: Settings) -> Policy:
    """Unguarded: for a simulation, which may fail with its policy."""
    return cast(Policy, _load("policies", settings.policy, settings))


def predictor(settings: Settings) -> GuardedPredictor:
    return GuardedPredictor(bare_predictor(settings), make=lambda: bare_predictor(settings))


def bare_predictor(settings: Settings) -> Predictor:
    return cast(Predictor, _load("predictors", settings.predictor, settings))


def recovery(settings: Settings) -> GuardedRecovery:
    return GuardedRecovery(bare_recovery(settings), make=lambda: bare_recovery(settings))


def bare_recovery(settings: Settings) -> Recovery:
    return cast(Recovery, _load("recoveries", settings.recovery.name, settings))


def estimator(name: str, settings: Settings, server: Server) -> Estimator:
    plugin = cast(Estimator, _load("estimators", name, settings, server))
    return GuardedEstimator(plugin, settings.estimation.within_s + ESTIMATE_SPARE_S)


def names(kind: str) -> list[str]:
    """The installed plugins of a kind: policies, recoveries, estimators or predictors."""
    return sorted({point.name for point in entry_points(group=f"carma.{kind}")})


def _load(kind: str, name: str, *given: object) -> object:
    try:
        plugin = _factory(kind, name)(*given)
    except CarmaError:
        raise
    except Exception as error:  # foreign code
        raise CarmaError(
            f"{name!r} of {kind} cannot be loaded: {error}",
            "is everything that it needs installed? For CARMA's own that is carma[policies] or "
            "carma[estimators]",
        ) from error
    if not isinstance(getattr(plugin, "name", None), str):
        raise CarmaError(f"{name!r} of {kind} has no name", "see the protocols in carmad.plugin")
    return plugin


@cache  # looking through all that is installed takes long, and estimators are made for every job
def _factory(kind: str, name: str) -> Callable[..., object]:
    found = entry_points(group=f"carma.{kind}", name=name)
    if not found:
        raise CarmaError(
            f"there is no {name!r} among the installed {kind}",
            f"choose one of {', '.join(names(kind))}, or install the package that has it",
        )
    factory: Callable[..., object] = next(iter(found)).load()
    return factory
