"""Places queued jobs: asks the policy, checks its plan against the hard rules, and starts jobs."""

from __future__ import annotations

from dataclasses import replace

from carmad.config import Settings
from carmad.core.admission import mode, refusals
from carmad.core.decision import Decision, Placement, Reason, refuse
from carmad.core.fleet import Fleet
from carmad.core.ledger import Ledger
from carmad.core.line import Held, barrier
from carmad.core.ports import Policy
from carmad.core.sound import is_placement
from carmad.core.states import advance
from carmad.core.types import GpuId, Job, JobId, JobState
from carmad.core.view import View


class Placer:
    """`decisions` has the latest on each job that was judged and has not ended."""

    def __init__(self, settings: Settings, policy: Policy, ledger: Ledger, fleet: Fleet) -> None:
        self._settings = settings
        self._policy = policy
        self._ledger = ledger
        self._fleet = fleet
        self._last_placed: GpuId | None = None
        self._news: list[Decision] = []
        self.decisions: dict[JobId, Decision] = {}

    def view(self, now: float) -> View:
        holders = tuple(self._ledger.holders.values())
        held, quota = Held.by(holders), self._settings.limits.gpus_per_user
        live = self._ledger.jobs
        doubtful = self._ledger.conditional if quota is None else live  # a quota may hold up any
        ready = tuple(
            job
            for job in self._ledger.line()
            if job.id not in doubtful or barrier(job, now, live, held, quota) is None
        )
        gpus = tuple(
            self._fleet.view(gpu, self._ledger.residents(gpu), now) for gpu in self._fleet.gpus
        )
        return View(now, gpus, ready, holders, self._settings, self._last_placed)

    def barrier(self, job: Job, now: float) -> Reason | None:
        """What keeps a queued job out of the policy's sight, if anything does."""
        held = Held.by(self._ledger.holders.values())
        return barrier(job, now, self._ledger.jobs, held, self._settings.limits.gpus_per_user)

    def plan(self, now: float) -> list[Job]:
        """Start what the policy says may start. Returns those jobs."""
        started: list[Job] = []
        while self._plan_once(now, started):
            pass
        return started

    def news(self) -> tuple[Decision, ...]:
        """The decisions since the last call that tell another story than the one before."""
        news, self._news = tuple(self._news), []
        return news

    def _plan_once(self, now: float, started: list[Job]) -> bool:
        """Place as planned. True: a job started whose quota or array is exhausted by that, and
        what follows in the plan counted on others that now may not start."""
        view = self.view(now)
        if not view.queue:
            return False
        waiting: list[JobId] = []  # judged, and passed over by those that start below
        for placement in self._planned(view):
            job = view.queued(placement.job)
            if job is None:
                continue
            if placement.gpus and self.barrier(job, now):
                return True
            checked = self._checked(job, placement, view)
            self._decide(Decision(now, self._policy.name, checked))
            if not checked.gpus:
                waiting.append(job.id)
                continue
            for id in waiting:
                passed = self._ledger.jobs[id]
                self._ledger.put(replace(passed, overtaken=passed.overtaken + 1))
            started.append(self._start(job, checked.gpus, view))
            view = view.with_placement(job, checked.gpus)
        return False

    def _planned(self, view: View) -> tuple[Placement, ...]:
        """The policy's plan; a policy that fails is reported on the job that waits for it."""
        try:
            plan = tuple(self._policy.plan(view))
            wrong = [answer for answer in plan if not is_placement(answer)]
            if not wrong:
                return plan
            problem = f"it answered {wrong[0]!r:.200}"
        except Exception as error:  # noqa: BLE001 - foreign code
            problem = f"it raised {error!r:.200}"
        return (Placement(view.queue[0].id, reasons=(Reason("policy_failed", detail=problem),)),)

    def _checked(self, job: Job, placement: Placement, view: View) -> Placement:
        """The placement, or a wait that says which hard rule its GPUs would have broken."""
        if not placement.gpus:
            return placement
        known = {gpu.id: gpu for gpu in view.gpus}
        chosen = tuple(dict.fromkeys(placement.gpus))
        if len(chosen) != job.spec.gpus or not all(gpu in known for gpu in chosen):
            answer = ", ".join(placement.gpus)
            return refuse(placement, Reason("policy_failed", detail=f"it chose {answer:.200}"))
        for gpu in chosen:
            if broken := refusals(job, known[gpu], view.now, self._settings):
                return refuse(placement, broken[0])
        return placement

    def _start(self, job: Job, gpus: tuple[GpuId, ...], view: View) -> Job:
        started = advance(
            self._ledger.jobs[job.id],
            JobState.STARTING,
            gpus=gpus,
            mode=mode(job, [view.gpu(gpu) for gpu in gpus], self._settings),
            attempt=job.attempt + 1,
            notes=() if job.attempt else job.notes,  # before the first, they are about the job
            started_at=view.now,
            kernels=(),
            shared=any(view.gpu(gpu).residents for gpu in gpus),
            warned=False,
        )
        for gpu in gpus:
            for resident in self._ledger.residents(gpu):
                if not resident.shared:
                    self._ledger.put(replace(resident, shared=True))
        self._last_placed = gpus[-1]
        self._ledger.put(started)
        return started

    def _decide(self, new: Decision) -> None:
        old = self.decisions.get(new.placement.job)
        self.decisions[new.placement.job] = new
        if old is None or not old.same_story(new):
            self._news.append(new)
