"""The tracer runs in the job's own Python, which may be 3.9."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "estimators" / "tracer"
OURS = {"find.py", "shell.py"}  # run by CARMA's own Python
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name not in OURS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_newer_than_python_3_9(path: Path) -> None:
    """Ruff knows the syntax, but not these: options of `dataclass` and of `zip`."""
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dataclass":
            assert {each.arg for each in node.keywords} <= {"frozen", "eq", "order"}, node.lineno
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "zip":
            assert not node.keywords, node.lineno  # strict
