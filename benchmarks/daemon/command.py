"""The whole `carma submit` process against `python -c pass`, turn by turn."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.daemon.carmad import GPUS, SLEEPER, Daemon, plain_environment
from benchmarks.harness.rows import Row
from benchmarks.harness.timing import milliseconds

GROUP = "carma submit"
PAIRS = 31
CARMA = str(Path(sys.executable).parent / "carma")


def measure() -> list[Row]:
    with Daemon() as daemon:
        for _ in range(GPUS):
            daemon.run(SLEEPER, exclusive=True)
        env = plain_environment() | {"CARMA_SOCKET": daemon.socket}
        submit = [CARMA, "submit", "--output", "/dev/null", "--", "/bin/true"]
        nothing = [sys.executable, "-c", "pass"]
        for _ in range(3):  # writes the bytecode that an installation comes with
            run_ms(submit, env)
        ours, pythons = [], []
        for _ in range(PAIRS):
            pythons.append(run_ms(nothing, env))
            ours.append(run_ms(submit, env))
    ratios = sorted(one / other for one, other in zip(ours, pythons, strict=True))
    quartiles = (ratios[PAIRS // 4], ratios[3 * PAIRS // 4])
    note = f"median of {PAIRS} pairs; runs: quartiles"
    ratio = statistics.median(ratios)
    return [
        Row(GROUP, "`python -c pass`", statistics.median(pythons), "ms"),
        Row(GROUP, "`carma submit`", statistics.median(ours), "ms"),
        Row(GROUP, "ratio", ratio, "×", bound=6, spread=quartiles, note=note),
    ]


def run_ms(words: list[str], env: dict[str, str]) -> float:
    return milliseconds(
        lambda: subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
    )
