"""Runs stages on the GPU of this machine, notes where and when, and makes their pages."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness import Report, bullets, circumstances
from carmad.errors import CarmaError
from lab import RESULTS
from lab.hardware import stages
from lab.hardware.janitor import looked_after
from lab.hardware.visit import VISITS, Entry, Stage, Visit

STAGE_MIN = 9.0  # of one stage, at most
ENDING_S = 15.0  # to stop processes and write the page


def run(
    names: Sequence[str],
    minutes: float,
    *,
    rehearse: bool,
    device: str = "",
    results: Path | None = None,
    shares: Mapping[str, float] | None = None,
) -> Report:
    """Each of the stages, until so many minutes have passed, which are shared out by `shares`, or
    as the stages are expected to take them: what one leaves is for the next. Of several, one that
    fails does not keep the others from being measured: what they raised is raised at the end."""
    until = time.monotonic() + 60 * minutes - ENDING_S
    here, lacking = stages.loaded(names)
    if not here:
        raise SystemExit("\n\n".join(lacking))
    weights = {stage.name: stage.minutes for stage in here} | dict(shares or {})
    done, errors = [], []
    with looked_after(), _visit(rehearse, device, results) as (visit, facts):
        for n, stage in enumerate(here):
            now = time.monotonic()
            if now >= until:
                break
            share = weights[stage.name] / sum(weights[each.name] for each in here[n:])
            end = now + min(60 * STAGE_MIN, share * (until - now))
            try:
                done.append(_run(stage, replace(visit, stage=stage.name, until=end), facts))
            except Exception as error:
                if len(here) == 1:
                    raise
                errors.append(error)
                print(f"stage {stage.name} failed: {error!r}", file=sys.stderr, flush=True)
    if errors:
        raise ExceptionGroup("stages failed; what the others measured is kept", errors)
    blocks = [block for each in done for block in (f"# {each.title}", *each.blocks)]
    left_out = ["## Left out", bullets(lacking)] if lacking else []
    return Report(facts["gpu"], [*blocks, *left_out], {}, kept=False)


def _run(stage: Stage, visit: Visit, facts: Entry) -> Report:
    begun = time.monotonic()
    notes = replace(visit, stage=VISITS)
    facts = {"stage": stage.name, **circumstances(), **facts}
    key = f"{facts['date']} {stage.name}"
    notes.keep(key, facts)
    try:
        stage.measure(visit)
    finally:
        notes.keep(key, {**facts, "minutes": round((time.monotonic() - begun) / 60, 2)})
    return _page(stage, visit)


@contextlib.contextmanager
def _visit(rehearse: bool, device: str, results: Path | None) -> Iterator[tuple[Visit, Entry]]:
    """Without a stage. A rehearsal without `results` is forgotten."""
    from lab.hardware.telemetry import here

    try:
        found = here(device, rehearse)
    except CarmaError as error:
        raise SystemExit(f"{error.message}\n{error.hint}\nWithout a GPU: --rehearse") from None
    if found.in_use:
        raise SystemExit(
            f"GPU {found.gpu.index} is in use: {found.in_use}\n"
            "What others run there would be measured, too: wait until it is idle, or name another"
            " GPU with --device"
        )
    facts = {"gpu": found.gpu.name, "driver": found.driver, "torch": _torch()}
    with tempfile.TemporaryDirectory(prefix="carma-rehearsal-") as forgotten:
        root = results or (Path(forgotten) if rehearse else _kept())
        earlier = None if rehearse or root == _kept() else _kept() / found.folder
        yield Visit(root / found.folder, "", rehearse, gpu=found.gpu.id, earlier=earlier), facts


def _kept() -> Path:
    return RESULTS / "hardware"


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def pages(names: Sequence[str], results: Path | None) -> Report:
    """Of every GPU that has entries of these stages. Raises CarmaError if none has."""
    folder = results or _kept()
    kept = [(name, each) for name in names for each in sorted(folder.glob(f"*/{name}.jsonl"))]
    if not kept:
        raise CarmaError(
            f"{folder} has no results of {' and '.join(names)}",
            f"measure first: python -m lab.hardware {','.join(names)}; or name the folder"
            " that has a folder for each GPU: --results",
        )
    here, lacking = stages.loaded(dict.fromkeys(name for name, _ in kept))
    if not here:
        raise SystemExit("\n\n".join(lacking))
    blocks = []
    for stage in here:
        for entries in (each for name, each in kept if name == stage.name):
            page = _page(stage, Visit(entries.parent, stage.name, rehearse=False))
            blocks += [f"# {entries.parent.name}: {page.title}", *page.blocks]
    left_out = ["## Left out", bullets(lacking)] if lacking else []
    return Report("Pages made again", [*blocks, *left_out], {}, kept=False)


def _page(stage: Stage, visit: Visit) -> Report:
    """STAGE.md beside the entries, with where and when they were measured."""
    page = Report(stage.about, stage.blocks(visit), {})
    text = page.page({"measured": "; ".join(_visits(visit)) or "nobody noted where and when"})
    (visit.folder / f"{stage.name}.md").write_text(text)
    return page


def _visits(visit: Visit) -> list[str]:
    return [
        "{date} on {gpu}, driver {driver}, torch {torch}, commit {commit}".format(**facts)
        + (f", {facts['minutes']:g} minutes" if "minutes" in facts else ", cut short")
        for facts in visit.entries(VISITS).values()
        if facts["stage"] == visit.stage
    ]


def estimates(gpu: str, rehearse: bool, results: Path | None) -> Report:
    """Of the workloads of stage `memory`, on a GPU of this name."""
    from lab.hardware import loads
    from lab.hardware.estimates import STAGE, estimate
    from lab.hardware.workloads import WORKLOADS

    if not gpu and not rehearse:
        raise SystemExit("say for which GPU, as the driver names it: --device 'NVIDIA H200'")
    folder = "rehearsal" if rehearse else "-".join(gpu.lower().split())
    with tempfile.TemporaryDirectory(prefix="carma-rehearsal-") as forgotten:
        root = results or (Path(forgotten) if rehearse else _kept())
        visit = Visit(root / folder, STAGE, rehearse)
        names = loads.REHEARSED[:1] if rehearse else tuple(WORKLOADS)
        estimate(visit, names, gpu or "NVIDIA H200")
        entries = visit.entries()
    refused = [
        f"{name}: {entry['refused']}" for name, entry in entries.items() if "refused" in entry
    ]
    return Report(
        "Estimates",
        [f"{len(entries) - len(refused)} of {len(entries)} runs were looked at.", bullets(refused)],
        {},
        kept=False,
    )
