"""`python -m benchmarks.soak`: thousands of modelled lives with every fault, and hundreds of kills
of a real daemon under load. Then the reckoning: 0 lost, 0 doubled, 0 invariants broken.

A seed is one life of `tests.model`, and the same each time. A storm (`tests.storm`) is not quite:
its dice are, what the machine does meanwhile is not.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.rows import RESULTS, circumstances
from carmad.sim.report import markdown
from tests.daemon import NO_KERNELS, Carmad
from tests.model import live_through
from tests.storm import GPUS, Storm

SEEDS, KILLS = 10_000, 500
SETTLE_S = 900.0  # a deadline for what was queued when the storm was over


@dataclass
class Lives:
    seeds: int = 0
    jobs: int = 0
    attempts: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)  # by seed
    seconds: float = 0.0


@dataclass
class Reckoning:
    seed: int
    kills: int = 0
    jobs: int = 0
    failed: str = ""
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser("benchmarks.soak")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--kills", type=int, default=KILLS, help="of the real daemon")
    parser.add_argument("--storm-seed", type=int, default=13)
    options = parser.parse_args()
    facts = circumstances()
    lives = live(range(options.first, options.first + options.seeds))
    print(_of_lives(lives), flush=True)
    reckoning = kill(options.kills, options.storm_seed)
    print(_of_kills(reckoning))
    if options.seeds >= SEEDS and options.kills >= KILLS:
        _save(facts, lives, reckoning)
    return 1 if lives.failed or reckoning.failed else 0


def live(seeds: range) -> Lives:
    begun, lives = time.monotonic(), Lives()
    logging.disable(logging.CRITICAL)  # full disks and broken plugins, by the thousand
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for seed, (jobs, attempts, seen, failed) in pool.imap_unordered(_life, seeds, 20):
            lives.seeds += 1
            lives.jobs += jobs
            lives.attempts += attempts
            lives.seen.update(seen)
            if failed:
                lives.failed[seed] = failed
    logging.disable(logging.NOTSET)
    lives.seconds = time.monotonic() - begun
    return lives


def _life(seed: int) -> tuple[int, tuple[int, int, Counter[str], str]]:
    try:
        model = live_through(seed)
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        return seed, (0, 0, Counter(), traceback.format_exc())
    return seed, (len(model.disk.jobs), len(model.attempts), model.seen, "")


def kill(kills: int, seed: int) -> Reckoning:
    begun, reckoning = time.monotonic(), Reckoning(seed)
    if not kills:
        return reckoning
    with tempfile.TemporaryDirectory(prefix="carma-soak-") as folder:
        daemon = Carmad(Path(folder), f"{GPUS}xA100-40GB", **NO_KERNELS)
        storm = Storm(daemon, seed)
        try:
            storm.rage(kills)
            storm.settle(SETTLE_S)
            daemon.stop()
            storm.check()
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            reckoning.failed = traceback.format_exc()
            print(daemon.log.read_text()[-8000:], file=sys.stderr)
        finally:
            daemon.clear_away()
        reckoning.kills, reckoning.jobs = storm.kills, len(storm.acknowledged)
    reckoning.seconds = time.monotonic() - begun
    return reckoning


def _of_lives(lives: Lives) -> str:
    rows = [(what, f"{count:,}") for what, count in sorted(lives.seen.items())]
    text = (
        f"{lives.seeds:,} lives: {lives.jobs:,} jobs, {lives.attempts:,} attempts,"
        f" {len(lives.failed)} failed; {lives.seconds:.0f} s\n\n"
        + markdown.table(("fault", "times"), rows)
    )
    if lives.failed:
        first = min(lives.failed)
        text += (
            f"\n\nThe first that failed, again: `python -m benchmarks.soak --first {first}"
            f" --seeds 1 --kills 0`\n\n```\n{lives.failed[first]}```"
        )
    return text


def _of_kills(reckoning: Reckoning) -> str:
    text = (
        f"{reckoning.kills} kills (storm seed {reckoning.seed}), {reckoning.jobs:,} jobs accepted;"
        f" {reckoning.seconds:.0f} s. "
    )
    if reckoning.failed:
        return text + f"The reckoning failed:\n\n```\n{reckoning.failed}```"
    return text + "0 lost, 0 doubled: each job's own record and the database tell one story."


def _save(facts: dict[str, str], lives: Lives, reckoning: Reckoning) -> None:
    file = RESULTS / "soak.json"
    found = {"facts": facts, "lives": asdict(lives), "kills": asdict(reckoning)}
    file.write_text(json.dumps(found, indent=1) + "\n")
    page = [
        "# Soak",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "- `python -m benchmarks.soak`",
        "",
        "## Modelled lives, with faults",
        "",
        _of_lives(lives),
        "",
        "## A real daemon on emulated GPUs, killed again and again",
        "",
        _of_kills(reckoning),
        "",
    ]
    file.with_suffix(".md").write_text("\n".join(page))
    print(f"kept in {file} and the .md beside it")


if __name__ == "__main__":
    sys.exit(main())
