"""The whole `carma submit` process against `python -c pass`, turn by turn."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.daemon import GPUS, SLEEPER, Daemon, plain_environment
from benchmarks.rows import Row

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
            elapsed(submit, env)
        ours, pythons = [], []
        for _ in range(PAIRS):
            pythons.append(elapsed(nothing, env) * 1000)
            ours.append(elapsed(submit, env) * 1000)
    ratios = sorted(one / other for one, other in zip(ours, pythons, strict=True))
    quartiles = (ratios[PAIRS // 4], ratios[3 * PAIRS // 4])
    note = f"median of {PAIRS} pairs; runs: quartiles"
    ratio = statistics.median(ratios)
    return [
        Row(GROUP, "`python -c pass`", statistics.median(pythons), "ms"),
        Row(GROUP, "`carma submit`", statistics.median(ours), "ms"),
        Row(GROUP, "ratio", ratio, "×", bound=6, spread=quartiles, note=note),
    ]


def elapsed(words: list[str], env: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun
