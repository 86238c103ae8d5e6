"""`carma demo suspend` as somebody sees it who has never suspended a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CARMA = str(Path(sys.executable).with_name("carma"))


@pytest.mark.long
def test_nobody_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    words = [CARMA, "demo", "suspend"]
    shown = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    *_, last = shown.stdout.splitlines()
    assert re.match(r"Nobody was killed: 5 jobs|All 5 jobs ended well", last), shown.stdout
    notebook = next(line for line in shown.stdout.splitlines() if line.startswith("notebook"))
    assert {"0", "░"} <= set(notebook), notebook
