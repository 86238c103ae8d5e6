"""The Affine-jobpair Binder: which running job a new one joins, if any (Lucid paper, 3.3).

The paper's rules: (1) both jobs' memory fits, (2) both want the same number of GPUs, and get the
same ones, (3) at most two jobs are on a set of GPUs, (4) jobs with unstable GPU usage are not
packed (and evicted if they are: `traits`), (5) nor are jobs that run on several nodes. The
sharing scores must not add up to more than the capacity.

Nor must the GPU utilisations that the two have alone. In the paper, utilisation "should be
sufficient" for packing decisions (2.3) and weighs most in the tree (figure 6); the tree trained
here on the labels that follow from the measured pairs does not use it (`lab.lucid.models`).

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

from carmad.plugin import GpuId, GpuView, Job, JobId, NodeView, Reason, View
from policies.lucid.mode import Capacity
from policies.lucid.room import refusals
from policies.lucid.traits import WORDS, Traits, TraitsOf
from policies.views import margin_mib

PAIR = 2  # jobs per set of GPUs
OUTLASTS = 2.0  # times the partner's priority value


class Partner(NamedTuple):
    """A job that could be joined: alone on its GPUs, all on one node, with a stable profile."""

    its: Traits
    gpus: tuple[GpuView, ...]
    memory_mib: int  # of the smallest of its GPUs
    free_mib: int  # on the fullest of its GPUs


class Peers:
    """Partners with the same sharing score, the one that has run for longest first.

    `bar`, `free_mib` and `utilization` are those of the partners that allow the most: a job that
    exceeds one of them can join none.
    """

    __slots__ = ("bar", "free_mib", "in_vain", "partners", "score", "utilization")

    def __init__(self, score: int, partners: list[Partner]) -> None:
        self.score = score
        self.partners = sorted(partners, key=_seniority)
        # By user: what a job asked for that could join none of them.
        self.in_vain: dict[int, Traits] = {}
        self._measure()

    def remove(self, partner: Partner) -> bool:
        """True if it was one of them."""
        left = [each for each in self.partners if each is not partner]
        if len(left) == len(self.partners):
            return False
        self.partners = left
        if left:
            self._measure()
        return True

    def _measure(self) -> None:
        self.bar = OUTLASTS * max(each.its.priority for each in self.partners)
        self.free_mib = max(each.free_mib for each in self.partners)
        self.utilization = min(each.its.utilization for each in self.partners)


class Binder:
    """Lives for one planning round. It forms no pairs on `reserved` GPUs. `view` must show what the
    jobs placed since have closed."""

    def __init__(
        self, view: View, capacity: Capacity, traits: TraitsOf, reserved: frozenset[GpuId]
    ) -> None:
        self.view = view
        self._capacity = capacity
        self._traits = traits
        self._conditions = view.settings.preconditions_for("lucid")
        # By number of GPUs, and by the memory of the smallest of them; none is empty.
        self.partners = self._find_peers(reserved)

    def partner(self, job: Job) -> Partner | None:
        """The partner that `job` should join, if any. Nearly all jobs of a long queue fail here, so
        it must be quick."""
        found: list[Partner] = []
        score, utilization = self._capacity
        for memory_mib, groups in self.partners.get(job.spec.gpus, ()):
            mine = self._traits(job, memory_mib)
            for peers in groups:
                if (
                    mine.score + peers.score <= score
                    and mine.priority <= peers.bar
                    and mine.utilization + peers.utilization <= utilization
                    and mine.need_mib <= peers.free_mib
                    and (partner := self._first(mine, peers))
                ):
                    found.append(partner)
        return min(found, key=_seniority) if found else None

    def bind(self, partner: Partner) -> None:
        """Record that a job has joined this partner."""
        count = len(partner.gpus)
        for _, groups in self.partners[count]:
            for peers in groups:
                if peers.remove(partner):
                    if not peers.partners:
                        groups.remove(peers)
                    break
        if not any(groups for _, groups in self.partners[count]):
            del self.partners[count]

    def explanation(self, job: Job, partner: Partner) -> Reason:
        mine, its = self._both(job, partner.gpus[0])
        total = mine.score + its.score
        return Reason("affine", self._capacity.score, total, detail=_scores(mine, its))

    def objections(self, job: Job, gpu: GpuView) -> Iterator[Reason]:
        """Why `job` may not join the job on `gpu`."""
        if len(gpu.residents) >= PAIR:
            yield Reason("jobs_per_gpu", PAIR, len(gpu.residents), "jobs")
            return
        mine, its = self._both(job, gpu)
        name = f"job {its.job.id}"
        if its.job.spec.gpus != job.spec.gpus:
            yield Reason("gpu_demand", job.spec.gpus, its.job.spec.gpus, "GPUs", name)
        if len({self.view.node_of.get(id) for id in its.job.gpus}) > 1:
            yield Reason("distributed", detail=name)
        if its.job.leaves:
            yield Reason("busy", 0, 1, "jobs", name)
        if mine.aloof:
            yield mine.aloof
        if its.aloof:
            yield replace(its.aloof, detail=name)
        if not mine.aloof and not its.aloof:
            yield from self._mismatch(mine, its, name)
        need_mib = self._need_mib(mine)
        if need_mib > (free_mib := _free_mib(gpu, its)):
            yield Reason("memory", need_mib, free_mib, "MiB")

    def _mismatch(self, mine: Traits, its: Traits, name: str) -> Iterator[Reason]:
        total = mine.score + its.score
        if total > self._capacity.score:
            yield Reason("sharing_score", self._capacity.score, total, detail=_scores(mine, its))
        busy = mine.utilization + its.utilization
        if busy > self._capacity.utilization:
            yield Reason("busy_pair", self._capacity.utilization, busy, detail=name)
        bar = OUTLASTS * its.priority
        if mine.priority > bar:
            known = 0.0 if mine.priority == math.inf else mine.priority  # JSON has no infinity
            yield Reason("outlasts", bar, known, "GPU-s", name)

    def _first(self, mine: Traits, peers: Peers) -> Partner | None:
        """The first suitable one. If none was suitable for a job of the same user that asked for no
        more, none is for this one."""
        job = mine.job
        if mine.aloof or job.exclusive:
            return None
        asked = peers.in_vain.get(job.spec.uid)
        if (
            asked
            and mine.priority >= asked.priority
            and mine.utilization >= asked.utilization
            and mine.need_mib >= asked.need_mib
        ):
            return None
        wanted, need_mib = self.view.demand(job), self._need_mib(mine)
        for partner in peers.partners:
            its = partner.its
            if (
                mine.priority <= OUTLASTS * its.priority
                and mine.utilization + its.utilization <= self._capacity.utilization
                and need_mib <= partner.free_mib
                and not any(
                    refusals(wanted, self.view.gpu(gpu.id), self.view) for gpu in partner.gpus
                )
            ):
                return partner
        if job.retry is None:
            peers.in_vain[job.spec.uid] = mine
        return None

    def _need_mib(self, mine: Traits) -> int:
        """With a margin."""
        return mine.need_mib + margin_mib(mine.job.retry, self._conditions)

    def _both(self, job: Job, gpu: GpuView) -> tuple[Traits, Traits]:
        memory_mib = gpu.gpu.memory_mib
        return self._traits(job, memory_mib), self._traits(gpu.residents[0], memory_mib)

    # -- jobs that could be joined

    def _find_peers(self, reserved: frozenset[GpuId]) -> dict[int, list[tuple[int, list[Peers]]]]:
        question = (self._traits, reserved)
        alike: dict[int, dict[int, dict[int, list[Partner]]]] = {}
        for node in self.view.nodes:
            for each in node.memo.recall(question, _partners_on, node, *question):
                by_score = alike.setdefault(len(each.gpus), {}).setdefault(each.memory_mib, {})
                by_score.setdefault(each.its.score, []).append(each)
        return {
            count: [
                (memory_mib, [Peers(score, partners) for score, partners in by_score.items()])
                for memory_mib, by_score in by_memory.items()
            ]
            for count, by_memory in alike.items()
        }


def _partners_on(
    node: NodeView, traits: TraitsOf, reserved: frozenset[GpuId]
) -> tuple[Partner, ...]:
    """Whether a GPU is closed to a job depends on the job: `Binder.partner` checks it."""
    alone: dict[JobId, list[GpuView]] = {}
    for gpu in node.gpus:
        if len(gpu.residents) == 1 and gpu.id not in reserved and not gpu.residents[0].leaves:
            alone.setdefault(gpu.residents[0].id, []).append(gpu)
    found = []
    for gpus in alone.values():
        memory_mib = min(gpu.gpu.memory_mib for gpu in gpus)
        its = traits(gpus[0].residents[0], memory_mib)
        if not its.aloof and len(gpus) == len(its.job.gpus):
            free_mib = min(_free_mib(gpu, its) for gpu in gpus)
            found.append(Partner(its, tuple(gpus), memory_mib, free_mib))
    return tuple(found)


def _seniority(partner: Partner) -> tuple[float, JobId]:
    return partner.its.job.started_at or 0.0, partner.its.job.id


def _free_mib(gpu: GpuView, its: Traits) -> int:
    """Free memory, minus what the job there may still allocate."""
    return min(gpu.free_mib, gpu.gpu.memory_mib - gpu.external_mib - its.need_mib)


def _scores(mine: Traits, its: Traits) -> str:
    return f"job {its.job.id} is {WORDS[its.score]}, this one {WORDS[mine.score]}"
