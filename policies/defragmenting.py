"""Moves jobs together, so that the first in line gets the GPUs that it needs to itself, or the
memory: what is free of several GPUs would do, but not what is free of any.

A job moves only where the policy would place it, and where what it holds fits. Whoever moves is
suspended for a moment, so `limits.preemption` must say "suspend".
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from carmad.plugin import (
    Demand,
    GpuId,
    GpuView,
    Job,
    JobId,
    Move,
    Placement,
    Reason,
    View,
    held_mib,
)
from policies.rules import Rules
from policies.views import Promise

NO_ROOM = Reason("memory")  # nobody sees it


class Room(NamedTuple):
    gpus: tuple[GpuId, ...]  # for the first in line
    moves: tuple[Move, ...]  # that are yet to begin
    leaving: frozenset[JobId]  # all that it waits for


def defragment(rules: Rules, head: Job, view: View) -> Room | None:
    """None: it would not help, or nobody can be moved now."""
    settings = view.settings
    if settings.limits.preemption != "suspend" or not settings.suspend.moves:
        return None
    gone = {job.id for job in view.running if job.leaves}
    moves: dict[JobId, Move] = {}
    later = view  # as it looks to those that move

    def place_off(goals: tuple[GpuId, ...]) -> Placement:
        """The first in line, with all that are gone by now, and not where these go."""
        elsewhere = rules.without(Promise(head.id, goals, view.now), view.now)
        return elsewhere.place(head, view.without(gone))

    if gone and (gpus := place_off(()).gpus):
        return _room(gpus, moves, gone, view)
    for gpu in sorted(view.gpus, key=_moved_mib):
        goals = tuple(goal for move in moves.values() for goal in move.gpus)
        suitable = place_off(goals).verdicts
        cleared = {each.gpu for each in suitable if not each.refused} | {gpu.id}
        there = [job for job in gpu.residents if job.id not in gone]
        fixed = (each for each in there if not _can_move(each, view))
        if gpu.id in goals or any(fixed):
            continue
        after, homes = later, dict[JobId, GpuId]()
        for job in there:
            goal = _home(job, gpu, rules, after, cleared)
            if goal is None:
                break
            homes[job.id] = goal
            after = after.with_placement(job, (goal,))
        else:
            later = after
            gone.update(homes)
            reason = Reason("preempted", detail=f"for job {head.id}")
            moves |= {id: Move(id, (goal,), reason) for id, goal in homes.items()}
            if gpus := place_off((*goals, *homes.values())).gpus:
                return _room(gpus, moves, gone, view)
    return None


def _can_move(job: Job, view: View) -> bool:
    return view.preemptible.get(job.id) == "suspend" and len(job.gpus) == 1


def _home(job: Job, own: GpuView, rules: Rules, view: View, cleared: Set[GpuId]) -> GpuId | None:
    """Where the job can go: not where the first in line is to be."""
    mib = _held_mib(job, own)

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        kin = (gpu.gpu.node, gpu.gpu.name) == (own.gpu.node, own.gpu.name)
        return None if kin and gpu.id not in cleared and mib <= gpu.free_mib else NO_ROOM

    there = replace(rules, filters=(*rules.filters, refuse)).place(job, view).gpus
    return there[0] if there else None


def _room(
    gpus: tuple[GpuId, ...], moves: dict[JobId, Move], gone: set[JobId], view: View
) -> Room | None:
    """Only with the moves that free these GPUs."""
    there = {job.id for gpu in gpus for job in view.gpu(gpu).residents} & gone
    return Room(gpus, tuple(moves[id] for id in there if id in moves), frozenset(there))


def _moved_mib(gpu: GpuView) -> int:
    return sum(_held_mib(job, gpu) for job in gpu.residents if not job.leaves)


def _held_mib(job: Job, gpu: GpuView) -> int:
    held = held_mib(job.id, gpu.sample) if gpu.sample else 0
    return max(held, job.need.safe_mib if job.need else 0)
