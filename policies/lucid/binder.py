"""The Affine-jobpair Binder: which running job a new one joins, if any (Lucid paper, 3.3).

The paper's rules: (1) both jobs' memory fits, (2) both want the same number of GPUs, and get the
same ones, (3) at most two jobs are on a set of GPUs, (4) jobs with unstable GPU usage are not
packed (and evicted if they are: `stability`), (5) nor are jobs that run on several nodes. The
sharing scores must not add up to more than the capacity.

"Time-aware" (3.1, C) is in the artifact (simulation/policy/lucid.py): a job does not join one whose
priority value is less than half of its own, since that one would be slowed down until its end. Of
several suitable partners, the artifact takes the first in its list of running jobs; so does this:
the one that has run longest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from carmad.plugin import Demand, GpuId, GpuView, Job, JobId, NodeView, Reason, View
from policies.lucid.packing import WORDS
from policies.lucid.room import refusals
from policies.lucid.traits import Traits, TraitsOf

PAIR = 2  # jobs per set of GPUs
OUTLASTS = 2.0  # times the partner's priority value
COMPANY = Demand(1, alone=False, mps_uid=None, estimate=None, retry=None)


class Partner(NamedTuple):
    """A job that is alone on its GPUs, all on one node, and could be joined."""

    job: Job
    gpus: tuple[GpuView, ...]
    memory_mib: int  # of the smallest of its GPUs
    free_mib: int  # on the fullest of its GPUs
    score: int
    priority: float


class Peers(NamedTuple):
    """Partners with the same sharing score, the one that has run for longest first."""

    score: int
    bar: float  # no job with a higher priority value may join any of them
    free_mib: int  # the most that any of them leaves free
    partners: list[Partner]
    in_vain: dict[int, tuple[float, int]]  # by user: priority value and need of a job that failed


class Binder:
    """Lives for one planning round. It forms no pairs on `reserved` GPUs."""

    def __init__(
        self, view: View, capacity: int, traits: TraitsOf, reserved: frozenset[GpuId]
    ) -> None:
        self._view = view
        self._capacity = capacity
        self._traits = traits
        self._margin_mib = view.settings.preconditions_for("lucid").margin_mib
        self._partners = self._found(reserved)

    def partner(self, job: Job) -> Partner | None:
        """The partner that `job` should join, if any. Nearly all jobs of a long queue fail here, so
        it must be quick: `objections` is called only for partners that pass simple checks."""
        found: list[Partner] = []
        for memory_mib, groups in self._partners.get(job.spec.gpus, ()):
            mine = self._traits(job, memory_mib)
            for peers in groups:
                if (
                    mine.score + peers.score <= self._capacity
                    and mine.priority <= peers.bar
                    and mine.need_mib <= peers.free_mib
                    and (partner := self._first(mine, peers))
                ):
                    found.append(partner)
        return min(found, key=_seniority) if found else None

    def bind(self, partner: Partner) -> None:
        """Record that a job has joined this partner."""
        for _, groups in self._partners[len(partner.gpus)]:
            for peers in groups:
                if partner in peers.partners:
                    peers.partners.remove(partner)

    def explanation(self, job: Job, partner: Partner) -> Reason:
        mine, its = self._both(job, partner.gpus[0])
        total = mine.score + its.score
        return Reason("affine", self._capacity, total, detail=_scores(mine, its))

    def objections(self, job: Job, gpu: GpuView) -> Iterator[Reason]:
        """Why `job` may not join the job on `gpu`."""
        if len(gpu.residents) >= PAIR:
            yield Reason("jobs_per_gpu", PAIR, len(gpu.residents), "jobs")
            return
        mine, its = self._both(job, gpu)
        name = f"job {its.job.id}"
        if its.job.spec.gpus != job.spec.gpus:
            yield Reason("gpu_demand", job.spec.gpus, its.job.spec.gpus, "GPUs", name)
        if len({self._view.node_of.get(id) for id in its.job.gpus}) > 1:
            yield Reason("distributed", detail=name)
        if its.job.stop is not None:
            yield Reason("busy", 0, 1, "jobs", name)
        if mine.aloof:
            yield replace(mine.aloof, detail="this job")
        if its.aloof:
            yield replace(its.aloof, detail=name)
        if not mine.aloof and not its.aloof:
            yield from self._mismatch(mine, its)
        retry_mib = job.retry.margin_mib if job.retry else 0
        need_mib = mine.need_mib + max(self._margin_mib, retry_mib)
        if need_mib > (free_mib := _free_mib(gpu, its)):
            yield Reason("memory", need_mib, free_mib, "MiB")

    def _mismatch(self, mine: Traits, its: Traits) -> Iterator[Reason]:
        total = mine.score + its.score
        if total > self._capacity:
            yield Reason("sharing_score", self._capacity, total, detail=_scores(mine, its))
        bar = OUTLASTS * its.priority
        if mine.priority > bar:
            known = 0.0 if mine.priority == math.inf else mine.priority  # JSON has no infinity
            yield Reason("outlasts", bar, known, "GPU-s", f"job {its.job.id}")

    def _first(self, mine: Traits, peers: Peers) -> Partner | None:
        """The first suitable one. If none was suitable for a job of the same user that needs no
        more, none is for this one."""
        job = mine.job
        if mine.aloof or job.exclusive:
            return None
        asked = peers.in_vain.get(job.spec.uid)
        if asked and mine.priority >= asked[0] and mine.need_mib >= asked[1]:
            return None
        wanted = self._view.demand(job)
        for partner in peers.partners:
            if (
                mine.priority <= OUTLASTS * partner.priority
                and mine.need_mib <= partner.free_mib
                and self._may_join(job, wanted, partner)
            ):
                return partner
        if job.retry is None:
            peers.in_vain[job.spec.uid] = mine.priority, mine.need_mib
        return None

    def _may_join(self, job: Job, wanted: Demand, partner: Partner) -> bool:
        return not any(
            refusals(wanted, gpu, self._view) or any(self.objections(job, gpu))
            for gpu in partner.gpus
        )

    def _both(self, job: Job, gpu: GpuView) -> tuple[Traits, Traits]:
        memory_mib = gpu.gpu.memory_mib
        return self._traits(job, memory_mib), self._traits(gpu.residents[0], memory_mib)

    # -- jobs that could be joined

    def _found(self, reserved: frozenset[GpuId]) -> dict[int, list[tuple[int, list[Peers]]]]:
        """Partners by number of GPUs, and by the memory of the smallest of them."""
        question = (self._traits, reserved)
        alike: dict[int, dict[int, dict[int, list[Partner]]]] = {}
        for node in self._view.nodes:
            for each in node.memo.recall(question, _partners_on, node, self._view, *question):
                by_score = alike.setdefault(len(each.gpus), {}).setdefault(each.memory_mib, {})
                by_score.setdefault(each.score, []).append(each)
        return {
            count: [
                (memory_mib, [_peers(score, partners) for score, partners in by_score.items()])
                for memory_mib, by_score in by_memory.items()
            ]
            for count, by_memory in alike.items()
        }


def _partners_on(
    node: NodeView, view: View, traits: TraitsOf, reserved: frozenset[GpuId]
) -> tuple[Partner, ...]:
    alone: dict[JobId, list[GpuView]] = {}
    for gpu in node.gpus:
        if len(gpu.residents) != 1 or gpu.id in reserved or gpu.residents[0].stop is not None:
            continue
        if not refusals(COMPANY, gpu, view):
            alone.setdefault(gpu.residents[0].id, []).append(gpu)
    found = []
    for gpus in alone.values():
        memory_mib = min(gpu.gpu.memory_mib for gpu in gpus)
        its = traits(gpus[0].residents[0], memory_mib)
        if not its.aloof and len(gpus) == len(its.job.gpus):
            free_mib = min(_free_mib(gpu, its) for gpu in gpus)
            place = tuple(gpus), memory_mib, free_mib
            found.append(Partner(its.job, *place, its.score, its.priority))
    return tuple(found)


def _peers(score: int, partners: list[Partner]) -> Peers:
    partners.sort(key=_seniority)
    bar = OUTLASTS * max(partner.priority for partner in partners)
    return Peers(score, bar, max(partner.free_mib for partner in partners), partners, {})


def _seniority(partner: Partner) -> tuple[float, JobId]:
    return partner.job.started_at or 0.0, partner.job.id


def _free_mib(gpu: GpuView, its: Traits) -> int:
    """Free memory, minus what the job there may still allocate."""
    return min(gpu.free_mib, gpu.gpu.memory_mib - gpu.external_mib - its.need_mib)


def _scores(mine: Traits, its: Traits) -> str:
    return f"job {its.job.id} is {WORDS[its.score]}, this one {WORDS[mine.score]}"
