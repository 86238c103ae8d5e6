"""The duration that the user declared (`--expect`), and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carmad.plugin import History, Job, Model, Prediction, Settings


@dataclass(frozen=True, slots=True)
class Declared:
    name: str = "declared"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return said(job)


def said(job: Job) -> Prediction | None:
    expected_s = job.spec.expected_s
    return None if expected_s is None else Prediction(expected_s, "declared")


def declared(settings: Settings) -> Declared:
    return Declared()
