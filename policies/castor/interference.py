"""Predicts the interference ratios xi of two jobs from their profiles (Castor paper, 6)."""

from __future__ import annotations

from typing import Protocol

from carmad.plugin import Boosted, Job, Loaded, View, beside, find_model
from policies.castor.pairing import Ratios
from policies.views import peak_mib

NAME = "interference"  # of the trained model
REMEMBERED = 65_536  # pairs


class Interference(Protocol):
    """The ratios of a running job and of one beside it on GPUs with this many MiB, both of which
    have a profile."""

    def __call__(
        self, running: Job, new: Job, memory_mib: int, view: View, passes: int | None = None
    ) -> Ratios:
        """`passes`: of the new job, if it has yet to start."""
        ...


class Predicted:
    """Uses the model trained here, otherwise the one shipped with CARMA.

    Pairs are cached by the identity of their profiles, since comparing values would take longer
    than the rest of a decision. Runs of one job, profiled once, share one profile. Cached profiles
    are kept alive, so that their identity is not reused.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[Ratios, object]] = {}

    def __call__(
        self, running: Job, new: Job, memory_mib: int, view: View, passes: int | None = None
    ) -> Ratios:
        one, other = running.profile, new.profile
        assert one is not None and other is not None
        model = find_model(NAME, Boosted, view.models)
        shared = view.settings.collocation
        single = running.spec.gpus == new.spec.gpus == 1  # others need one MPS server for the node
        mps = shared.mps and (single or shared.mps_scope == "node")
        peaks = (
            peak_mib(running, running.accumulation),
            peak_mib(new, new.accumulation if passes is None else passes),
        )
        pair = id(one.indicators), id(other.indicators), *peaks, memory_mib, mps, id(model)
        known = self._known.get(pair)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            here, there = (
                Loaded(profile.indicators, mib / memory_mib)
                for profile, mib in zip((one, other), peaks, strict=True)
            )
            known = ratios(model, here, there, mps), (one.indicators, other.indicators, model)
            self._known[pair] = known
        return known[0]


def ratios(model: Boosted, running: Loaded, new: Loaded, mps: bool) -> Ratios:
    """Both at least 1: sharing never speeds a job up, whatever a model extrapolates."""
    return (
        max(1.0, model.predict(beside(running, new, mps))),
        max(1.0, model.predict(beside(new, running, mps))),
    )
