"""The Workload Estimate Model (Lucid paper, 3.5.3), trained by `carmad.learning.lucid` on this
server's past jobs; until there is one, the history predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carmad.models.features import bucket, duration_features, exemplars_of
from carmad.plugin import Additive, History, Job, Model, Prediction, Settings
from estimators.duration.declared import said
from estimators.duration.history import recurring, unheard_of

MODEL = "duration"


@dataclass(frozen=True, slots=True)
class WorkloadEstimate:
    name: str = "additive"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return said(job) or _learned(job, history, models) or _without(job, history)


def _learned(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    model = models.get(MODEL)
    if not isinstance(model, Additive):
        return None
    values = _values(job, history, exemplars_of(model))
    parts = tuple(part for part in model.contributions(values) if part[1])
    notes = (f"learned from {model.rows} jobs; what each feature adds is to the logarithm",)
    return Prediction(model.predict(values), "additive", parts, notes)


def _values(job: Job, history: History, exemplars: tuple[str, ...]) -> Mapping[str, float | str]:
    profile = None
    if job.profile is not None and job.profile.seconds:
        profile = {each.name: each.mean for each in job.profile.indicators}
        profile["peak_mib"] = float(job.profile.peak_mib)
    return duration_features(
        job.spec.user,
        bucket(job.spec.name, exemplars),
        job.spec.gpus,
        job.submitted_at,
        history.by_user.of(job.spec.user),
        history.by_group.of(job.group),
        profile,
    )


def _without(job: Job, history: History) -> Prediction | None:
    return recurring(job, history) or unheard_of(job, history)


def additive(settings: Settings) -> WorkloadEstimate:
    return WorkloadEstimate()
