"""A trace's result: the only value passed from the job's Python to the estimators."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

PARTS = ("parameters", "gradients", "optimizer", "activations", "workspace", "fragmentation")


@dataclass(frozen=True)
class Layer:
    """A module that has no children or parameters of its own, in the order of its first call."""

    kind: str  # its class: Conv2d, Linear, GELU
    activations: int  # elements it puts out per sample
    parameters: int
    inner: bool = False  # it has children, which are layers of their own


@dataclass(frozen=True)
class Report:
    """Memory of one GPU in bytes, without the CUDA context and the libraries."""

    torch: str  # its version
    steps: int  # optimizer steps seen; fewer than 2 when the script ended by itself
    floor: int  # most bytes that were live at once
    reserved: int  # most that the caching allocator held, workspaces included
    parts: dict[str, int]  # of `reserved` at that moment, by PARTS
    autotune: int  # what cudnn.benchmark may take above `reserved`, earlier; 0 when it is off
    faketensor: int  # most live bytes by the first backward's end: the paper's FakeTensor reading
    batch: int  # the first dimension of what the model was called with
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]  # what was left out or assumed
    seconds: float  # from the tracer's start to its end

    def dumps(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def refusal(why: str) -> bytes:
    """What is sent instead of a report."""
    return json.dumps({"refused": why}).encode()


def loads(text: bytes) -> Report | str:
    """The report, or why there is none. Raises ValueError for anything else."""
    try:
        fields: dict[str, Any] = json.loads(text)
        if "refused" in fields:
            return str(fields["refused"])
        fields["layers"] = tuple(Layer(**layer) for layer in fields["layers"])
        fields["notes"] = tuple(fields["notes"])
        return Report(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a tracer's report: {error}") from error
