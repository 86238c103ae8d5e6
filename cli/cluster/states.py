"""Slurm's states and reasons in the words that CARMA has for them."""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    name: str  # as in CARMA's API
    code: str
    ended: bool = False


class Reason(NamedTuple):
    slurm: str  # its word; "": nothing waits
    text: str  # completes "job 42 waits: "


WAITING = State("queued", "PD")
HELD = State("queued", "H")
FAILED = State("failed", "F", True)
STATES = {
    "PENDING": WAITING,
    "REQUEUED": WAITING,
    "REQUEUE_FED": WAITING,
    "REQUEUE_HOLD": HELD,
    "SPECIAL_EXIT": HELD,
    "RESV_DEL_HOLD": HELD,
    "CONFIGURING": State("starting", "ST"),
    "RUNNING": State("running", "R"),
    "RESIZING": State("running", "R"),
    "SIGNALING": State("running", "R"),
    "SUSPENDED": State("running", "R"),
    "STOPPED": State("running", "R"),
    "COMPLETING": State("stopping", "CG"),
    "STAGE_OUT": State("stopping", "CG"),
    "COMPLETED": State("succeeded", "CD", True),
    "CANCELLED": State("cancelled", "CA", True),
    "TIMEOUT": State("timed_out", "TO", True),
    "DEADLINE": State("timed_out", "TO", True),
    "OUT_OF_MEMORY": State("out_of_memory", "OOM", True),
}
REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "no node has the GPU memory, CPUs and memory free that it asks for; it is next",
    "Priority": "jobs before it wait for the same nodes",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise than it asks for, so it"
    " will never start: cancel it",
    "BeginTime": "the time to begin, or to try again, has not come",
    "JobHeldUser": "you hold it: carma release starts it",
    "JobHeldAdmin": "an administrator holds it, or it was requeued too often",
    "JobArrayTaskLimit": "as many tasks of its array run as --array allows with %",
    "PartitionTimeLimit": "its time limit is above that of the partition: give a lower --time",
    "PartitionNodeLimit": "the partition does not allow so many nodes",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "nodes that it could run on are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "Reservation": "its reservation has not begun",
    "QOSGrpGRES": "the jobs of this QOS use all the GPU memory that it may",
    "BadConstraints": "no node is as it asks for: see carma status, and submit it anew",
    "Licenses": "a license that it needs is in use",
    "launch failed requeued held": "it could not be started on a node, and is held: ask your"
    " administrator",
    "Cleaning": "its last run is being cleaned up",
}


def state_of(state: str, reason: str) -> State:
    """`state`: as squeue's %T writes it."""
    found = STATES.get(state.strip(), FAILED)
    return HELD if found == WAITING and reason.startswith("JobHeld") else found


def why_of(reason: str) -> Reason:
    """`reason`: as squeue's %r writes it."""
    word = reason.strip().strip("()")
    if text := REASONS.get(word) or REASONS.get(word.partition(",")[0]):
        return Reason(word, text)
    if "Limit" in word or word.startswith(("QOS", "Assoc")):
        return Reason(word, f"a limit of your account or QOS ({word}): sshare and sacctmgr show it")
    return Reason(word, f"Slurm says {word}")
