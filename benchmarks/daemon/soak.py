"""Thousands of modelled lives with every fault, and hundreds of kills of a real daemon under load.

In the end nothing may be lost, doubled or broken. A seed is one life of `tests.model`, and the same
each time. A storm (`tests.storm`) is so only in its dice, not in what the machine does meanwhile.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import RESULTS
from benchmarks.harness import circumstances, list_facts, markdown_table, write
from tests.daemon import NO_KERNELS, Carmad
from tests.model import live_through
from tests.storm import GPUS, SUSPENDS, Storm

SEEDS, KILLS = 10_000, 500


@dataclass
class Lives:
    seeds: int = 0
    jobs: int = 0
    attempts: int = 0
    seen: Counter[str] = field(default_factory=Counter)  # faults, as they struck
    failed: dict[int, str] = field(default_factory=dict)  # by seed
    seconds: float = 0.0

    def page(self) -> str:
        rows = [(what, f"{count:,}") for what, count in sorted(self.seen.items())]
        text = (
            f"{self.seeds:,} lives, {self.jobs:,} jobs, {self.attempts:,} attempts; in"
            f" {len(self.failed)} of them something was lost, doubled or broken."
            f" {self.seconds:.0f} s.\n\n" + markdown_table(("fault", "times"), rows)
        )
        if self.failed:
            first = min(self.failed)
            again = f"python -m benchmarks.daemon.soak --first {first} --seeds 1 --kills 0"
            text += f"\n\nThe first, again: `{again}`\n\n```\n{self.failed[first]}```"
        return text


@dataclass
class Kills:
    seed: int
    kills: int = 0
    servers: int = 0
    suspensions: int = 0
    jobs: int = 0
    failed: str = ""
    seconds: float = 0.0

    def page(self) -> str:
        text = (
            f"{self.kills} kills (`--storm-seed {self.seed}`), and {self.servers} of its fork"
            f" server; {self.jobs:,} jobs accepted, {self.suspensions:,} times suspended;"
            f" {self.seconds:.0f} s. "
        )
        if self.failed:
            return text + f"The reckoning failed:\n\n```\n{self.failed}```"
        return text + "0 lost, 0 doubled: the jobs' own records and the database tell one story."


TITLES = {
    "lives": "Modelled lives, with faults",
    "kills": "A real daemon on emulated GPUs under load, killed again and again",
}


def soak(
    seeds: Annotated[int, typer.Option(help="how many lives; 0: none")] = SEEDS,
    first: Annotated[int, typer.Option(help="the first one's seed")] = 0,
    kills: Annotated[int, typer.Option(help="of the real daemon; 0: none")] = KILLS,
    storm_seed: int = 13,
) -> None:
    """Exits with 1 if anything was lost, doubled or broken."""
    failed = False
    if seeds:
        facts = circumstances()
        lives = live(range(first, first + seeds))
        print(lives.page(), flush=True)
        failed |= bool(lives.failed)
        if seeds >= SEEDS:
            keep("lives", facts, lives)
    if kills:
        facts = circumstances()
        killed = kill(kills, storm_seed)
        print(killed.page(), flush=True)
        failed |= bool(killed.failed)
        if kills >= KILLS:
            keep("kills", facts, killed)
    sys.exit(failed)


def live(seeds: range) -> Lives:
    begun, lives = time.monotonic(), Lives()
    logging.disable(logging.CRITICAL)  # full disks and broken plugins, by the thousand
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for seed, jobs, attempts, seen, failed in pool.imap_unordered(_life, seeds, 20):
            lives.seeds += 1
            lives.jobs += jobs
            lives.attempts += attempts
            lives.seen.update(seen)
            if failed:
                lives.failed[seed] = failed
            if lives.seeds % 1000 == 0:
                print(f"{lives.seeds:,} lives, {len(lives.failed)} failed", file=sys.stderr)
    logging.disable(logging.NOTSET)
    lives.seconds = time.monotonic() - begun
    return lives


def _life(seed: int) -> tuple[int, int, int, Counter[str], str]:
    try:
        model = live_through(seed)
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        return seed, 0, 0, Counter(), traceback.format_exc()
    return seed, len(model.disk.jobs), len(model.attempts), model.seen, ""


def kill(kills: int, seed: int) -> Kills:
    begun, found = time.monotonic(), Kills(seed)
    with tempfile.TemporaryDirectory(prefix="carma-soak-") as folder:
        daemon = Carmad(Path(folder), f"{GPUS}xA100-40GB", **NO_KERNELS, **SUSPENDS)
        storm = Storm(daemon, seed)
        try:
            storm.rage(kills)
            storm.settle()
            daemon.stop()
            storm.check()
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            found.failed = traceback.format_exc()
            print(daemon.log.read_text()[-8000:], file=sys.stderr)
        finally:
            daemon.clear_away()
        found.kills, found.servers = storm.kills, storm.servers
        found.suspensions = storm.suspensions
        found.jobs = len(storm.acknowledged)
    found.seconds = time.monotonic() - begun
    return found


def keep(part: str, facts: dict[str, str], found: Lives | Kills) -> None:
    """Each part with its own date and commit: they take long, and may be run apart."""
    file = RESULTS / "soak.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept[part] = {"facts": facts, "found": vars(found), "page": found.page()}
    page = ["# Soak: `python -m benchmarks.daemon.soak`"]
    for each in (name for name in TITLES if name in kept):
        page += [f"## {TITLES[each]}", list_facts(kept[each]["facts"]), kept[each]["page"]]
    write(RESULTS, "soak", "\n\n".join(page) + "\n", kept)


if __name__ == "__main__":
    typer.run(soak)
