"""CARMA's states, ends and reasons in Slurm's words. Pure. Imports stay light."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carmad.api.job import JobOut

# A job that CARMA has started runs for Slurm, whether or not its first kernel was seen.
STATES = {
    "pending": "PENDING",
    "queued": "PENDING",
    "starting": "RUNNING",
    "running": "RUNNING",
    "suspending": "SUSPENDED",
    "suspended": "SUSPENDED",
    "resuming": "SUSPENDED",
    "stopping": "COMPLETING",
    "succeeded": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "timed_out": "TIMEOUT",
    "out_of_memory": "OUT_OF_MEMORY",
}
# What Slurm calls some of those that failed.
CAUSES = {
    "lost": "NODE_FAIL",
    "unrestored": "NODE_FAIL",
    "unstarted": "NODE_FAIL",
    "host_oom": "OUT_OF_MEMORY",
}
CODES = {
    "PENDING": "PD",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "COMPLETING": "CG",
    "COMPLETED": "CD",
    "FAILED": "F",
    "CANCELLED": "CA",
    "TIMEOUT": "TO",
    "OUT_OF_MEMORY": "OOM",
    "NODE_FAIL": "NF",
}
# What no job of CARMA is ever in.
NEVER = {
    "BOOT_FAIL": "BF",
    "CONFIGURING": "CF",
    "DEADLINE": "DL",
    "PREEMPTED": "PR",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
LIVE = tuple(state for state in CODES if state not in ENDED)
# CARMA's words for why a job waits, by how they begin. Any other one is `Resources`.
REASONS = {
    "held": "JobHeldUser",
    "dependency": "Dependency",
    "begin": "BeginTime",
    "arraylimit": "JobArrayTaskLimit",
    "priority": "Priority",
    "none": "None",
    "estimating": "None",
}


def state_of(job: JobOut) -> str:
    how = job.get("exit")
    found = STATES.get(job["state"], "FAILED")
    return CAUSES.get(how["cause"], found) if how and found == "FAILED" else found


def reason_of(job: JobOut) -> str:
    """Why it waits, or how it ended, as a word."""
    state = state_of(job)
    if state == "PENDING":
        if job.get("held"):
            return "JobHeldUser"
        word = (job.get("reason") or "").strip("()").replace(" ", "").lower()
        return next((its for begin, its in REASONS.items() if word.startswith(begin)), "Resources")
    how = job.get("exit")
    if state == "FAILED" and how:
        return "JobLaunchFailure" if how["cause"] == "launch_failed" else "NonZeroExitCode"
    ends = {"TIMEOUT": "TimeLimit", "OUT_OF_MEMORY": "OutOfMemory", "NODE_FAIL": "NodeDown"}
    return ends.get(state, "None")


def exit_code(job: JobOut) -> str:
    """CODE:SIGNAL."""
    how = job.get("exit")
    if state_of(job) == "OUT_OF_MEMORY":
        return "0:125"  # as Slurm has it of whatever ran out of memory
    if not how:
        return "0:0"
    if state_of(job) in ("TIMEOUT", "COMPLETED"):
        return "0:0"
    code, signum = how["code"] or 0, how["signal"] or 0
    if state_of(job) == "FAILED" and not (code or signum):
        code = 1  # Slurm's never failed with 0
    return f"{code}:{signum}"


def parse_states(words: list[str]) -> frozenset[str]:
    """Names or codes, in any case. Raises Usage."""
    from cli.problems import Usage

    known = {**CODES, **NEVER}
    names = {code: name for name, code in known.items()} | {name: name for name in known}
    found = set()
    for word in words:
        if word.lower() == "all":
            return frozenset(known)
        if word.upper() not in names:
            raise Usage(f"Invalid job state specified: {word}", f"Valid: {', '.join(known)}")
        found.add(names[word.upper()])
    return frozenset(found)


def carma_states(states: frozenset[str]) -> str:
    """The states that the daemon is to be asked for."""
    wanted = {"FAILED", *states} if states.intersection(CAUSES.values()) else states
    return ",".join(name for name, its in STATES.items() if its in wanted)
