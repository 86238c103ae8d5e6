"""Measure what CARMA relies on, costs and predicts, on the GPU of this machine.

WHAT is a stage (facts, cost, memory, loads, pairs, suspend, trace, faults), several with commas
between, each with its minutes where `plan` says so (facts=5,cost=3.7), or `all` of them in this
order.
Without a GPU: `plan`, how a short visit is spent; `carry DIR`, the packages to bring; `page STAGE`,
the page made again from what was kept; `estimates`, what the memory estimators say of the runs of
stage `memory`.

Results are added to lab/results/hardware/GPU/STAGE.jsonl at once, and a second run goes on
where the first ended. `--rehearse` goes through all without a GPU and keeps nothing there.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import Report
from carmad.errors import CarmaError
from lab.hardware import stages
from lab.main import main

stages.bring()


def measure(
    what: Annotated[str, typer.Argument(help="stages, all, plan, carry, page or estimates")],
    stage: Annotated[
        str, typer.Argument(help="of page: a stage, or all; of carry: a folder")
    ] = "all",
    minutes: Annotated[
        float | None,
        typer.Option(help="begin nothing that would end later: 9.5; of plan: the visit's, 30"),
    ] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="without a GPU")] = False,
    device: Annotated[
        str, typer.Option(help="index or UUID of the GPU; of estimates: its name")
    ] = "",
    results: Annotated[Path | None, typer.Option(help="keep here, not in lab/results")] = None,
) -> Report:
    # Not above: what is missing on this machine must be told first.
    from lab.hardware import campaign, plan

    try:
        if what == "plan":
            return plan.plan(rehearse, minutes or plan.VISIT_MIN)
        if what == "carry":
            from lab.hardware.carry import carry

            return carry(Path("wheels" if stage == "all" else stage))
        if what == "page":
            return campaign.pages(tuple(_stages(stage)), results)
        if what == "estimates":
            return campaign.estimates(device, rehearse, results)
        shares = _stages(what)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # leave no MPS behind
        return campaign.run(
            tuple(shares),
            minutes or plan.COMMAND_MIN,
            rehearse=rehearse,
            device=device,
            results=results,
            shares={name: share for name, share in shares.items() if share},
        )
    except CarmaError as error:
        raise SystemExit(f"{error.message}\n{error.hint}") from None


def _stages(what: str) -> dict[str, float]:
    """Their minutes by name, as `plan` prints them: `facts=5,cost=3.7`; 0 where none are given."""
    if what == "all":
        return dict.fromkeys(stages.ORDER, 0.0)
    found = {}
    for word in what.split(","):
        name, _, share = word.partition("=")
        if name not in stages.ORDER:
            known = ", ".join(stages.ORDER)
            raise SystemExit(f"there is no stage {name}: there are {known}, and all")
        try:
            found[name] = float(share or 0)
        except ValueError:
            raise SystemExit(f"{word}: the minutes of a stage are a number") from None
    return found


if __name__ == "__main__":
    main("hardware", measure)
