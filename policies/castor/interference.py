"""Predicts the interference ratios xi of two jobs from their profiles (Castor paper, 6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files

from carmad.models.boosted import Stage
from carmad.plugin import Boosted, Job, Model, Profile
from policies.castor.pairing import Ratios

NAME = "interference"  # of the trained model
REMEMBERED = 65_536  # pairs

# The ratios of a running job and of one that would join it on GPUs with this many MiB, both of
# which have a profile; the trained models are the last argument.
Interference = Callable[[Job, Job, int, Mapping[str, Model]], Ratios]


class Predicted:
    """Uses the model trained here, otherwise the one shipped with CARMA.

    Pairs are cached by the identity of their profiles, since comparing values would take longer
    than the rest of a decision. Runs of one job, profiled once, share one profile. Cached profiles
    are kept alive, so that their identity is not reused.
    """

    def __init__(self, shipped: Boosted) -> None:
        self._shipped = shipped
        self._known: dict[tuple[int, ...], tuple[Ratios, object]] = {}

    def __call__(
        self, running: Job, new: Job, memory_mib: int, models: Mapping[str, Model]
    ) -> Ratios:
        one, other = running.profile, new.profile
        assert one is not None and other is not None
        trained = models.get(NAME)
        model = trained if isinstance(trained, Boosted) else self._shipped
        peaks = one.peak_mib, other.peak_mib, memory_mib
        pair = id(one.indicators), id(other.indicators), *peaks, id(model)
        known = self._known.get(pair)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = ratios(model, one, other, memory_mib), (one.indicators, other.indicators, model)
            self._known[pair] = known
        return known[0]


def ratios(model: Boosted, running: Profile, new: Profile, memory_mib: int) -> Ratios:
    """Both at least 1: sharing never speeds a job up, whatever a model extrapolates."""
    return _ratio(model, running, new, memory_mib), _ratio(model, new, running, memory_mib)


def _ratio(model: Boosted, own: Profile, other: Profile, memory_mib: int) -> float:
    named = (*_features("own", own, memory_mib), *_features("other", other, memory_mib))
    return max(1.0, model.predict(dict(named)))


def _features(whose: str, profile: Profile, memory_mib: int) -> Iterator[tuple[str, float]]:
    """The features, as in `carmad.learning.interference`."""
    for indicator in profile.indicators:
        yield f"{whose}.{indicator.name}.mean", indicator.mean
        yield f"{whose}.{indicator.name}.variance", indicator.variance
    yield f"{whose}.memory.share", profile.peak_mib / memory_mib


@cache
def shipped() -> Boosted:
    """The model trained by `python -m benchmarks.castor.models`."""
    fields = json.loads(files("policies.castor").joinpath("interference.json").read_text("utf-8"))
    stages = tuple(
        Stage(**{name: tuple(column) for name, column in stage.items()})
        for stage in fields["stages"]
    )
    errors = tuple((name, error) for name, error in fields["errors"])
    return Boosted(
        **{**fields, "features": tuple(fields["features"]), "stages": stages, "errors": errors}
    )
