"""Arrow: HF's data sets write their cache from Python, and map it by path from C."""

from __future__ import annotations

from typing import Any

MADE_FOR = "26"


def map_written(module: Any, tracer: Any) -> None:
    memory_map = module.memory_map

    def map_(path: Any, mode: str = "r") -> Any:
        return memory_map(tracer.path_for_kernel(path), mode)

    tracer.replace(module, memory_map=map_)


PATCHES = {"pyarrow": map_written}
