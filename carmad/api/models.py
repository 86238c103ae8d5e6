"""From models to the wire. Pure."""

from __future__ import annotations

from carmad.api.responses import SCHEMA
from carmad.api.responses.models import BinOut, CurveOut, ModelDetailOut, ModelOut
from carmad.api.times import iso
from carmad.models import Additive, Model, Shape, Tree

DIGITS = 6  # significant ones


def model_out(name: str, model: Model) -> ModelOut:
    return {
        "name": name,
        "kind": model.kind,
        "about": model.about,
        "source": model.source,
        "rows": model.rows,
        "trained_at": iso(model.trained_at or None),
        "errors": {what: _short(error) for what, error in model.errors},
        "importance": {feature: _short(share) for feature, share in model.importance()},
    }


def detail_out(name: str, model: Model, see_all: bool) -> ModelDetailOut:
    """`see_all`: an admin, who may see the names of users and of their jobs."""
    shapes = model.shapes if isinstance(model, Additive) else ()
    return {
        "schema": SCHEMA,
        "model": model_out(name, model),
        "tree": model.text() if isinstance(model, Tree) else None,
        "curves": [_curve(shape) for shape in shapes if see_all or not shape.bins.categories],
        "link": model.link if isinstance(model, Additive) else None,
    }


def _curve(shape: Shape) -> CurveOut:
    bins: list[BinOut] = [{"label": label, "score": _short(score)} for label, score in shape.rows()]
    return {"feature": shape.name, "bins": bins}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
