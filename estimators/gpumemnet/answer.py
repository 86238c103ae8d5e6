"""From a network's layers to an estimate: chooses the family, and checks that it applies."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from carmad.plugin import Estimate, Refusal
from estimators.gpumemnet import card
from estimators.gpumemnet.features import TYPE_OF, family, features, kinds
from estimators.tracer.report import Layer

SOURCE = "gpumemnet"
TRAINED_FOR = "trained on float32 and Adam: it sees neither AMP nor other optimizers"


def answer(
    layers: Sequence[Layer], batch: int, context_mib: int, folder: Path = card.WEIGHTS
) -> Estimate | Refusal:
    """The top of the most likely bin, as in the paper; low and high are the lowest and highest bin
    that any ensemble member finds most likely. Raises OSError if `folder` has no weights."""
    named = kinds(layers)
    found = family(layers)
    if found is None:
        return Refusal("its model is no MLP, CNN or transformer", SOURCE)
    known = card.read(found, folder)
    seen = features(layers, batch) if set(named) <= TYPE_OF.keys() else None
    if why := card.outside(known, named, seen):
        return Refusal(f"taken for {found}: {why}", SOURCE)
    assert seen is not None
    if find_spec("numpy") is None:
        return Refusal("CARMA's Python has no numpy: pip install 'carma-gpu[estimators]'", SOURCE)
    from estimators.gpumemnet import network

    each = network.load(folder / f"{found}.npz").probabilities(seen)
    together = each.mean(0)
    best = int(together.argmax())
    likeliest = (best, *map(int, each.argmax(1)))
    if max(likeliest) == known.bins - 1:
        return Refusal(f"taken for {found}: perhaps more than {known.limit_gb} GB", SOURCE)
    shift = context_mib - known.origin.context_mib
    return Estimate(
        known.span_mib(best)[1] + shift,
        SOURCE,
        low=max(0, known.span_mib(min(likeliest))[0] + shift),
        high=known.span_mib(max(likeliest))[1] + shift,
        notes=(
            f"taken for {found}: bins of {known.range_gb} GB, probability {together[best]:.2f}",
            TRAINED_FOR,
        ),
    )
