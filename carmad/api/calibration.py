"""How near estimates came to the peaks that were measured afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from statistics import median

from carmad.api.responses import CalibrationOut, ContextOut
from carmad.core.ports import Run
from carmad.core.types import Estimate
from estimators.experience import context_mib, judged


def calibrations(names: Iterable[str], runs: Sequence[Run]) -> list[CalibrationOut]:
    """Of each estimator in `names`, and of those that only the runs know."""
    past: dict[str, list[tuple[Estimate, int]]] = {name: [] for name in names}
    for run in runs:
        for estimate in _said(run):
            past.setdefault(estimate.source, []).append((estimate, run.peak_mib))
    return [_calibration(name, pairs) for name, pairs in past.items()]


def _calibration(name: str, past: Sequence[tuple[Estimate, int]]) -> CalibrationOut:
    errors = [estimate.mib - peak for estimate, peak in past]
    sizes = sorted(map(abs, errors))
    under = sum(peak > estimate.safe_mib for estimate, peak in past)
    return {
        "name": name,
        "jobs": len(past),
        "bias_mib": median(errors) if errors else None,
        "p50_mib": _percentile(sizes, 0.50),
        "p95_mib": _percentile(sizes, 0.95),
        "under": round(under / len(past), 4) if past else None,
    }


def contexts(runs: Sequence[Run]) -> list[ContextOut]:
    """What the trace estimator has learned of each GPU model, driver and torch."""
    traces = [estimate for run in runs for estimate in _said(run) if estimate.source == "trace"]
    found: list[ContextOut] = []
    for stack in sorted({estimate.stack for estimate in traces if estimate.stack}):
        past = judged(runs, "trace", stack)
        found.append({"stack": stack, "jobs": len(past), "context_mib": context_mib(past)})
    return found


def _said(run: Run) -> Iterator[Estimate]:
    """What was said about it: the estimate that it was placed by, and the others'."""
    if run.estimate is not None:
        yield from {each.source: each for each in (*run.estimate.others, run.estimate)}.values()


def _percentile(ordered: Sequence[int], share: float) -> int | None:
    """The smallest value that so large a share does not exceed."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else None
