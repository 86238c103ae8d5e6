"""How long similar jobs took: the median of the latest runs of the same job, otherwise Lucid's
fallbacks (Lucid paper, 3.4): the mean of the user's jobs, or all users' with the same GPU demand.
Of the latter it is the median over users here, so that no user determines others' predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carmad.plugin import History, Job, Model, Prediction, Settings
from estimators.duration.declared import said


@dataclass(frozen=True, slots=True)
class Recurring:
    name: str = "history"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return said(job) or recurring(job, history) or unheard_of(job, history)


def recurring(job: Job, history: History) -> Prediction | None:
    median = history.by_group.median(job.group)
    if median is None:
        return None
    runs = len(history.by_group.of(job.group))
    of = "one earlier run" if runs == 1 else f"the median of {runs} earlier runs"
    at_most_s = history.by_group.at_most(job.group)
    return Prediction(median, "history", notes=(f"{of} of this job",), at_most_s=at_most_s)


def unheard_of(job: Job, history: History) -> Prediction | None:
    """Cold start: the prediction for a job that has not run before."""
    mean, gpus = history.by_user.mean(job.spec.user), job.spec.gpus
    if mean is not None:
        return Prediction(mean, "history", notes=(f"the mean of {job.spec.user}'s latest jobs",))
    usual = history.by_gpus.median(gpus)
    if usual is None:
        return None
    return Prediction(usual, "history", notes=(f"what users' jobs of {gpus} GPUs usually take",))


def history(settings: Settings) -> Recurring:
    return Recurring()
