"""Reasons that several of CARMA's own policies give, in words."""

from __future__ import annotations

from carmad.plugin import Job, Reason, Wording, duration, gib


def expected(job: Job) -> tuple[Reason, ...]:
    """How long the job should run, and who says so; nothing if nobody does."""
    if job.expected_s is None:
        return ()
    source = job.prediction.source if job.prediction else "its owner"
    return (Reason("predicted", have=job.expected_s, unit="s", detail=source),)


def _memory(reason: Reason) -> str:
    return (
        f"needs {gib(reason.need)} of free memory, and {gib(reason.have)} is left"
        " that is neither used nor promised"
    )


def _free(reason: Reason) -> str:
    return f"{gib(reason.have)} free, need {gib(reason.need)}"


def _min_free(reason: Reason) -> str:
    return (
        f"{gib(reason.have)} of memory is free, and {gib(reason.need)} must be before"
        " another job may join"
    )


def _risk(reason: Reason) -> str:
    """The detail has the two metrics that go with SM activity."""
    parts = f"; {reason.detail}" if reason.detail else ""
    return (
        f"is too busy to be shared: SM activity {reason.have:.2f} (limit {reason.need:.2f}){parts}"
    )


def _unstable(reason: Reason) -> str:
    if not reason.need:
        return f"{reason.detail or 'it'} used its GPU unevenly beside others before"
    numbers = f"variance {reason.have:.2f}, limit {reason.need:.2f}"
    return f"{reason.detail} uses its GPU unevenly ({numbers})"


REASONS = {
    # of one GPU
    "memory": Wording("GpuMemory", _memory, _free),
    "min_free": Wording("GpuMemory", _min_free, _free),
    "risk": Wording("GpuBusy", _risk),
    "unprofiled": Wording(
        "Unprofiled",
        lambda r: f"{r.detail} has no profile yet: nobody knows what it would disturb",
    ),
    "unpredicted": Wording("Unpredicted", lambda r: f"nobody can say how long {r.detail} takes"),
    "unstable": Wording("Unstable", _unstable),
    # of the job
    "preempted": Wording("Preempted", lambda r: f"gives its GPUs back: {r.detail}"),
    "making_room": Wording(
        "MakingRoom",
        lambda r: f"has {r.have:.0f} of {r.need:.0f} GPUs; {r.detail} must go first",
    ),
    "profiling_gpus": Wording(
        "ProfilingGpus",
        lambda r: f"it waits to be profiled: {r.have:.0f} of {r.need:.0f} profiling GPUs are free",
    ),
    "no_room": Wording(
        "NoRoom", lambda r: f"{r.have:.0f} of {r.need:.0f} GPUs are idle, and it has no neighbour"
    ),
    # why it was placed as it was
    "profiled_there": Wording(
        "Profiled", lambda r: f"it is profiled for {duration(r.need)}, alone"
    ),
    "predicted": Wording(
        "Predicted", lambda r: f"it is expected to take {duration(r.have)} ({r.detail})"
    ),
}
