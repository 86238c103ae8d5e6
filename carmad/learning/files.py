"""Models as files: their text, and those that are shipped with CARMA's policies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, TypeVar

from pydantic import Discriminator, TypeAdapter

from carmad.learning.models import Model

M = TypeVar("M", bound=Model)
_adapter = cache(TypeAdapter)  # made when first needed: few programs read models


def decode_model(text: str) -> Model:
    adapter: TypeAdapter[Model] = _adapter(Annotated[Model, Discriminator("kind")])
    return adapter.validate_json(text)


@cache
def load_shipped() -> Mapping[str, Model]:
    """By name, as policies/POLICY/NAME.json."""
    return {
        file.name.removesuffix(".json"): decode_model(file.read_text(encoding="utf-8"))
        for policy in files("policies").iterdir()
        if policy.is_dir()
        for file in policy.iterdir()
        if file.name.endswith(".json")
    }


def find_model(name: str, kind: type[M], trained: Mapping[str, Model]) -> M:
    """The one trained here, or else the shipped one."""
    either = trained.get(name), load_shipped()[name]
    return next(model for model in either if isinstance(model, kind))
