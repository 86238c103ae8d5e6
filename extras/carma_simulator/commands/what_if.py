"""`carma simulate --what-if`: what other policies would have made of the server's last days, for
programs, such as the page. It ends with its parent, whose end of its standard input it sees."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from carmad.errors import CarmaError
from cli import parse

if TYPE_CHECKING:
    from carma_simulator.experiment import Experiment
    from carma_simulator.report.measures import Run
    from carma_simulator.run import Progress

PROCESSES = 1  # jobs need the others
LOWEST_PRIORITY = 19


def what_if(days: int, policies: Sequence[str]) -> int:
    """Prints a line of JSON whenever there is something new: `share`, how far it is (0 to 1);
    `runs` and `notes`; the `report`, an HTML page, or a `hint` why there is none; or `error` and
    `hint`. It has the lowest priority, and ends when its standard input is closed.
    """
    os.nice(LOWEST_PRIORITY)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        found, notes = _simulate(days, policies)
        tell(runs=[_row(run) for run in found], notes=notes)
        tell(**_report(found))
    except CarmaError as error:
        tell(error=error.message, hint=error.hint)
        return 1
    return 0


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: at its end, Python waits for that
        pass
    os._exit(1)


def tell(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def _simulate(days: int, policies: Sequence[str]) -> tuple[Sequence[Run], Sequence[str]]:
    """How it was, then each policy, the one in force first; and what is to be said about them."""
    from dataclasses import replace
    from pathlib import Path

    from carma_simulator import recorded
    from carma_simulator.report.measures import runs
    from carma_simulator.sweep import Cache, sweep
    from carmad import configfile, paths
    from cli import client

    past = recorded.from_history(client.get, since=parse.since(f"{days}d"))
    own = past.experiment
    named = dict.fromkeys([own.settings.policy, *policies])
    chosen = [configfile.change(own.settings, [f"policy={name}"]) for name in named]
    experiments = [replace(own, settings=each) for each in chosen]
    watch = Watched(len(experiments))
    cache = Cache(Path(paths.user_cache_dir()) / "simulations")
    made = list(sweep(experiments, PROCESSES, cache, watch))
    return runs([(own, past.outcome), *made]), past.notes


class Watched:
    """Tells how far all simulations together are."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._shares: dict[int, float] = {}

    def __call__(self, experiment: Experiment, now: Progress | None) -> None:
        self._shares[id(experiment)] = 1.0 if now is None else now.ended / max(1, now.jobs)
        tell(share=sum(self._shares.values()) / self._number)


def _row(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "policy": run.outcome.policy,
        "jct_s": run.figures.jct.mean if run.figures.jct else None,
        "makespan_s": run.figures.makespan_s,
        "oom": run.figures.oom_crashes,
        "jobs": len(run.outcome.jobs),
    }


def _report(found: Sequence[Run]) -> dict[str, str]:
    from carma_simulator.report.export import page

    try:
        return {"report": page(found)}
    except CarmaError as error:  # what draws is not installed
        return {"hint": f"{error.message}: {error.hint}"}
