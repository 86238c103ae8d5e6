"""Runs the code cells of a Jupyter notebook, without a kernel.

Lines that begin with `%` or `!` (magics, shell commands) are left out, as are cells in another
language. `display` does nothing, and `get_ipython()` returns an object that accepts any call.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

SAME = re.compile(r"%%(time|timeit|capture|prun|memit)\b.*")  # the rest of the cell is Python
MAGIC = re.compile(r"^(\s*)(?:[%!].*|(?:[\w, ]+=\s*)[!%].*|\?.*|[\w.]+\?+\s*)$", re.MULTILINE)


class _Shell:
    """What a script that was exported from a notebook calls for its magics."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Shell()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return None


def run(path: Path) -> None:
    """In a module `__main__` of its own, one cell after the other."""
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __file__=str(path),
        get_ipython=_Shell,
        display=lambda *_, **__: None,
    )
    sys.modules["__main__"] = main
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            source = cell["source"]
            text = python(source if isinstance(source, str) else "".join(source))
            name, flags = f"{path.name}, cell {number}", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            waits = eval(compile(text, name, "exec", flags), main.__dict__)
            if waits is not None:
                asyncio.run(waits)


def python(cell: str) -> str:
    """The cell's Python, on the same lines; "" if it is in another language."""
    text = cell.lstrip()
    if text.startswith("%%"):
        first, _, rest = text.partition("\n")
        return f"\n{python(rest)}" if SAME.fullmatch(first) else ""
    return MAGIC.sub(r"\1pass", cell)
