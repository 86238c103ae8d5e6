"""How much sharing is allowed at the moment (Lucid paper, 3.3, "Dynamic Strategy").

The paper forecasts how many jobs will be submitted and how many GPUs requested; its artifact uses
the jobs. Here it is the GPUs: ten one-GPU jobs take less room than two eight-GPU jobs. The paper
requires the throughput to be low now *and* not about to rise, so the larger of the last hour's mean
and the forecast counts.
"""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from carmad.models.features import HOUR, INTERVAL_S, traffic_features
from carmad.plugin import Additive, AskAgain, Reason, View
from policies.lucid.settings import LucidSettings

NAME = "throughput"  # of the trained model
APATHETIC = 1  # sharing capacity


class Capacity(NamedTuple):
    """Limits on the sums over two jobs that share a GPU."""

    score: int  # GSS, of sharing scores
    utilization: float  # of the GPU, 0-1 each


def sharing_capacity(view: View, knobs: LucidSettings) -> Capacity | Reason:
    """The capacity now, or why sharing is off."""
    whole = Capacity(knobs.sharing_capacity, knobs.utilization_capacity)
    if not _is_dynamic(knobs):
        return whole
    gpus = throughput(view)
    if gpus < knobs.off_below:
        return Reason("sharing_off", knobs.off_below, gpus, "GPUs")
    if gpus < knobs.apathetic_below:
        return whole._replace(score=min(APATHETIC, whole.score))
    return whole


def next_change(view: View, knobs: LucidSettings) -> tuple[AskAgain, ...]:
    """Ask again when the capacity may change, even if nothing else happens until then."""
    if not _is_dynamic(knobs):
        return ()
    return (AskAgain((view.now // INTERVAL_S + 1) * INTERVAL_S),)


def _is_dynamic(knobs: LucidSettings) -> bool:
    return knobs.off_below > 0 or knobs.apathetic_below > 0


def throughput(view: View) -> float:
    """GPUs requested in ten minutes, recently or as forecast, whichever is more."""
    counts = view.history.traffic(view.now)
    lately = fmean([gpus for _, gpus in counts[-HOUR:]]) if counts else 0.0
    model = view.models.get(NAME)
    if not isinstance(model, Additive):
        return lately
    return max(lately, model.predict(traffic_features(counts, view.now)))
