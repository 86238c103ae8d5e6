"""What a job's duration is foretold from (Lucid paper, 3.5.3): who submits it, under what name, for
how many GPUs, when, what became of earlier runs, and its profile where there is one.

The predictor that asks and the training that answers compute these features with this one function.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from carmad.models.additive import Additive
from carmad.models.traffic import calendar

PROFILE = ("gpu_utilization", "memory_utilization", "peak_mib")  # fractions 0–1; MiB


def features(
    user: str,
    bucket: str,
    gpus: int,
    submitted_at: float,
    of_user: Sequence[float] = (),
    of_group: Sequence[float] = (),
    profile: dict[str, float] | None = None,
) -> dict[str, float | str]:
    """`bucket` is the exemplar that its name is nearest to. `of_user` and `of_group` are how long
    (s) the latest jobs of the user, and the latest runs of this same job, took, the newest last;
    `profile` has any of `PROFILE`. What is not known is left out."""
    found: dict[str, float | str] = {
        "user": user,
        "name": bucket,
        "gpus": float(gpus),
    }
    moment = calendar(submitted_at)
    found |= {each: moment[each] for each in ("hour", "weekday", "day")}
    if of_user:
        found |= {"user_mean_s": fmean(of_user), "user_last_s": of_user[-1]}
    if of_group:
        found |= {"group_mean_s": fmean(of_group), "group_last_s": of_group[-1]}
    return found | {each: profile[each] for each in PROFILE if profile and each in profile}


def exemplars_of(model: Additive) -> tuple[str, ...]:
    """The names that the model tells apart."""
    return next((s.bins.categories for s in model.shapes if s.name == "name"), ())
