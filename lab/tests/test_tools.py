"""What is counted of the tests of tools for Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lab.tools.__main__ import _outcome, read_report, state_of
from lab.tools.known import Tool

REPORT = """<testsuites><testsuite>
<testcase classname="t.a" name="ok"/>
<testcase classname="t.a" name="bad"><failure/></testcase>
<testcase classname="t.b" name="worse"><error/></testcase>
<testcase classname="t.b" name="other"><skipped/></testcase>
</testsuite></testsuites>
"""


def test_what_fails_is_explained_and_what_was_modified_is_named(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.touch()
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run(["git", *words], cwd=tmp_path, env=env, check=True)
    (tmp_path / "r.xml").write_text(REPORT)
    tool = Tool("x", "x", (), (), known={"bad": "it is known"}, left_out="the rest")
    found = _outcome(tool, state_of(tmp_path), read_report(tmp_path / "r.xml"))
    assert (found.tag, found.modified) == ("v1", ())
    assert (found.passed, found.run, found.skipped) == (1, 3, 1)
    assert found.failed == {"it is known": ["bad"], "not explained": ["worse"]}
    assert found.why == "bad: it is known; worse: not explained; the rest"
    source.write_text("changed")
    (tmp_path / "conftest.py").touch()
    assert state_of(tmp_path).modified == ("x.py", "conftest.py")
