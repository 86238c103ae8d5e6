"""The lab's day under several policies: waits, completions, crashes and fairness, with and without
fair share, played on the real daemon (about 12 minutes a run, `--at-once` of them side by side; as
root, since six users take part) or simulated.

`--checkout` plays an earlier version of CARMA, which has a `.venv` of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.harness import Report, markdown_table
from carma_simulator.experiment import Experiment, Physics
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carmad.config import Fairness, Settings
from lab.day import figures, play, statements, workload
from lab.day.figures import ROWS, Figures
from lab.day.statements import Tally
from lab.day.workload import NEEDS, SEED, SETS_UP_S
from lab.main import main

ROOT = Path(__file__).parents[2]
POLICIES = "exclusive,magm,lug,carma"


class Setup(NamedTuple):
    policy: str
    is_fair: bool

    @property
    def name(self) -> str:
        return self.policy if self.is_fair else f"{self.policy}, by arrival"

    @property
    def settings(self) -> str:
        return f'policy = "{self.policy}"\n[fairness]\nenabled = {str(self.is_fair).lower()}\n'


class Run(NamedTuple):
    figures: Figures
    statements: dict[str, Tally]  # by kind of statement


def measure(
    policies: str = POLICIES,
    runs: int = 3,
    seed: int = SEED,
    at_once: int = 4,
    simulated: bool = False,
    unfair: Annotated[bool, typer.Option(help="also without fair share")] = True,
    checkout: Path = ROOT,
    name: str = "",
) -> Report:
    """`name`: of the result files."""
    setups = [
        Setup(policy, is_fair)
        for policy in policies.split(",")
        for is_fair in ((True, False) if unfair else (True,))
    ]
    if simulated:
        found = {setup: [Run(_simulate(setup, seed), {})] for setup in setups}
    else:
        found = _play(setups, runs, seed, at_once, checkout)
    how = "simulated" if simulated else f"played {runs} times each on the daemon (the mean)"
    return Report(
        f"A lab's day (seed {seed}), {how}",
        (_table(found),) if simulated else (_table(found), _statements(found)),
        {"runs": [{"setup": setup.name, "runs": runs} for setup, runs in found.items()]},
        [] if checkout == ROOT else [f"of the CARMA at {_commit(checkout)}"],
        name=name or ("day_simulated" if simulated else "day"),
        kept=bool(name) or (policies, runs, seed, checkout) == (POLICIES, 3, SEED, ROOT),
    )


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def _simulate(setup: Setup, seed: int) -> Figures:
    day = workload.draw_day(seed)
    experiment = Experiment(
        workload.as_trace(day),
        parse(f"{figures.GPUS}xA100-40GB"),
        Settings(policy=setup.policy, fairness=Fairness(enabled=setup.is_fair)),
        estimator="history",
        interference="additive",
        physics=Physics(first_kernel_s=SETS_UP_S, oom_s=SETS_UP_S),
        as_daemon=True,
    )
    played = figures.simulated(day, simulate(experiment))
    return figures.of_day(played)


def _play(
    setups: Sequence[Setup], runs: int, seed: int, at_once: int, checkout: Path
) -> dict[Setup, list[Run]]:
    day = workload.draw_day(seed)
    play.add_users(sorted({each.user for each in day}))
    with (
        tempfile.TemporaryDirectory(prefix="carma-day-") as name,
        ThreadPoolExecutor(at_once) as pool,
    ):
        folder = Path(name)
        folder.chmod(0o755)

        def once(setup: Setup, run: int) -> Run:
            where = folder / f"{setup.policy}-{setup.is_fair:d}-{run}"
            its = play.Day(where, checkout.resolve(), setup.settings)
            try:
                played = its.play(day)
            except Exception:  # said at once, and not only when all others have ended
                traceback.print_exc()
                raise
            found = Run(figures.of_day(played), statements.judge(its.samples, played, its.began))
            print(f"{setup.name}, run {run + 1}: {found}", file=sys.stderr, flush=True)
            return found

        # Runs of one setup are not all beside the same others.
        asked = [(setup, run) for run in range(runs) for setup in setups]
        done = list(pool.map(lambda each: once(*each), asked))
    found: dict[Setup, list[Run]] = {setup: [] for setup in setups}
    for (setup, _), its in zip(asked, done, strict=True):
        found[setup].append(its)
    return found


def _table(found: dict[Setup, list[Run]]) -> str:
    cells = []
    for title, read, form in ROWS:
        means = [statistics.mean(read(run.figures) for run in runs) for runs in found.values()]
        cells.append([title, *(format(value, form) for value in means)])
    heads = ["the day", *(setup.name for setup in found)]
    return markdown_table(heads, cells, {*range(1, len(heads))})


def _statements(found: dict[Setup, list[Run]]) -> str:
    cells = []
    for kind in statements.KINDS:
        tallies = [[run.statements[kind] for run in runs] for runs in found.values()]
        cells.append([kind, *(str(Tally(*map(sum, zip(*its, strict=True)))) for its in tallies)])
    return markdown_table(["statement: came true", *(setup.name for setup in found)], cells, set())


if __name__ == "__main__":
    main("day", measure, needs=NEEDS)
