"""`carma demo` as a newcomer sees it: the whole replay, on emulated GPUs, without a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROWS = (
    "makespan",
    *(f"{what}, {how}" for what in ("wait", "execution", "JCT") for how in ("average", "p95")),
    "OOM crashes",
    "GPU memory used",
    "SM activity",
    "GPU energy",
)


def test_the_demo_ends_with_its_table_after_a_crash_that_it_recovered_from(tmp_path: Path) -> None:
    shown = subprocess.run(
        [Path(sys.executable).with_name("carma"), "demo"],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "COLUMNS": "200", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    ).stdout
    assert re.search(r"jobs done: exclusive \d+/20, magm \d+/20", shown), shown
    cells = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines()]
    figures = {line[1]: line[2:4] for line in cells if len(line) == 6}
    assert tuple(figures) == ROWS
    alone, together = (float(makespan.split()[0]) for makespan in figures["makespan"])
    assert together < alone
    assert int(figures["OOM crashes"][0]) == 0 < int(figures["OOM crashes"][1])
    told = shown[shown.index("$ carma why") :]
    assert "succeeded" in told
    assert "CUDA out of memory" in told
    assert "chosen" in told
