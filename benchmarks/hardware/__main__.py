"""Measure what CARMA relies on, costs and foretells, on the GPU of this machine.

WHAT is a stage (facts, cost, memory, loads, pairs, trace, faults), `all` of them in this order, or
`plan`: how a short visit is spent; `page STAGE`: make the page again from what was kept, without a
GPU; `estimates`: what the memory estimators say of the runs of stage `memory`, without a GPU.

Results are added to benchmarks/results/hardware/GPU/STAGE.jsonl at once, and a second run goes on
where the first ended. `--rehearse` goes through all without a GPU and keeps nothing there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.hardware import stages
from benchmarks.harness.main import main
from benchmarks.harness.report import Report

stages.bring()


def measure(
    what: Annotated[str, typer.Argument(help="a stage, all, plan, page or estimates")],
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
    return campaign.run(
        _stages(what), what == "all", minutes, rehearse=rehearse, device=device, results=results
    )


def _stages(what: str) -> tuple[str, ...]:
    if what == "all":
        return stages.ORDER
    if what in stages.ORDER:
        return (what,)
    raise SystemExit(f"there is no stage {what}: it is one of {', '.join(stages.ORDER)}, or all")


if __name__ == "__main__":
    main("hardware", measure)
