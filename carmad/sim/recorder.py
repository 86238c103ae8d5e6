"""The simulator's store: keeps of every step what the outcome needs, and nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from carmad.core.asking import ORDER
from carmad.core.messages import Event, Exited, Step
from carmad.core.types import Cause, Job, JobId, JobState
from carmad.errors import CarmaError
from carmad.sim.card import Gauges
from carmad.sim.outcome import Attempt, Timeline


class Recorder:
    def __init__(self) -> None:
        self.attempts: dict[JobId, list[Attempt]] = {}
        self.states: dict[JobId, JobState] = {}
        self.queued = 0
        self.events = 0
        self.decisions = 0
        self.last_end = 0.0
        self._holders: dict[JobId, Job] = {}  # the latest version of those that hold GPUs

    def commit(self, step: Step) -> None:
        """Raises CarmaError when the policy failed: waiting for a better answer is in vain."""
        self.events += len(step.events)
        self.decisions += len(step.decisions)
        for failure in step.failures:
            if failure.question == ORDER:
                raise CarmaError(
                    f"the policy failed to say where a job stands in line: {failure.error}",
                    "this is a fault in the policy, not in the trace",
                )
        for decision in step.decisions:
            for reason in decision.placement.reasons:
                if reason.code == "policy_failed":
                    raise CarmaError(
                        f"the policy {decision.policy!r} failed: {reason.detail}",
                        "this is a fault in the policy, not in the trace",
                    )
        for job in step.jobs:
            self._note(job, step.events)

    def _note(self, job: Job, events: Sequence[Event]) -> None:
        old, new = self.states.get(job.id), job.state
        self.queued += (new is JobState.QUEUED) - (old is JobState.QUEUED)
        self.states[job.id] = new
        if job.holds_gpus:
            self._holders[job.id] = job
        elif last := self._holders.pop(job.id, None):
            self.last_end = events[-1].at
            self.attempts.setdefault(job.id, []).append(_attempt(last, job, events))

    @property
    def holding(self) -> int:
        return len(self._holders)


class TimelineKeeper:
    """Adds a row whenever the cluster looks different from the last one."""

    def __init__(self, gauges: Gauges, gpus: int, memory_mib: int) -> None:
        self.timeline = Timeline(*(array("d") for _ in range(9)))
        self._columns = tuple(
            getattr(self.timeline, name) for name in Timeline.__dataclass_fields__ if name != "at"
        )
        self._gauges = gauges
        self._gpus = gpus
        self._memory_mib = memory_mib
        self._idle_w = gauges.power_w
        self._last: tuple[float, ...] = ()

    def row(self, at: float, queued: int, running: int) -> None:
        gauges, gpus = self._gauges, self._gpus
        if not gauges.busy_gpus:  # sums of many small changes do not come back to 0 by themselves
            gauges.sm_active = gauges.sm_occupancy = gauges.dram_active = 0.0
            gauges.power_w = self._idle_w
        row = (
            float(queued),
            float(running),
            float(gauges.busy_gpus),
            gauges.memory_mib / self._memory_mib,
            gauges.sm_active / gpus,
            gauges.sm_occupancy / gpus,
            gauges.dram_active / gpus,
            gauges.power_w,
        )
        if row == self._last:
            return
        self._last = row
        times = self.timeline.at
        if times and times[-1] == at:  # the same instant went on
            for column, value in zip(self._columns, row, strict=True):
                column[-1] = value
            return
        times.append(at)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)


def _attempt(last: Job, now: Job, events: Sequence[Event]) -> Attempt:
    """What `last` was doing when it came to an end; `now` is what `events` made of the job."""
    if now.ended:
        assert now.exit is not None
        cause = now.exit.cause
    elif last.state is JobState.STOPPING:
        cause = Cause.GPU_OOM if _crashed(last, events) else last.stop or Cause.CANCELLED
    else:
        cause = now.failures[-1].cause
    assert last.mode is not None and last.started_at is not None
    ready_at = last.kernels[0][1] if last.kernels else None
    return Attempt(last.gpus, last.mode, last.started_at, ready_at, events[-1].at, cause)


def _crashed(job: Job, events: Sequence[Event]) -> bool:
    """Had it run out of GPU memory already when it was told to stop?"""
    exits = (event for event in events if isinstance(event, Exited) and event.job == job.id)
    return any(event.exit.cause is Cause.GPU_OOM for event in exits)
