"""The simulator's store: keeps of every step what the outcome needs, and nothing else."""

from __future__ import annotations

from array import array

from carmad.core.deciders import ORDER
from carmad.core.messages import Step
from carmad.core.types import ENDED, Job, JobId, JobState
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
        self.ended = 0
        self.profiled: set[JobId] = set()  # those whose profile was known when they started
        self.reasons: set[str] = set()  # codes
        self._holders: set[JobId] = set()  # those that hold GPUs

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
                self.reasons.add(reason.code)
                if reason.code == "policy_failed":
                    raise CarmaError(
                        f"the policy {decision.policy!r} failed: {reason.detail}",
                        "this is a fault in the policy, not in the trace",
                    )
        for job in step.jobs:
            self._note(job, step.events[-1].at)

    def _note(self, job: Job, now: float) -> None:
        old, new = self.states.get(job.id), job.state
        self.queued += (new is JobState.QUEUED) - (old is JobState.QUEUED)
        self.states[job.id] = new
        self.ended += job.ended and old not in ENDED
        if job.holds_gpus:
            if job.id not in self._holders and job.profile is not None:
                self.profiled.add(job.id)
            self._holders.add(job.id)
        elif job.id in self._holders:
            self._holders.remove(job.id)
            self.last_end = now
            self.attempts.setdefault(job.id, []).append(_last(job))

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


def _last(job: Job) -> Attempt:
    """Its last attempt, which is over."""
    its = job.attempts[-1]
    assert its.mode is not None and its.started_at is not None
    assert its.ended_at is not None and its.exit is not None
    ready_at = its.kernels[0][1] if its.kernels else None
    return Attempt(its.gpus, its.mode, its.started_at, ready_at, its.ended_at, its.exit.cause)
