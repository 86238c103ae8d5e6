"""The troubles that are played again, and the table of what was mended."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lab.troubles.__main__ import ROOT, Trouble, _try, read_entries, read_troubles


def test_every_test_of_the_tables_is_there() -> None:
    named = {test for entry in read_entries() for test in entry.tests}
    named |= {trouble.test for trouble in read_troubles() if trouble.test}
    there: set[str] = set()
    for file in {test.partition("::")[0] for test in named}:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        there.add(file)
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        there |= {f"{file}::{function.name}" for function in functions}
    assert named <= there


def test_each_trouble_is_told_once_and_has_a_script_or_a_test() -> None:
    troubles = read_troubles()
    assert len({each.row for each in troubles}) == len(troubles) == 36
    assert all(bool(each.run) != bool(each.test) for each in troubles)
    assert all(each.says or each.hides for each in troubles if each.run)


@pytest.mark.parametrize(
    ("says", "hides", "right"),
    [(("b",), (), True), (("x",), (), False), (("a",), ("b",), False), ((), ("x",), True)],
)
def test_a_case_is_right_if_it_says_what_it_must_and_nothing_else(
    tmp_path: Path, says: tuple[str, ...], hides: tuple[str, ...], right: bool
) -> None:
    one = Trouble(1, "here", "none", "echo a; echo b >&2", says, hides)
    assert _try(one, tmp_path / "1", {}).is_right == right
