"""Replaces torch._dynamo, which takes as long to import as torch itself and is hardly needed.

When it makes fake tensors, PyTorch reads two settings from it and marks some functions. A stub
package provides just that. If more of it is used, as some libraries do, the real package is
imported then.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import torch

NAME = "torch._dynamo"
CONFIG = f"{NAME}.config"


class _Sparse(types.ModuleType):
    """A stub of the package."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else (lambda wrapped: wrapped)

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Called by optimizers in each step."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "config":  # it needs nothing of the package
            return importlib.import_module(CONFIG)
        return getattr(_real(), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the whole package if one of its modules is imported, and returns that module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(f"{NAME}.") or name == CONFIG:
            return None
        if not isinstance(sys.modules.get(NAME), _Sparse):
            return None
        _real()
        return importlib.machinery.ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: Any) -> Any:
        return sys.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        pass


def spare() -> None:
    """Call this before the first fake tensor is made."""
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = _Sparse()
        sys.meta_path.insert(0, _Finder())


def _real() -> Any:
    """The package itself, imported when it is first asked for. `from torch._dynamo import name` in
    a module that was given the stub asks twice."""
    if isinstance(sys.modules.get(NAME), _Sparse):
        for name in (NAME, CONFIG):
            sys.modules.pop(name, None)
        del torch._dynamo  # its own modules look for it there while they are imported
    return importlib.import_module(NAME)
