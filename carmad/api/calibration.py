"""How near estimates came to the peaks that were measured afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median

from carmad.api.responses.estimates import CalibrationOut, ContextOut
from carmad.core.ports import Run
from carmad.core.types import Estimate
from estimators.experience import Past, context_mib, judged


def calibrations(names: Iterable[str], runs: Iterable[Run]) -> list[CalibrationOut]:
    """Of each estimator in `names`, and of those that only the runs know."""
    past: dict[str, list[tuple[Estimate, int]]] = {name: [] for name in names}
    for run in sorted(runs, key=lambda run: run.ended_at):
        for estimate in _said(run):
            past.setdefault(estimate.source, []).append((estimate, run.peak_mib))
    return [_calibration(name, pairs) for name, pairs in past.items()]


def _calibration(name: str, past: Sequence[tuple[Estimate, int]]) -> CalibrationOut:
    """`past`: the newest last."""
    errors = [estimate.mib - peak for estimate, peak in past]
    half = len(errors) // 2
    untaught = [
        (one.mib if one.traced_mib is None else one.traced_mib) - peak for one, peak in past
    ]
    under = sum(peak > estimate.safe_mib for estimate, peak in past)
    return {
        "name": name,
        "jobs": len(past),
        "bias_mib": median(errors) if errors else None,
        "p50_mib": _percentile(errors, 0.50),
        "p95_mib": _percentile(errors, 0.95),
        "early_p50_mib": _percentile(errors[:half], 0.50),
        "recent_p50_mib": _percentile(errors[half:], 0.50),
        "untaught_p50_mib": _percentile(untaught, 0.50),
        "under": round(under / len(past), 4) if past else None,
    }


def contexts(runs: Mapping[int, Sequence[Run]], uid: int) -> list[ContextOut]:
    """What the trace estimator goes by for this user's jobs, on each GPU model, driver and torch.
    `runs` by user."""
    every = [estimate for mine in runs.values() for run in mine for estimate in _said(run)]
    found: list[ContextOut] = []
    for stack in sorted({each.stack for each in every if each.source == "trace" and each.stack}):
        past = {user: judged(mine, "trace", stack) for user, mine in runs.items()}
        jobs = sum(map(len, past.values()))
        learned = context_mib(Past(past.pop(uid, []), list(past.values())))
        found.append({"stack": stack, "jobs": jobs, "context_mib": learned[0] if learned else None})
    return found


def _said(run: Run) -> Iterator[Estimate]:
    """What was said about it: the estimate that it was placed by, and the others'."""
    if run.estimate is not None:
        yield from {each.source: each for each in (*run.estimate.others, run.estimate)}.values()


def _percentile(errors: Sequence[int], share: float) -> int | None:
    """The smallest size that those of so large a share of the errors do not exceed."""
    sizes = sorted(map(abs, errors))
    return sizes[ceil(share * len(sizes)) - 1] if sizes else None
