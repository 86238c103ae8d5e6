"""Finds plugins by name among the installed entry points, and what they declare: their settings,
the systems of policies, and the wording of reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from carmad import installed, paths
from carmad.config import Preconditions, Settings
from carmad.core.placing.view import Policy
from carmad.core.ports import Estimator, Predictor, Recovery, Server
from carmad.edge import BackgroundService, Follower, Host, SubmissionCheck, System
from carmad.errors import CarmaError
from carmad.guards import GuardedEstimator
from carmad.words import Wording

log = logging.getLogger(__name__)
T = TypeVar("T")

paths.find_own()  # other programs load our plugins, too

KINDS = ("policies", "recoveries", "estimators", "predictors")
_EVERY_POLICYS = {field.name for field in fields(Preconditions)}
_ABLE: dict[tuple[type, str], bool] = {}  # which estimator can what: asked for each job
ESTIMATE_SPARE_S = 10.0  # for an estimator, on top of the time that a script may take


def bare_policy(settings: Settings) -> Policy:
    """Unguarded, as the next two: for the daemon to guard, and for a simulation, which may fail
    with its policy."""
    return cast(Policy, _load("policies", settings.policy, settings))


def bare_predictor(settings: Settings) -> Predictor:
    return cast(Predictor, _load("predictors", settings.predictor, settings))


def bare_recovery(settings: Settings) -> Recovery:
    return cast(Recovery, _load("recoveries", settings.recovery.name, settings))


def estimator(name: str, settings: Settings, server: Server) -> Estimator:
    plugin = cast(Estimator, _load("estimators", name, settings, server))
    return GuardedEstimator(plugin, settings.estimation.longest_s + ESTIMATE_SPARE_S)


def estimators_that(can: type[T], settings: Settings, server: Server) -> Iterator[T]:
    """The installed estimators that can do more than estimate, CARMA's own first: `can` is one of
    the protocols `Explains`, `Learns` and `Measures`. One that cannot be loaded cannot."""
    for name in installed.by_name("carma.estimators"):
        if _ABLE.get((can, name), True):
            with suppress(CarmaError):
                found = _load("estimators", name, settings, server)
                if _ABLE.setdefault((can, name), isinstance(found, can)):
                    yield cast(T, found)


def trace_importer(kind: str) -> Callable[[Path], object]:
    """What reads the traces of a kind, for `carma simulate KIND:PATH`."""
    with _loading("traces", kind):
        return _factory("traces", kind)


def names(kind: str) -> list[str]:
    """The installed plugins of a kind: policies, recoveries, estimators, predictors or traces."""
    return sorted({point.name for point in installed.points(f"carma.{kind}")})


def own_names(kind: str) -> list[str]:
    """CARMA's own plugins of a kind, as help and reference list them."""
    return [each.name for each in installed.points(f"carma.{kind}") if installed.is_own(each)]


def services(host: Host) -> dict[str, BackgroundService]:
    """The installed services that have something to do, by name, CARMA's own first."""
    made = installed.load_each("carma.services", lambda build: build(host))
    return {name: each for name, each in made if each is not None}


def followers(host: Host) -> dict[str, Follower]:
    """The installed followers, by name."""
    return dict(installed.load_each("carma.followers", lambda build: _is_a(Follower, build(host))))


def routers() -> dict[str, Any]:
    """FastAPI's routers of packages, by name."""
    return dict(installed.load_each("carma.routes"))


def checks(host: Host) -> list[SubmissionCheck]:
    """The installed checks of submissions, in the order of their names. Raises CarmaError if one
    cannot be built: what it is there to prevent must not happen."""
    made: list[object] = []
    for name in names("submissions"):
        with _loading("submissions", name):
            made.append(_factory("submissions", name)(host))
    return [cast(SubmissionCheck, each) for each in made if each is not None]


@cache
def settings_of_plugins() -> Mapping[tuple[str, str], type]:
    """The dataclass of each plugin that has settings of its own, by kind and name.

    They are entry points of the group `carma.settings`, called KIND.NAME. A faulty one is logged
    and skipped: it must not keep a daemon from starting that does not use it.
    """
    found: dict[tuple[str, str], type] = {}
    each_with_fields = installed.load_each("carma.settings", lambda its: (its, fields(its())))
    for called, (declared, its) in each_with_fields:
        kind, _, name = called.partition(".")
        taken = _EVERY_POLICYS & {field.name for field in its}
        if kind not in KINDS or not name:
            log.error("settings %r are not of KIND.NAME, as in policies.magm", called)
        elif kind == "policies" and taken:
            log.error("%s has a setting %s, but so has every policy", called, min(taken))
        else:
            found[kind, name] = declared
    return found


@cache
def systems() -> Mapping[str, System]:
    """The systems of which policies are part, by policy: entry points of the group
    `carma.systems`."""
    return dict(installed.load_each("carma.systems", lambda its: _is_a(System, its)))


@cache
def wordings() -> Mapping[str, Wording]:
    """The wording of the reasons of all installed plugins, by code: entry points of the group
    `carma.reasons`. If two declare the same code, CARMA's own wins."""
    found: dict[str, Wording] = {}
    for name, declared in installed.load_each("carma.reasons", dict):
        for code, wording in declared.items():
            if isinstance(wording, Wording):
                found.setdefault(code, wording)
            else:
                log.error("the reason %r of %s has no Wording", code, name)
    return found


def _is_a(kind: type[T], made: object) -> T:
    if not isinstance(made, kind):
        raise TypeError(f"this is no {kind.__name__}: {made!r:.200}")
    return made


def _load(kind: str, name: str, settings: Settings, *given: object) -> object:
    with _loading(kind, name):
        own = settings_of_plugins().get((kind, name))
        more = (own(**settings.plugins.get(f"{kind}.{name}", {})),) if own else ()
        plugin = _factory(kind, name)(settings, *given, *more)
    if not isinstance(getattr(plugin, "name", None), str):
        raise CarmaError(f"{name!r} of {kind} has no name", "see the protocols in carmad.plugin")
    return plugin


@contextmanager
def _loading(kind: str, name: str) -> Iterator[None]:
    """Raises only CarmaError."""
    try:
        yield
    except CarmaError:
        raise
    except (Exception, SystemExit) as error:  # foreign code
        raise CarmaError(
            f"{name!r} of {kind} cannot be loaded: {error}",
            "are its dependencies installed? docs/guides/packages.md lists those of CARMA's own",
        ) from error


@cache  # estimators are made for every job
def _factory(kind: str, name: str) -> Callable[..., object]:
    found = installed.points(f"carma.{kind}").select(name=name)
    if not found:  # it may have been installed meanwhile
        installed.look_again()
        found = installed.points(f"carma.{kind}").select(name=name)
    if not found:
        raise CarmaError(
            f"there is no {name!r} among the installed {kind}",
            f"choose one of {', '.join(names(kind))}, or install the package that has it",
        )
    factory: Callable[..., object] = next(iter(found)).load()
    return factory
