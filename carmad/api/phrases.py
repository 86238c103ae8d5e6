"""Every reason's code in words: a sentence for `carma why`, a word or two for a table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from carmad.core.decision import Reason

MOST_NAMED = 4  # of the jobs that one waits for


_FORMER = {"outsiders": "external"}  # codes of decisions that earlier releases recorded


def phrase(reason: Reason) -> str:
    say = PHRASES.get(_FORMER.get(reason.code, reason.code))
    return say(reason) if say else _generic(reason)


def short(reason: Reason, gpu: str = "") -> str:
    """Such as `GpuMemory: GPU1 30.0G free, need 82.0G`."""
    name = SHORT.get(_FORMER.get(reason.code, reason.code), reason.code)
    where = f"{gpu} " if gpu else ""
    match reason.code:
        case "memory" | "min_free":
            return f"{name}: {where}{gib(reason.have)} free, need {gib(reason.need)}"
        case "settling":
            return f"{name}: {where}{max(0.0, reason.need - reason.have):.0f}s left"
        case "first_kernel" | "mps_user" | "busy" | "exclusive" | "drained" | "fault" | "line_held":
            return f"{name}: {where}{reason.detail}".rstrip(": ")
        case "dependency":
            return f"{name}: {_few(reason.detail)}"
        case "begin":
            return f"{name}: {_clock(reason.need)}"
    return f"{name}: {gpu}" if gpu else name


def gib(mib: float) -> str:
    return f"{mib / 1024:.1f}G"


def duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def _clock(at: float) -> str:
    """The server's own time, which is that of its users."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M %Z}"


def _few(detail: str) -> str:
    names = detail.split(", ")
    if len(names) <= MOST_NAMED:
        return detail
    return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"


def _generic(reason: Reason) -> str:
    """For codes of other people's policies."""
    words = reason.code.replace("_", " ")
    if reason.need or reason.have:
        unit = f" {reason.unit}" if reason.unit else ""
        words += f": needs {reason.need:g}{unit}, has {reason.have:g}{unit}"
    return f"{words} ({reason.detail})" if reason.detail else words


def _memory(reason: Reason) -> str:
    return (
        f"needs {gib(reason.need)} of free memory, and {gib(reason.have)} is left"
        " that is neither used nor promised"
    )


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


def _first_kernel(reason: Reason) -> str:
    return f"the first kernel of {reason.detail or 'a job'} has not been seen yet"


def _settling(reason: Reason) -> str:
    if reason.detail.startswith("job "):
        return (
            f"{reason.detail} started computing {reason.have:.0f} s ago;"
            f" the GPU is judged after {reason.need:.0f} s"
        )
    return f"has been watched for {reason.have:.0f} s only; it is judged after {reason.need:.0f} s"


def _stale(reason: Reason) -> str:
    return reason.detail or f"its last reading is {reason.have:.0f} s old"


def _begin(reason: Reason) -> str:
    return f"it may not start before {_clock(reason.need)}"


def _unstable(reason: Reason) -> str:
    if not reason.need:
        return f"{reason.detail or 'it'} used its GPU unevenly beside others before"
    numbers = f"variance {reason.have:.2f}, limit {reason.need:.2f}"
    return f"{reason.detail} uses its GPU unevenly ({numbers})"


def _outlasts(reason: Reason) -> str:
    if not reason.have:
        return f"nobody can say whether it would outlast {reason.detail} by far"
    numbers = f"{duration(reason.have)} × GPUs, limit {duration(reason.need)}"
    return f"it would outlast {reason.detail} by far ({numbers})"


def _planned_start(reason: Reason) -> str:
    turn = "" if reason.need <= 1 else f", as number {reason.need:.0f} on its GPUs"
    after = f", after {_few(reason.detail)}" if reason.detail else ""
    return f"its turn is planned in {duration(reason.have)}{turn}{after}"


def _deadline(reason: Reason) -> str:
    gone = "has passed" if reason.need <= 0 else f"is in {duration(reason.need)}"
    return f"planned to end in {duration(reason.have)}, but its deadline {gone}"


PHRASES: dict[str, Callable[[Reason], str]] = {
    "gpus_unread": lambda r: f"the GPUs cannot be read yet: {r.detail}",
    # of one GPU: the hard rules
    "fault": lambda r: f"is faulty: {r.detail}",
    "not_preemptible": lambda r: "keeps its GPUs: it may not be preempted",
    "preempted": lambda r: f"gives its GPUs back: {r.detail}",
    "making_room": lambda r: f"has {r.have:.0f} of {r.need:.0f} GPUs; {r.detail} must go first",
    "drained": lambda r: f"is drained: {r.detail}",
    "stale": _stale,
    "mig_single": lambda r: "is a MIG instance, and a job can use one of those only",
    "busy": lambda r: (
        f"the job must be alone, and {r.detail} {'are' if ', ' in r.detail else 'is'} there"
    ),
    "external": lambda r: f"the job must be alone, and external processes hold {gib(r.have)} there",
    "exclusive": lambda r: f"{r.detail} has it to itself",
    "profiling": lambda r: f"{r.detail} is profiled alone there until {_clock(r.need)}",
    "first_kernel": _first_kernel,
    "settling": _settling,
    "jobs_per_gpu": lambda r: f"has {r.have:.0f} jobs, the most allowed on one GPU",
    "mps_user": lambda r: f"its MPS server serves {r.detail}, and it can serve one user only",
    "avoid": lambda r: f"is avoided: the job {r.detail or 'failed there'}",
    # of one GPU: what policies ask
    "memory": _memory,
    "min_free": _min_free,
    "risk": _risk,
    # of one GPU: what Lucid, Castor and Cuckoo ask of its neighbour
    "unprofiled": lambda r: f"{r.detail} has no profile yet: nobody knows what it would disturb",
    "unpredicted": lambda r: f"nobody can say how long {r.detail} takes",
    "sharing_score": lambda r: (
        f"the sharing scores add up to {r.have:.0f}, of {r.need:.0f} allowed: {r.detail}"
    ),
    "gpu_demand": lambda r: f"{r.detail} is on {r.have:.0f} GPUs, and the job wants {r.need:.0f}",
    "distributed": lambda r: f"{r.detail} is spread over several servers",
    "unstable": _unstable,
    "outlasts": _outlasts,
    "kept_for_profiling": lambda r: "is for profiling new jobs",
    "no_benefit": lambda r: (
        f"beside {r.detail} both would end after {duration(r.have)} on average, one after the other"
        f" after {duration(r.need)}"
    ),
    # of the job
    "profiling_gpus": lambda r: (
        f"it waits to be profiled: {r.have:.0f} of {r.need:.0f} profiling GPUs are free"
    ),
    "sharing_off": lambda r: (
        f"nobody shares now: {r.have:.0f} GPUs are asked for in ten minutes, below {r.need:.0f}"
        if r.need
        else "nobody shares"
    ),
    "few_idle": lambda r: (
        f"{r.have:.0f} of the {r.need:.0f} GPUs that it wants are idle"
        if r.need > 1
        else "no GPU is idle that it could have"
    ),
    "line_held": lambda r: f"{r.detail} is before it and waits for GPUs",
    "better_gpus": lambda r: (
        f"on the idle GPUs it would be {r.have:.1f} times as slow as on the best: it waits for"
        f" better ones until {_clock(r.need)}"
    ),
    "slices_apart": lambda r: (
        f"the slices of a replica must be together: {r.need:.0f} GPUs, and no server has more than"
        f" {r.have:.0f} free"
    ),
    "reserved": lambda r: (
        f"GPUs are kept for shorter jobs; if none comes, for {duration(r.need)} more"
    ),
    "partner": lambda r: f"it joins {r.detail} as soon as the GPUs there admit it",
    "no_partner": lambda r: "nobody to be packed with: none would gain, or it must be alone",
    "planned_start": _planned_start,
    "deadline": _deadline,
    "no_room": lambda r: f"{r.have:.0f} of {r.need:.0f} GPUs are idle, and it has no neighbour",
    # why it was placed as it was
    "affine": lambda r: f"{r.detail}: scores add up to {r.have:.0f} of {r.need:.0f}",
    "sharing_benefit": lambda r: (
        f"beside {r.detail} both end after {duration(r.have)} on average, one after the other after"
        f" {duration(r.need)}"
    ),
    "packed": lambda r: (
        f"packed with {r.detail}: together {r.have:.2f} times as efficient as one after the other"
    ),
    "close_deadlines": lambda r: (
        f"of {r.detail}'s deadline and its own the nearer is {r.have:.2f} of the other"
    ),
    "planned_end": lambda r: (
        f"planned to end in {duration(r.have)}; its deadline is in {duration(r.need)}"
    ),
    "mapped": lambda r: (
        f"an iteration takes {1000 * r.have:.0f} ms there, {1000 * r.need:.0f} ms on the fewest"
        f" servers ({r.detail})"
    ),
    "split_batch": lambda r: f"batches of {r.need:.0f} are split into {r.detail} of {r.have:.0f}",
    "profiled_there": lambda r: f"it is profiled for {duration(r.need)}, alone",
    "predicted": lambda r: f"it is expected to take {duration(r.have)} ({r.detail})",
    "held": lambda r: "it is held",
    "begin": _begin,
    "dependency": lambda r: f"{_few(r.detail)} must end first",
    "array_limit": lambda r: (
        f"{r.have:.0f} tasks of its array run, the most it wants at once"
        if r.have > 1
        else "a task of its array runs, and it wants one at once"
    ),
    "quota": lambda r: f"{r.detail} holds {r.have:.0f} GPUs of {r.need:.0f} allowed",
    "policy_failed": lambda r: f"the placement policy failed: {r.detail}",
    "policy_fallback": lambda r: f"decided in place of the policy {r.detail}, which fails",
}

SHORT = {
    "gpus_unread": "GpusUnread",
    "fault": "GpuFault",
    "not_preemptible": "NotPreemptible",
    "preempted": "Preempted",
    "making_room": "MakingRoom",
    "drained": "Drained",
    "stale": "NoReading",
    "mig_single": "MigSingle",
    "busy": "Busy",
    "external": "ExternalProcesses",
    "exclusive": "Exclusive",
    "profiling": "Profiling",
    "first_kernel": "FirstKernel",
    "settling": "Settling",
    "jobs_per_gpu": "JobsPerGpu",
    "mps_user": "MpsUser",
    "avoid": "Avoided",
    "memory": "GpuMemory",
    "min_free": "GpuMemory",
    "risk": "GpuBusy",
    "unprofiled": "Unprofiled",
    "unpredicted": "Unpredicted",
    "sharing_score": "SharingScore",
    "gpu_demand": "GpuDemand",
    "distributed": "Distributed",
    "unstable": "Unstable",
    "outlasts": "Outlasts",
    "kept_for_profiling": "ForProfiling",
    "no_benefit": "NoBenefit",
    "profiling_gpus": "ProfilingGpus",
    "sharing_off": "SharingOff",
    "few_idle": "FewIdle",
    "line_held": "LineHeld",
    "better_gpus": "BetterGpus",
    "slices_apart": "SlicesApart",
    "reserved": "Reserved",
    "partner": "Partner",
    "no_partner": "NoPartner",
    "planned_start": "Planned",
    "deadline": "Deadline",
    "no_room": "NoRoom",
    "affine": "Affine",
    "sharing_benefit": "SharingBenefit",
    "packed": "Packed",
    "close_deadlines": "CloseDeadlines",
    "planned_end": "PlannedEnd",
    "mapped": "Mapped",
    "split_batch": "SplitBatch",
    "profiled_there": "Profiled",
    "predicted": "Predicted",
    "held": "Held",
    "begin": "BeginTime",
    "dependency": "Dependency",
    "array_limit": "ArrayLimit",
    "quota": "Quota",
    "policy_failed": "PolicyFailed",
    "policy_fallback": "PolicyFallback",
}

# Whose detail fits into a table: a job, a user, or an admin's few words.
DETAILED = frozenset(
    {"first_kernel", "dependency", "mps_user", "busy", "exclusive", "drained", "fault", "line_held"}
)
