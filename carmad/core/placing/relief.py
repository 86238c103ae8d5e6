"""Who is suspended so that others can run: where a shared GPU's memory is about to be full, and,
where `limits.preemption` is "suspend", for a reservation that has begun, for urgent jobs, and for
jobs at a terminal, whose owners wait there.

A job that grows stops growing as soon as it is locked, long before it is gone. So it can always be
suspended in time, and a neighbour only if enough time is left to move its memory; of those, the
one with the least memory is. The job that grew, and would grow again, is to be alone, as after the
crash that was averted (CARMA paper, 3.5), until its memory is steady; a neighbour returns
elsewhere.

GPUs are freed of all their jobs, so that any policy places the next one there. Nobody is suspended
for a job that GPUs are being freed for already. Whoever was suspended waits in line like all
others, and two jobs cannot take turns without end: see `suspending.refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from math import inf
from typing import Literal

from carmad.core.gpus.fleet import Fleet
from carmad.core.gpus.gpu import GpuSample, held_mib
from carmad.core.gpus.gpuview import GpuView
from carmad.core.gpus.readings import is_steady
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.control import never
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import Ledger
from carmad.core.jobs.states import JobState
from carmad.core.jobs.suspending import Suspensions
from carmad.core.messages import Action
from carmad.core.placing.view import View

FULL = "its GPU's memory was about to be full"
LOOKS = 1


class Relief:
    def __init__(self, ledger: Ledger, fleet: Fleet, suspensions: Suspensions) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._suspensions = suspensions

    @property
    def waiting(self) -> list[JobId]:
        """The jobs in line for which others are suspended."""
        line = zip(self._ledger.places(), self._ledger.line(), strict=True)
        first = takewhile(lambda each: not (each[0][0] and each[0][1]), line)
        return [job.id for place, job in first if not place[1]]

    def relieve(self, view: View) -> list[Action]:
        """Suspend who is in the way, after the policy has placed whom it could."""
        chosen: dict[JobId, str] = {}
        may = view.settings.limits.preemption == "suspend"
        for gpu, job, whose in chain.from_iterable(map(_out_of_place, view.gpus)):
            if may and (job.spec.requeue_ok or not never(job, view.settings)):
                chosen[job.id] = f"for a reservation ({whose})"
            else:
                where = f"GPU {gpu.gpu.index}, which is now reserved ({whose})"
                self._ledger.note(job.id, f"is still on {where}; it is not stopped for that")
        taken: set[GpuId] = set()
        wait = set(self.waiting) if may else set()
        actions: list[Action] = []
        for job in view.queue:
            if job.id in wait:
                victims, lack_mib = self._victims(job, view, taken)
                chosen = {each.id: f"for job {job.id}" for each in victims} | chosen
                if lack_mib:
                    actions += self._make_room(job, lack_mib, view.now)
        jobs = ((self._ledger.jobs[id], why) for id, why in chosen.items())
        return actions + [
            action for job, why in jobs for action in self._suspensions.preempt(job, why, view.now)
        ]

    def _make_room(self, job: Job, mib: int, now: float) -> list[Action]:
        """For so much on the host, so that others can be suspended for the job; it is told who is
        in the way."""
        if largest := self._suspensions.largest:
            self._ledger.note(
                job.id,
                "no job is suspended for it while the host's memory for that is taken, mostly by"
                f" suspended job {largest.id} of {largest.spec.user}",
            )
        return self._suspensions.make_room(mib, f"job {job.id}", now)

    def avert(self, samples: Iterable[GpuSample], now: float) -> list[Action]:
        """Suspend a job on each shared GPU whose memory, by its last readings, would be full before
        the next one was acted on. A job that is alone because it grew, and grows no more, need not
        be any longer."""
        actions: list[Action] = []
        for sample in samples:
            residents = [j for j in self._ledger.residents(sample.gpu) if not j.leaves]
            if len(residents) == 1:
                self._share_again(residents[0], sample.gpu)
            growth = self._fleet.growth(sample.gpu) if len(residents) > 1 else {}
            rate = sum(growth.values())
            if rate <= 0 or sample.memory_free_mib is None or _fit(residents, sample):
                continue
            full_in_s = max(0.0, sample.memory_free_mib / rate)
            growing = max(residents, key=lambda job: growth.get(job.id, 0.0))
            if job := self._cheapest(residents, growing, sample, full_in_s, now):
                after: Literal["alone", "elsewhere"] = "alone" if job is growing else "elsewhere"
                actions.append(self._suspensions.suspend(job, FULL, now, after=after))
        return actions

    def _share_again(self, job: Job, gpu: GpuId) -> None:
        """Once its memory has been the same for a window, what it needs is known."""
        grew = job.retry is not None and job.retry.exclusive and job.retry.why == FULL
        if (
            grew
            and job.state is JobState.RUNNING
            and is_steady(job, self._fleet.readings(gpu), self._suspensions.settings)
        ):
            self._ledger.put(replace(job, retry=None))

    def _cheapest(
        self,
        residents: Sequence[Job],
        growing: Job,
        sample: GpuSample,
        full_in_s: float,
        now: float,
    ) -> Job | None:
        """The job to suspend now; None: there is time, or none can be."""
        settings = self._suspensions.settings
        for job in sorted(residents, key=lambda job: held_mib(job.id, sample)):
            if self._suspensions.refusal(job, now):
                continue
            moved_mib = 0 if job is growing else held_mib(job.id, sample)
            takes_s = settings.suspend.fixed_s + moved_mib / settings.suspend.out_mib_s
            if takes_s <= full_in_s or job is growing:
                return job if full_in_s <= takes_s + settings.monitor.period_s else None
        return None

    def _victims(self, job: Job, view: View, taken: set[GpuId]) -> tuple[list[Job], int]:
        """The jobs to suspend for this one: those on the GPUs of a node that are cheapest to free.
        These are added to `taken`. None if that would not help; and the memory in MiB that the host
        would have to have for the least of them, if that is all that is missing."""
        least_mib = 0
        for node in view.nodes:
            able = [gpu for gpu in node.gpus if gpu.id not in taken and self._frees(gpu, job, view)]
            able.sort(key=lambda gpu: self._moved_mib([gpu]))
            its = able[: job.spec.gpus]
            moved_mib = self._moved_mib(its)
            if len(its) < job.spec.gpus:
                continue
            if moved_mib <= self._suspensions.host_room_mib:
                taken.update(gpu.id for gpu in its)
                return [each for gpu in its for each in gpu.residents], 0
            least_mib = min(least_mib or moved_mib, moved_mib)
        return [], least_mib

    def _frees(self, gpu: GpuView, job: Job, view: View) -> bool:
        """Whether the GPU could take the job without those that are there, and they can go if the
        host has room."""
        empty_mib = gpu.gpu.memory_mib - gpu.external_mib
        empty = replace(gpu, residents=(), settling=None, free_mib=empty_mib)
        if (job.need and job.need.safe_mib > empty_mib) or view.refusals(view.demand(job), empty):
            return False
        way = partial(self._suspensions.way_to_preempt, now=view.now, room=True)
        return all(
            each.leaves or (not self._goes_first(each) and way(each)) for each in gpu.residents
        )

    def _moved_mib(self, gpus: Iterable[GpuView]) -> int:
        """What is to be moved to the host to free them: of each job all, also from other GPUs."""
        stay = {job.id: job for gpu in gpus for job in gpu.residents if not job.leaves}
        return sum(sum(self._fleet.memory_of(job).values()) for job in stay.values())

    def _goes_first(self, job: Job) -> bool:
        usual, _ = self._ledger.standing(job)
        return not usual


def _fit(residents: Iterable[Job], sample: GpuSample) -> bool:
    """Whether the GPU has room for all that these jobs are expected to take."""
    free_mib = float(sample.memory_free_mib or 0)
    for job in residents:
        need_mib = job.need.safe_mib if job.need else inf
        free_mib -= max(0.0, need_mib - held_mib(job.id, sample))
    return free_mib >= 0


def _out_of_place(gpu: GpuView) -> Iterator[tuple[GpuView, Job, str]]:
    """The jobs that are where a reservation for others has begun, and whose that is."""
    for slot in gpu.reserved:
        for job in gpu.residents:
            if not slot.in_s and not slot.of.admits(job.spec.owner):
                yield gpu, job, slot.of.whose
