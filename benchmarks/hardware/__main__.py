"""Measure what CARMA relies on, costs and predicts, on the GPU of this machine.

WHAT is a stage (facts, cost, memory, loads, pairs, trace, faults), several with commas between, or
`all` of them in this order. Without a GPU: `plan`, how a short visit is spent; `page STAGE`, the
page made again from what was kept; `estimates`, what the memory estimators say of the runs of
stage `memory`.

Results are added to benchmarks/results/hardware/GPU/STAGE.jsonl at once, and a second run goes on
where the first ended. `--rehearse` goes through all without a GPU and keeps nothing there.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.hardware import stages
from benchmarks.harness.main import main
from benchmarks.harness.report import Report
from carmad.errors import CarmaError

stages.bring()


def measure(
    what: Annotated[str, typer.Argument(help="stages, all, plan, page or estimates")],
    stage: Annotated[str, typer.Argument(help="of page: a stage, or all")] = "all",
    minutes: Annotated[float, typer.Option(help="begin nothing that would end later")] = 9.5,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="without a GPU")] = False,
    device: Annotated[
        str, typer.Option(help="index or UUID of the GPU; of estimates: its name")
    ] = "",
    results: Annotated[
        Path | None, typer.Option(help="keep here, not in benchmarks/results")
    ] = None,
) -> Report:
    # Not above: what is missing on this machine must be told first.
    from benchmarks.hardware import campaign, plan

    if what == "plan":
        return plan.plan(rehearse)
    if what == "page":
        return campaign.pages(_stages(stage), results)
    if what == "estimates":
        return campaign.estimates(device, rehearse, results)
    names = _stages(what)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # and leave no MPS behind
    try:
        return campaign.run(names, minutes, rehearse=rehearse, device=device, results=results)
    except CarmaError as error:
        raise SystemExit(f"{error.message}\n{error.hint}") from None


def _stages(what: str) -> tuple[str, ...]:
    if what == "all":
        return stages.ORDER
    names = tuple(what.split(","))
    if unknown := set(names).difference(stages.ORDER):
        known = ", ".join(stages.ORDER)
        raise SystemExit(f"there is no stage {' '.join(unknown)}: there are {known}, and all")
    return names


if __name__ == "__main__":
    main("hardware", measure)
