"""What several pages need: cells of tables, and the comments behind names."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any


def one_line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")


def comments_of(module: Any) -> dict[tuple[str, str], str]:
    """The `# …` behind each field, by class and field."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            match statement:
                case (
                    ast.AnnAssign(target=ast.Name(id=name))
                    | ast.Assign(targets=[ast.Name(id=name)])
                ):
                    line = lines[statement.lineno - 1][statement.end_col_offset or 0 :]
                    found[node.name, name] = line.partition("#")[2].strip()
    return found
