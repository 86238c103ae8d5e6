"""GPUMemNet (CARMA paper, 2.3): classifiers, trained on generated networks, which predict the bin
of a network's memory need.

`features` and `network` (numpy) evaluate them; `files` has the card of the weights, which
`lab.gpumemnet` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from carmad.plugin import Estimate, Refusal, Server, Settings
from estimators.gpumemnet.features import TYPE_OF, family, kinds
from estimators.gpumemnet.features import features as features_of
from estimators.gpumemnet.files import WEIGHTS, outside, read_card
from estimators.look import Reader
from estimators.tracer.report import Layer, Report

SOURCE = "gpumemnet"
TRAINED_FOR = "trained on float32 and Adam: it sees neither AMP nor other optimizers"


def gpumemnet(settings: Settings, server: Server) -> Reader:
    return Reader(SOURCE, settings, server, read)


def read(report: Report, settings: Settings) -> Estimate | Refusal:
    return answer(report.layers, report.batch, settings.estimation.any_context_mib)


def answer(
    layers: Sequence[Layer], batch: int, context_mib: int, folder: Path = WEIGHTS
) -> Estimate | Refusal:
    """The top of the most likely bin, as in the paper; low and high are the lowest and highest bin
    that any ensemble member finds most likely. Raises OSError if `folder` has no weights."""
    named = kinds(layers)
    found = family(layers)
    if found is None:
        return Refusal("its model is no MLP, CNN or transformer", SOURCE)
    known = read_card(found, folder)
    seen = features_of(layers, batch) if set(named) <= TYPE_OF.keys() else None
    if why := outside(known, named, seen):
        return Refusal(f"taken for {found}: {why}", SOURCE)
    assert seen is not None
    if find_spec("numpy") is None:
        return Refusal("CARMA's Python has no numpy, of the optional part estimators", SOURCE)
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
