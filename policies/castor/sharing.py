"""Which neighbours a job should share GPUs with (Castor paper, algorithm 1, lines 9 to 18).

Where the listing and its text leave something open:

- The GPUs of neighbours are used first, and idle ones fill the rest: line 9 counts both, and "we do
  not pick the free GPUs at first for this case" (5.2.2).
- With several neighbours the job has one accumulation, the largest that any of them requires, and
  the worst of its ratios; each of the pairs must still gain with these.
- A sub-batch fits if the GPU's free memory is enough for the estimated or measured need.
- How a batch is split changes the ratios through its memory alone: no model covers more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from carmad.plugin import Demand, GpuId, GpuView, Job, Preconditions, Reason, Verdict, View, idle
from policies.castor.interference import Interference
from policies.castor.neighbours import (
    Neighbour,
    Worked,
    batch,
    left_s,
    most_passes,
    neighbours,
    steps,
    unknown,
)
from policies.castor.pairing import Ratios, Start, accumulations, at_once, best_split, ends, later
from policies.filters import min_free
from policies.views import memory_shortage, need_mib

JOBS_PER_GPU = 2  # (Castor paper, 5.2.2)


class Room(NamedTuple):
    """What is available in a view."""

    view: View
    idle: tuple[GpuView, ...]
    neighbours: tuple[Neighbour, ...]


def look(view: View, worked: Worked) -> Room:
    only_idle = tuple(gpu for gpu in view.gpus if idle(gpu, view.settings) is None)
    return Room(view, only_idle, neighbours(view, worked))


class Newcomer(NamedTuple):
    """A queued job that may share, with what is needed to judge neighbours."""

    job: Job
    wanted: Demand
    left_s: float
    least_mib: int  # memory with its batches in as many parts as possible


def newcomer(job: Job, view: View) -> Newcomer | None:
    """None for a job that may not share."""
    wanted = view.demand(job)
    if wanted.alone or unknown(job):
        return None
    return Newcomer(job, wanted, left_s(job, job.served_s), need_mib(job, most_passes(job)))


class Pair(NamedTuple):
    """A neighbour, the GPUs of it that the job could use, and the resulting completion times."""

    neighbour: Neighbour
    gpus: tuple[GpuView, ...]
    start: Start


class Choice(NamedTuple):
    gpus: tuple[GpuId, ...]
    accumulation: int
    explanation: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    conditions: Preconditions
    interference: Interference

    def choose(self, new: Newcomer, room: Room) -> Choice | None:
        """Neighbours in order of their pairs' mean completion times, until the job has enough GPUs.
        None if there is no gain with any of them."""
        view, wanted = room.view, new.wanted.gpus
        if len(room.idle) + sum(len(each.gpus) for each in room.neighbours) < wanted:
            return None
        pairs = [pair for each in room.neighbours if (pair := self._gaining(new, each, view))]
        pairs.sort(key=lambda pair: pair.start.pair_jct_s)
        chosen: list[Pair] = []
        gpus: list[GpuId] = []
        for pair in pairs:
            if len(gpus) < wanted:
                chosen.append(pair)
                gpus += [gpu.id for gpu in pair.gpus[: wanted - len(gpus)]]
        if not chosen:
            return None
        passes = max(pair.start.accumulation for pair in chosen)
        benefits = self._together(new, chosen, passes, view)
        if benefits is None:
            return None
        return Choice(tuple(gpus), passes, (*benefits, *_split(new.job, passes)))

    def verdicts(self, new: Newcomer, alone: Sequence[Verdict], room: Room) -> tuple[Verdict, ...]:
        """`alone` has the verdicts for a job that must be alone, which are used for idle GPUs."""
        view = room.view
        known = {gpu.id: each for each in room.neighbours for gpu in each.gpus}
        found = []
        for gpu, verdict in zip(view.gpus, alone, strict=True):
            if neighbour := known.get(gpu.id):
                verdict = self._verdict(new, neighbour, gpu, view)
            elif gpu.residents:
                verdict = Verdict(gpu.id, self._why_closed(new, gpu, view))
            found.append(verdict)
        return tuple(found)

    def _verdict(self, new: Newcomer, neighbour: Neighbour, gpu: GpuView, view: View) -> Verdict:
        """Ranked by the pair's mean completion time."""
        if refused := self._refusals(new, gpu, view):
            return Verdict(gpu.id, refused)
        pair = self._pair(new, neighbour, (gpu,), view)
        if pair.start.share:
            return Verdict(gpu.id, rank=pair.start.pair_jct_s)
        passes = self._fewest(new.job, (gpu,))
        both = _at_once(new, neighbour, self._ratios(new, neighbour, passes, view), passes)
        return Verdict(gpu.id, (_reason("no_benefit", new, neighbour, both),))

    def _why_closed(self, new: Newcomer, gpu: GpuView, view: View) -> tuple[Reason, ...]:
        """Why a GPU without a neighbour cannot be shared: it has two jobs, or not enough is known
        about its job."""
        refused = self._refusals(new, gpu, view)
        if len(gpu.residents) >= JOBS_PER_GPU:
            why = Reason("jobs_per_gpu", JOBS_PER_GPU, len(gpu.residents), "jobs")
        else:
            (job,) = gpu.residents
            why = Reason(unknown(job), detail=f"job {job.id}")
        return refused if why in refused else (*refused, why)

    def _gaining(self, new: Newcomer, neighbour: Neighbour, view: View) -> Pair | None:
        """Lines 11 and 12."""
        if neighbour.gpus[0].free_mib < new.least_mib:
            return None
        if batch(new.job) == 1:  # first theorem 1 alone, which is quick
            ratios = self._ratios(new, neighbour, 1, view)
            if sum(ends(neighbour.left_s, new.left_s, ratios, 0.0)) >= _waiting_s(new, neighbour):
                return None
        fit = (gpu for gpu in neighbour.gpus if not self._refusals(new, gpu, view))
        gpus = tuple(islice(fit, new.wanted.gpus))
        if not gpus:
            return None
        pair = self._pair(new, neighbour, gpus, view)
        return pair if pair.start.share else None

    def _pair(
        self, new: Newcomer, neighbour: Neighbour, gpus: tuple[GpuView, ...], view: View
    ) -> Pair:
        """Algorithm 2."""
        job = new.job
        start = best_split(
            neighbour.left_s,
            new.left_s,
            batch(job),
            steps(job),
            ratios=lambda passes: self._ratios(new, neighbour, passes, view),
            fits=lambda passes: self._fit(need_mib(job, passes), job, gpus),
        )
        return Pair(neighbour, gpus, start)

    def _ratios(self, new: Newcomer, neighbour: Neighbour, passes: int, view: View) -> Ratios:
        memory_mib = neighbour.gpus[0].gpu.memory_mib
        return self.interference(neighbour.job, new.job, memory_mib, view, passes)

    def _together(
        self, new: Newcomer, pairs: Sequence[Pair], passes: int, view: View
    ) -> tuple[Reason, ...] | None:
        """The gain with each neighbour; None if one has none with the passes that others require.
        The job goes at the pace of the GPU that slows it most."""
        ratios = [self._ratios(new, pair.neighbour, passes, view) for pair in pairs]
        worst = max(own for _, own in ratios)
        benefits = []
        for pair, (ratio, _) in zip(pairs, ratios, strict=True):
            both = _at_once(new, pair.neighbour, (ratio, worst), passes)
            if 2 * both.pair_jct_s >= _waiting_s(new, pair.neighbour):
                return None
            benefits.append(_reason("sharing_benefit", new, pair.neighbour, both))
        return tuple(benefits)

    def _refusals(self, new: Newcomer, gpu: GpuView, view: View) -> tuple[Reason, ...]:
        question = (self, new.wanted)
        refused = gpu.memo.recall(question, self._unfit, new.wanted, gpu, view)
        short = memory_shortage(new.least_mib, new.job, gpu, self.conditions)
        return (*refused, short) if short else refused

    def _unfit(self, wanted: Demand, gpu: GpuView, view: View) -> tuple[Reason, ...]:
        too_full = min_free(self.conditions, view.settings)(wanted, gpu)
        refused = view.refusals(wanted, gpu)
        return (*refused, too_full) if too_full else refused

    def _fewest(self, job: Job, gpus: Sequence[GpuView]) -> int:
        """The fewest passes with which a batch fits on all of these GPUs; the most always do."""
        every = accumulations(batch(job))
        return next(passes for passes in every if self._fit(need_mib(job, passes), job, gpus))

    def _fit(self, need: int, job: Job, gpus: Sequence[GpuView]) -> bool:
        return not any(memory_shortage(need, job, gpu, self.conditions) for gpu in gpus)


def _at_once(new: Newcomer, neighbour: Neighbour, ratios: Ratios, passes: int) -> Start:
    slowdown = steps(new.job).slowdown(batch(new.job), passes)
    return at_once(neighbour.left_s, new.left_s, ratios, slowdown, passes)


def _waiting_s(new: Newcomer, neighbour: Neighbour) -> float:
    """The sum of both completion times, one after the other."""
    return 2 * later(neighbour.left_s, new.left_s).pair_jct_s


def _reason(code: str, new: Newcomer, neighbour: Neighbour, both: Start) -> Reason:
    waiting_s = _waiting_s(new, neighbour) / 2
    return Reason(code, waiting_s, both.pair_jct_s, "s", f"job {neighbour.job.id}")


def _split(job: Job, passes: int) -> tuple[Reason, ...]:
    if passes == 1:
        return ()
    return (Reason("split_batch", batch(job), batch(job) // passes, detail=f"{passes} parts"),)
