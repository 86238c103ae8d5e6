"""Wording of reasons that several of CARMA's own policies give."""

from __future__ import annotations

from carmad.plugin import Job, Reason, Wording, duration, gib


def expectation(job: Job) -> tuple[Reason, ...]:
    """The job's expected duration and its source; empty if unknown, or a guess."""
    if job.own_s is None:
        return ()
    source = job.prediction.source if job.prediction else "its owner"
    return (Reason("predicted", have=job.own_s, unit="s", detail=source),)


def _memory(reason: Reason) -> str:
    return (
        f"needs {gib(reason.need)} of free memory;"
        f" only {_room(reason)} is neither used nor promised"
    )


def _free(reason: Reason) -> str:
    return f"{_room(reason)} free, need {gib(reason.need)}"


def _room(reason: Reason) -> str:
    """Residents may be promised more than there is."""
    return gib(max(0.0, reason.have))


def _min_free(reason: Reason) -> str:
    return (
        f"only {_room(reason)} of memory is free;"
        f" another job may join if at least {gib(reason.need)} is"
    )


def _risk(reason: Reason) -> str:
    """The detail has the other metrics."""
    parts = f"; {reason.detail}" if reason.detail else ""
    metric = "SM activity" if reason.unit == "SMACT" else reason.unit
    return f"is too busy to share: {metric} {reason.have:.2f} (limit {reason.need:.2f}){parts}"


def _held_for(reason: Reason) -> str:
    unless = f": only a job that is known to end in {duration(reason.need)} may use it"
    return f"is kept for {reason.detail}{unless if reason.need else ''}"


def _promised(reason: Reason) -> str:
    if reason.detail:  # when it starts, then, is anybody's guess
        return f"GPUs kept for it: {reason.have:.0f}; {reason.detail}"
    return (
        f"GPUs kept for it: {reason.have:.0f}, expected to be free within {duration(reason.need)}"
    )


def _unstable(reason: Reason) -> str:
    if not reason.need:
        return f"{reason.detail or 'it'} used its GPU unevenly when it last shared it"
    numbers = f"variance {reason.have:.2f}, limit {reason.need:.2f}"
    return f"{reason.detail} uses its GPU unevenly ({numbers})"


REASONS = {
    # of one GPU
    "memory": Wording("GpuMemory", _memory, _free),
    "min_free": Wording("GpuMemory", _min_free, _free),
    "risk": Wording("GpuBusy", _risk),
    "held_for": Wording("HeldFor", _held_for),
    "unprofiled": Wording(
        "Unprofiled",
        lambda r: f"{r.detail} has no profile yet, so its effect on others is unknown",
    ),
    "unpredicted": Wording("Unpredicted", lambda r: f"it is not known how long {r.detail} takes"),
    "unstable": Wording("Unstable", _unstable),
    # of the job
    "preempted": Wording("Preempted", lambda r: f"gives its GPUs back: {r.detail}"),
    "making_room": Wording(
        "MakingRoom",
        lambda r: f"has {r.have:.0f} of {r.need:.0f} GPUs; {r.detail} must leave first",
    ),
    "profiling_gpus": Wording(
        "ProfilingGpus",
        lambda r: f"it waits to be profiled: {r.have:.0f} of {r.need:.0f} profiling GPUs are free",
    ),
    "holds_line": Wording(
        "HoldsLine",
        lambda r: (
            f"needs {r.need:.0f} GPUs; idle GPUs that are kept for it: {r.have:.0f}"
            " (limits.backfill)"
        ),
    ),
    "no_promise": Wording(
        "NoPromise",
        lambda r: (
            f"nobody knows when {r.detail} ends; in {duration(r.need)}, GPUs are kept for this job"
            " (limits.overtaken_s)"
        ),
    ),
    "kept": Wording(
        "Kept",
        lambda r: f"GPUs kept for it: {r.have:.0f}; nobody knows when {r.detail} ends",
    ),
    "promised": Wording(
        "Promised",
        _promised,
    ),
    "no_room": Wording(
        "NoRoom",
        lambda r: f"{r.have:.0f} of {r.need:.0f} GPUs are idle, and there is no job to share with",
    ),
    # why it was placed as it was
    "idle_first": Wording("IdleFirst", lambda r: "idle GPUs are taken before any is shared"),
    "profiled_there": Wording(
        "Profiled", lambda r: f"it runs alone for {duration(r.need)}, to be profiled"
    ),
    "predicted": Wording(
        "Predicted", lambda r: f"it is expected to take {duration(r.have)} ({r.detail})"
    ),
}
