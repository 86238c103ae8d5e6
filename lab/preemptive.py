"""The base of preemptive policies: jobs of higher priority take GPUs back from running ones.

Jobs do not share GPUs under them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from carmad.core.gpus.gpuview import NodeView, is_client
from carmad.plugin import AskAgain, GpuId, GpuView, Job, JobId, Preemption, Proposal, Reason, View
from policies.ranked import Ranked, Turn, down_the_line
from policies.views import empty_view, fewest, yields

Priority = Callable[[Job, float], float]
Instant = Callable[[Job], float]
Occupied = tuple[GpuView, frozenset[JobId]]


class Room(NamedTuple):
    """The GPUs that a job waits for, and the jobs that must leave them first."""

    gpus: tuple[GpuId, ...]
    preempted: tuple[Job, ...]
    reason: Reason  # why it waits


def never(job: Job) -> float:
    return math.inf


def clients_of_others(node: NodeView, uid: int | None) -> frozenset[JobId]:
    """The jobs that must end before the MPS server of the whole node can serve this user; none if
    there is no such server, or the user (None) needs none."""
    if uid is None:
        return frozenset()
    served = (gpu for gpu in node.gpus if gpu.mps_user)
    clients = (job for gpu in served for job in gpu.residents if is_client(job))
    return frozenset(job.id for job in clients if job.spec.uid != uid)


@dataclass(frozen=True, slots=True, eq=False)
class Preemptive:
    """Jobs in order of priority: lowest number first, ties by arrival.

    A job that finds too few free GPUs waits for those that stopping jobs will leave. If these are
    too few, it preempts running jobs whose number is higher by more than `margin`, the last in line
    first; no more of them than it needs, and none unless it can start when they are gone. The GPUs
    that it waits for are kept for it. A job that cannot start even so blocks the queue, as in
    `Ranked`.

    Niceness and recovery never cause a preemption. But they prevent one: a job that goes first
    because of them would be requeued ahead of the one that it made room for.
    """

    name: str
    unshared: Ranked  # how a job takes free GPUs
    priority: Priority  # of a queued or running job, at a given time
    margin: float = 0.0
    worse_at: Instant = never  # when a running job's number next jumps up

    def order(self, job: Job) -> float:
        """Its priority does not change while it waits."""
        return self.priority(job, job.suspension.at if job.suspension else job.submitted_at)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        leaving = {job.id for job in view.running if job.leaves}
        has_head = False

        def turn(job: Job, view: View) -> Turn:
            nonlocal has_head
            placement = self.unshared.place(job, view)
            if placement.gpus:
                return placement.gpus, (placement,)
            room = self._room(job, view, leaving)
            if room is None:
                chance = () if has_head else self._next_chance(job, view)
                has_head = True
                return (), (placement, *chance)
            leaving.update(victim.id for victim in room.preempted)
            why = Reason("preempted", detail=f"job {job.id} goes first")
            preemptions = [Preemption(victim.id, why) for victim in room.preempted]
            return room.gpus, (*preemptions, replace(placement, reasons=(room.reason,)))

        return down_the_line(view, turn)

    def _room(self, head: Job, view: View, leaving: set[JobId]) -> Room | None:
        """None: it cannot start, whatever it preempts."""
        if not view.settings.limits.preemption:
            return None
        lower = self._lower(head, view, leaving)
        if not lower and not leaving:
            return None
        suitable = self._suitable(head, view)

        def list_left(jobs: Sequence[Job]) -> list[Occupied]:
            gone = leaving.union(job.id for job in jobs)
            return [(gpu, there) for gpu, there in suitable if there <= gone]

        preempted = fewest(lower, lambda jobs: len(list_left(jobs)) >= head.spec.gpus)
        if preempted is None:
            return None
        free_first = sorted(list_left(preempted), key=lambda each: len(each[1]))
        taken = free_first[: head.spec.gpus]
        free = sum(not there for _, there in taken)
        before = sorted({id for _, there in taken for id in there})
        clients = dict.fromkeys(gpu.mps_leaving for gpu, _ in taken if gpu.mps_leaving)
        names = [f"job {id}" for id in before]
        names += [name for uid, name in clients if uid != head.spec.uid]
        reason = Reason("making_room", head.spec.gpus, free, "GPUs", ", ".join(names))
        return Room(tuple(gpu.id for gpu, _ in taken), tuple(preempted), reason)

    def _lower(self, head: Job, view: View, leaving: set[JobId]) -> list[Job]:
        """The running jobs that `head` may preempt, the last in line first."""
        bar = self.priority(head, view.now) + self.margin
        lower = [
            (job.spec.nice, number, job.submitted_at, job.id, job)
            for job in view.running
            if (number := self.priority(job, view.now)) > bar
            and job.id not in leaving
            and yields(job, head, view)
        ]
        return [job for *_, job in sorted(lower, reverse=True)]

    def _suitable(self, head: Job, view: View) -> list[Occupied]:
        """The GPUs that would be suitable without the jobs that are in the way: those on the GPU,
        and other users' clients if an MPS server serves the whole node."""
        verdicts = self.unshared.place(head, empty_view(view)).verdicts
        suitable = {verdict.gpu for verdict in verdicts if not verdict.refused}
        uid = view.demand(head).mps_uid
        found = []
        for node in view.nodes:
            others = clients_of_others(node, uid)
            for gpu in node.gpus:
                if gpu.id in suitable:
                    there = frozenset(job.id for job in gpu.residents)
                    found.append((gpu, there if gpu.gpu.is_mig else there | others))
        return found

    def _next_chance(self, head: Job, view: View) -> tuple[AskAgain, ...]:
        """Ask again when the next running job falls behind `head`."""
        bar = self.priority(head, view.now) + self.margin
        instants = (
            at
            for job in view.running
            if view.now < (at := self.worse_at(job)) < math.inf
            and self.priority(job, at) > bar
            and yields(job, head, view)
        )
        first = min(instants, default=None)
        return () if first is None else (AskAgain(first),)
