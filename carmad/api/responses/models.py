"""Answers about models, and the past jobs that they are trained on."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class ModelOut(TypedDict):
    name: str
    kind: str  # tree, boosted, additive, lookup
    about: str  # what it predicts
    source: str  # what it was trained on
    rows: int
    trained_at: str | None  # null: it came with CARMA
    errors: dict[str, float]  # held-out measures, and what the last model's were since
    importance: dict[str, float]  # of each feature, the greatest first


class TrainingOut(TypedDict):
    """Of models from this server's own past jobs."""

    every_days: float  # 0: only when asked for
    lacking: str  # packages that it needs; empty: none
    under_way: bool
    last_at: str | None
    last_words: list[str]  # of this daemon's last training


class ModelsOut(TypedDict):
    schema: int
    models: list[ModelOut]
    training: TrainingOut


class BinOut(TypedDict):
    label: str
    score: float


class CurveOut(TypedDict):
    """What each bin of one feature adds to the prediction."""

    feature: str
    bins: list[BinOut]


class ModelDetailOut(TypedDict):
    schema: int
    model: ModelOut
    tree: str | None  # a decision tree, a condition or class a line
    curves: list[CurveOut]  # of an additive model; for users, without other people's names
    link: str | None  # log: scores add up to the logarithm


class PastOut(TypedDict):
    """Rows of the table that models are trained on; see `carma history --table`."""

    schema: int
    rows: list[dict[str, Any]]
