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
    """The comment of each field, behind it or in the lines above it, by class and field."""
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
                    first, last = statement.lineno - 1, (statement.end_lineno or 0) - 1
                    above = first
                    while lines[above - 1].lstrip().startswith("# "):
                        above -= 1
                    behind = lines[last][statement.end_col_offset or 0 :]
                    comments = (line.partition("#")[2] for line in (*lines[above:first], behind))
                    found[node.name, name] = " ".join(map(str.strip, comments)).strip()
    return found
