"""What is counted of the tests of tools for Slurm."""

from __future__ import annotations

from pathlib import Path

from lab.tools.__main__ import _outcome
from lab.tools.known import TOOLS, Tool

REPORT = """<testsuites><testsuite>
<testcase classname="t.a" name="ok"/>
<testcase classname="t.a" name="bad"><failure/></testcase>
<testcase classname="t.b" name="worse"><error/></testcase>
<testcase classname="t.b" name="other"><skipped/></testcase>
</testsuite></testsuites>
"""


def test_what_fails_is_explained_or_said_not_to_be(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(REPORT)
    tool = Tool("x", "1", "x", (), (), known={"bad": "it is known"}, left_out="the rest")
    found = _outcome(tool, tmp_path / "r.xml")
    assert (found.passed, found.run, found.skipped) == (1, 3, 1)
    assert found.failed == ("t.a.bad", "t.b.worse")
    assert found.why == "bad: it is known; worse: not explained; the rest"


def test_each_tool_is_installed_at_the_version_that_the_table_names() -> None:
    for tool in TOOLS:
        assert any(need.endswith(f"=={tool.version}") for need in tool.requirements), tool.name
