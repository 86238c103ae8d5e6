"""Frameworks other than PyTorch, whose memory a trace cannot see."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .answering import is_own_file

FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy", "paddle": "Paddle"}
ADVICE = (
    "only PyTorch is traced: give --gpu-mem, or submit it as it is, and CARMA learns its memory "
    "when it runs"
)
_TORCH = re.compile(rb"\btorch\b")


def find_imported() -> str:
    """The first of these frameworks that the program has imported; "" if there is none."""
    for name, framework in FRAMEWORKS.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            return framework
    return ""


def find_named(script: str) -> str:
    """The first of these frameworks that the text of the script imports; "" if there is none."""
    try:
        nodes = list(ast.walk(ast.parse(Path(script).read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return ""
    named = (FRAMEWORKS.get(name) for node in nodes for name in list_imports(node))
    return next(filter(None, named), "")


def list_imports(node: ast.AST) -> list[str]:
    """The packages that a statement imports, outside the script's own."""
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    return [name.partition(".")[0] for name in names]


def is_torch_named() -> bool:
    """Whether a module of the program's own names torch, or a library has imported it."""
    torch = sys.modules["torch"]
    others = ("torch", __name__.partition(".")[0], "__mp_main__")  # the last: who began this
    return any(
        _names_torch(module, torch)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in others
    )


def _names_torch(module: ModuleType, torch: Any) -> bool:
    found = vars(module) if hasattr(module, "__dict__") else {}
    path = found.get("__file__")
    if not isinstance(path, str) or not is_own_file(path):
        return found.get("torch") is torch
    try:
        return bool(_TORCH.search(Path(path).read_bytes()))
    except OSError:
        return True
