"""The runs compared by a report: each with a unique name, its figures and its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, groupby
from typing import Any

from carmad.config import Settings
from carmad.configfile import by_name
from carmad.readable import clean
from carmad.sim.experiment import Experiment, Physics
from carmad.sim.hardware import Cluster, Node
from carmad.sim.metrics import Bounds, Figures, bounds, figures
from carmad.sim.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Run:
    """One column of a report; the others are compared with the first run."""

    name: str  # unique in the report
    experiment: Experiment
    outcome: Outcome
    figures: Figures
    bounds: Bounds
    cluster: str  # in the form of `--gpus`
    settings: Mapping[str, str]  # those that differ from their defaults, by dotted name


def runs(results: Iterable[tuple[Experiment, Outcome]]) -> tuple[Run, ...]:
    """In the order given. A run is named by its policy and whatever else distinguishes it."""
    found = list(results)
    settings = [_changed(experiment) for experiment, _ in found]
    names = _names([_facets(o, changed) for (_, o), changed in zip(found, settings, strict=True)])
    return tuple(
        Run(
            name=name,
            experiment=experiment,
            outcome=outcome,
            figures=figures(outcome),
            bounds=bounds(outcome),
            cluster=gpus(outcome.cluster),
            settings=changed,
        )
        for name, (experiment, outcome), changed in zip(names, found, settings, strict=True)
    )


def gpus(cluster: Cluster) -> str:
    """The cluster in the form of `--gpus`: 3xA100-40GB, 250x8xV100-32GB, 1xA100-40GB/7x1g.5gb."""
    return ",".join(_counted(f"{node.gpus}x{_divided(node)}" for node in cluster.nodes))


def _divided(node: Node) -> str:
    profiles = _counted(instance.name.rpartition("/")[2] for instance in node.instances)
    return "/".join(filter(None, (node.kind.name, "+".join(profiles))))


def _counted(words: Iterable[str]) -> list[str]:
    """Consecutive equal words merged: 7x1g.5gb."""
    runs = [(word, sum(1 for _ in alike)) for word, alike in groupby(words)]
    return [word if number == 1 else f"{number}x{word}" for word, number in runs]


def _changed(experiment: Experiment) -> dict[str, str]:
    """The changed settings, without policy and estimator, which have columns of their own."""
    own, usual = _all(experiment.settings, experiment.physics), _all(Settings(), Physics())
    apart = ("policy", "estimator")
    return {
        name: clean(value)
        for name, value in own.items()
        if name not in apart and usual.get(name) != value
    }


def _all(settings: Settings, physics: Physics) -> dict[str, Any]:
    return by_name(settings) | {f"physics.{name}": its for name, its in asdict(physics).items()}


def _facets(outcome: Outcome, changed: Mapping[str, str]) -> dict[str, str]:
    return {
        "policy": clean(outcome.policy),
        "estimator": _named(outcome.estimator, "estimator"),
        "interference": _named(outcome.interference, "interference"),
        "trace": clean(outcome.trace),
        "gpus": gpus(outcome.cluster),
        "seed": f"seed {outcome.seed}",
        **{name: f"{name}={value}" for name, value in changed.items()},
    }


def _named(name: str, what: str) -> str:
    return f"no {what}" if name == "none" else clean(name)


def _names(facets: Sequence[Mapping[str, str]]) -> list[str]:
    names: list[str] = []
    for own in facets:
        like = [other for other in facets if other["policy"] == own["policy"]]
        telling = [own["policy"]] + [
            text
            for facet, text in own.items()
            if facet != "policy" and any(other.get(facet) != text for other in like)
        ]
        name = " ".join(telling)
        numbered = (f"{name} #{n}" for n in count(2))
        names.append(name if name not in names else next(n for n in numbered if n not in names))
    return names
