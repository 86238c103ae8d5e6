"""What jobs are promised of a GPU's memory by their owners' own word, and what they use: what to
ask for next time.

A job that asks for memory (`--gpu-mem`) gets that much for as long as it lives, and others are
placed by it. So its owner is told afterwards what would have been right: what its runs used, with
the margin by which an estimate from earlier runs is placed (`margin`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log, sqrt
from statistics import median

from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.readable import gib

SPARE_MIB = 2048  # with less, no policy starts a job by default (`Preconditions.min_free_mib`)
SPARE = 0.25  # of what was asked for: with less to spare, nothing is said
PRIOR_SPREAD = 0.10
NORMAL = 1.4826  # standard deviations in a median absolute deviation
MEASURED = "history"  # the estimator whose answers are earlier runs
# How notes begin that are found again by it.
USES_MORE = "uses "
ASKED = "asked "
STEP_MIB = 256  # by which limits follow readings


def margin(peaks: Sequence[int]) -> float:
    """By which factor the next run may exceed what the `n` runs with these peaks used: e^h with
    h = 2·s·√(1 + 1/n), the usual prediction interval, and s² = (0.10² + (n−1)·r²)/n, where r is the
    spread of the logarithms of the peaks. It is as if there had been one additional run that was
    10 % off: a single run gives 33 %, seven equal ones 8 %, thirty 4 %. The spread is the median
    absolute deviation: runs that ended early do not widen it as long as they are a minority."""
    logs = [log(peak) for peak in peaks]
    middle, n = median(logs), len(logs)
    spread = NORMAL * median(abs(value - middle) for value in logs)
    return exp(2 * sqrt((PRIOR_SPREAD**2 + (n - 1) * spread**2) / n) * sqrt(1 + 1 / n))


# -- what to ask for
def advise(job: Job, most_mib: int | None) -> str:
    """What the owner of an ended job should ask for next time; "" if its word was right, or it gave
    none. `most_mib`: what the smallest of its GPUs has."""
    used_mib, known = job.usage.peak_mib, _measurement(job.estimate)
    asked_mib = _claim_mib(job)
    if not asked_mib or not used_mib:
        return ""
    factor = known.safe_mib / known.mib if known else margin([used_mib])
    found = compare(asked_mib, max(used_mib, known.mib if known else 0), factor, most_mib)
    short = used_mib > asked_mib
    spare = job.state is JobState.SUCCEEDED and job.accumulation == 1 and not job.exclusive
    if not found or not (short or spare):
        return ""
    of_runs = f" (p95 of its runs {size(known.mib)})" if known else ""
    return f"{ASKED}{size(asked_mib)}, used {size(used_mib)}{of_runs}: {found}"


def foresee(asked_mib: int, measured: Estimate, most_mib: int | None) -> str:
    """The same of a job that is only submitted, by what its earlier runs used."""
    factor = measured.safe_mib / measured.mib
    found = compare(asked_mib, measured.mib, factor, most_mib)
    of_runs = f"its earlier runs used {size(measured.mib)} (p95, {measured.notes[0]})"
    return f"{ASKED}{size(asked_mib)}, and {of_runs}: {found}, or --gpu-mem auto" if found else ""


def compare(asked_mib: int, used_mib: int, factor: float, most_mib: int | None) -> str:
    """What to ask for instead, and why, if too little or much too much was asked for; or ""."""
    ask_mib = round_up(min(used_mib * factor, most_mib or used_mib * factor))
    if used_mib > asked_mib:
        return f"ask {size(ask_mib)}"
    if asked_mib - ask_mib < max(SPARE_MIB, SPARE * asked_mib):
        return ""
    return f"ask {size(ask_mib)}, and others can run beside it"


def _claim_mib(job: Job) -> int:
    """What it was promised by its owner's word, or by `--gpu-mem auto`; 0: nothing."""
    if job.spec.memory_mib:
        return job.spec.memory_mib
    return job.estimate.safe_mib if job.estimate and job.estimate.firm else 0


def _measurement(estimate: Estimate | None) -> Estimate | None:
    every = (estimate, *estimate.others) if estimate else ()
    return next((each for each in every if each.source == MEASURED), None)


def advice_of(job: Job) -> str:
    """What `advise` said when it ended; "": nothing."""
    return next((note for note in job.notes if note.startswith(ASKED)), "")


def round_up(mib: float) -> int:
    """To what people ask for: whole GiB, or quarters below 4 GiB."""
    step = 1024 if mib > 4096 else 256
    return ceil(mib / step) * step


def size(mib: int) -> str:
    """As one asks for it: 30G, 29.3G or 768M."""
    if mib % 1024 == 0:
        return f"{mib // 1024}G"
    return gib(mib) if mib >= 1024 else f"{mib}M"
