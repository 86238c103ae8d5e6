"""A run of the tests notices the processes that it leaves behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.daemon import ROOT

# As pytest does, in a process of its own: one that ends well, its own child, and one that is left.
RUN = """
import os, signal, subprocess
from tests import leftovers
leftovers.PATIENCE_S = 0.1
run = leftovers.Leftovers()
if run._group is None:
    raise SystemExit("no cgroup")
subprocess.run(["true"], check=True)
child = subprocess.Popen(["sleep", "600"])
print(run.named())
left = ["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"]
pid = int(subprocess.run(left, stdout=subprocess.PIPE, check=True).stdout)
print([one.split()[0] for one in run.named()] == [str(pid)])
os.kill(pid, signal.SIGKILL)
child.kill()
child.wait()
leftovers.PATIENCE_S = 3000
print(run.named())
run.leave()
print(run._group.exists())
"""


def test_what_is_left_behind_is_named_and_what_is_a_child_is_not() -> None:
    ran = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True)
    if "no cgroup" in ran.stderr:
        pytest.skip("no cgroup can be made here")
    assert ran.stdout.split() == ["[]", "True", "[]", "False"], ran.stderr
