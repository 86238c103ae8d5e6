"""The mean and the median of earlier runs of the same job, and 0 for one that has not run before:
the baselines of the A-SRPT paper's forest (V-B, 2-d)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from statistics import median as middle

from carmad.plugin import History, Job, Model, Prediction, Settings
from estimators.duration.declared import said


@dataclass(frozen=True, slots=True)
class Recurrence:
    name: str
    fold: Callable[[Sequence[float]], float]

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return said(job) or self._of_runs(history.by_group.of(job.group)) or unseen(self.name)

    def _of_runs(self, seconds: Sequence[float]) -> Prediction | None:
        if not seconds:
            return None
        of = "one earlier run" if len(seconds) == 1 else f"the {self.name} of {len(seconds)} runs"
        return Prediction(self.fold(seconds), self.name, notes=(f"{of} of this job",))


def unseen(source: str) -> Prediction:
    return Prediction(0.0, source, notes=("it has not run before",))


def mean(settings: Settings) -> Recurrence:
    return Recurrence("mean", fmean)


def median(settings: Settings) -> Recurrence:
    return Recurrence("median", middle)
