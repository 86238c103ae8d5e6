"""A random forest for recurring jobs (A-SRPT paper, IV-C-3), trained by `carmad.learning.forest` on
this server's past jobs and stored as a table.

The paper predicts 0 for a job that has not run before, so that it starts at once: a short one gets
through quickly, and more is known about a long one next time. For a job that has run, but is not in
the model, its own runs are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carmad.plugin import History, Job, Lookup, Model, Prediction, Settings
from estimators.duration.declared import said
from estimators.duration.history import recurring
from estimators.duration.recurrence import unseen

MODEL = "forest"


@dataclass(frozen=True, slots=True)
class Forest:
    name: str = "forest"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return said(job) or _learned(job, models) or recurring(job, history) or unseen(self.name)


def _learned(job: Job, models: Mapping[str, Model]) -> Prediction | None:
    model = models.get(MODEL)
    if not isinstance(model, Lookup) or job.group not in model.seconds:
        return None
    notes = (f"learned from {model.rows} jobs, runs of this one among them",)
    return Prediction(model.predict(job.group), "forest", notes=notes)


def forest(settings: Settings) -> Forest:
    return Forest()
