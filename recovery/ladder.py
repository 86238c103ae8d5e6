"""How a job that ran out of GPU memory is retried. The core limits how often."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.plugin import Exit, Job, Retry, Settings


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Alone on an idle GPU, at once (CARMA paper, 3.5)."""

    name: str = "exclusive"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        return _alone(job, exit)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """First on another GPU with a larger margin of free memory, or anywhere if only its own limit
    was in the way, then alone."""

    margin_mib: int
    name: str = "adaptive"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        if job.shared and job.retry is None:
            if exit.limit_mib is not None:
                why = f"met its own limit; retried with {self.margin_mib} MiB more"
                return Retry(why, margin_mib=self.margin_mib)
            why = f"out of memory; retried elsewhere with {self.margin_mib} MiB more free"
            return Retry(why, avoid=job.gpus, margin_mib=self.margin_mib)
        return _alone(job, exit)


def exclusive(settings: Settings) -> Exclusive:
    return Exclusive()


def adaptive(settings: Settings) -> Adaptive:
    return Adaptive(settings.recovery.margin_mib)


def _alone(job: Job, exit: Exit) -> Retry | None:
    """None for a job that had its GPUs to itself all along, which would only crash again."""
    if not job.shared:
        return None
    cause = "fragmented memory" if exit.fragmented else "out of memory"
    cause = cause if exit.limit_mib is None else "met its own limit"
    return Retry(f"{cause} beside other jobs; retried alone", exclusive=True)
