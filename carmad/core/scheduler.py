"""The scheduler: takes events in time order, returns steps to commit and carry out.

Theory of operation
===================

                events, each with its time             a shell: the daemon or the simulator
                          |                            ------------------------------------
    +---------------------v------------------------+
    | handle                                       |   1. forget what the last step changed, as it
    |                                              |      is on disk
    |   HANDLERS[type(event)](state, event)        |   2. each event, by its handler
    |   enforce time limits, sort the line,        |   3. once per batch: what the time demands,
    |   plan, make room, set memory limits         |      the policy's plan, what follows from it
    |                                              |
    |   State: settings, jobs (the ledger), GPUs   |
    |   (the fleet), history, shares, plans        |
    +---------------------+------------------------+
                          v
                 Step: each version of each changed job, decisions, accounts, ...: `Store.commit`;
                 then its actions: `World.perform`. What comes of them are further events.

**The order of a step.** All events of a batch are handled before the policy plans, so that no plan
is based on half a batch. Time limits are enforced before the plan, so that it places no job beside
one that is about to be stopped. Jobs are suspended to make room for others only after the plan,
which may have found room for these. New memory limits are the first actions of a step, so that
those of a job are on record before it is launched. A batch that has only submissions makes no plan,
so that a user does not wait for one to learn that a job is stored: the engine sends a `Tick` after
it. The policy is asked again within one step if a start has used up a quota, or has split a row of
tasks.

**Commit, then act.** A step is one transaction. If the commit fails, its actions are not carried
out, except that the engine ends jobs whose time is over or that were cancelled while the disk is
full. `restore` then sets jobs, accounts, limits, drains and reservations to what is on disk, and
the same events may be given again. The pending actions are derived from the jobs
(`messages.due_actions`), so an action must be idempotent.

**Replay.** The core reads no clock, no file and no random number. Its steps follow from the state
at the beginning, the plug-ins, the events, and which calls to plug-ins failed (`Step.failures`).
`lab.replay` makes a journal's decisions again from these, and says what a journal lacks.

**Invariants**, which `check` asserts for all jobs that a step changed:

- a job is among `Ledger.holders` exactly if its state says that it holds GPUs or runs without any;
- it holds as many GPUs as it asked for, or none if it was suspended when it was stopped;
- a row of tasks holds none: a task that starts is a job of its own;
- no job shares a GPU with one that must have it to itself.

**Handlers.** A handler takes the state and its event, changes the state, and returns nothing: new
versions of jobs go to `state.ledger`, actions to `state.actions`. It reads `state.settings` at each
use. No handler calls another handler: what several do is a function with a name of its own, such as
`suspending.suspend` or `knowledge.end`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from carmad.config import Settings
from carmad.core import messages
from carmad.core.gpus import watching
from carmad.core.gpus.gpu import Drain, Gpu
from carmad.core.jobs import endings, knowledge, requests, suspending
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import Ended, JobsById, Outcome
from carmad.core.messages import Action, EstimateMemory, Event, Step, due_actions
from carmad.core.placing import deciders, placer, relief
from carmad.core.placing.view import Policy, View
from carmad.core.ports import Predictor, Recovery
from carmad.core.rules.guarantees import renew_limits
from carmad.core.rules.limits import Limit, Reservation
from carmad.core.rules.share import Account, Ranks, Shares
from carmad.core.scene import Scene
from carmad.core.state import State


def _on_sampled(state: State, event: messages.Sampled) -> None:
    watching.on_sampled(state, event)
    relief.avert(state, event)


HANDLERS: Mapping[type[Event], Callable[[State, Any], None]] = {
    messages.Discovered: watching.on_discovered,
    messages.Silent: watching.on_silent,
    messages.Sampled: _on_sampled,
    messages.Began: watching.on_began,
    messages.Postponed: watching.on_postponed,
    messages.Stepped: watching.on_stepped,
    messages.Stumbled: watching.on_stumbled,
    messages.Measured: watching.on_measured,
    messages.Noticed: watching.on_noticed,
    messages.Closing: watching.on_closing,
    messages.Submitted: requests.on_submitted,
    messages.Adopted: requests.on_adopted,
    messages.CancelRequested: requests.on_cancel_requested,
    messages.HoldRequested: requests.on_hold_requested,
    messages.UpdateRequested: requests.on_update_requested,
    messages.RequeueRequested: requests.on_requeue_requested,
    messages.DrainRequested: requests.on_drain_requested,
    messages.LimitRequested: requests.on_limit_requested,
    messages.Reserved: requests.on_reserved,
    messages.Unreserved: requests.on_unreserved,
    messages.SuspendRequested: suspending.on_suspend_requested,
    messages.ResumeRequested: suspending.on_resume_requested,
    messages.MoveRequested: suspending.on_move_requested,
    messages.Suspended: suspending.on_suspended,
    messages.Resumed: suspending.on_resumed,
    messages.Estimated: knowledge.on_estimated,
    messages.Trained: knowledge.on_trained,
    messages.Exited: endings.on_exited,
    messages.Reconfigured: deciders.on_reconfigured,
    messages.Tick: lambda state, event: None,  # only time has passed
}


class Scheduler:
    """The core as its shells see it. It is for one thread; `snapshot` returns a value for the
    others."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        recovery: Recovery,
        predictor: Predictor | None = None,
        fallback: Policy | None = None,
        make_plugins: Callable[[Settings], tuple[Policy, Predictor]] | None = None,
    ) -> None:
        """`fallback` decides while `policy` fails; None: jobs wait until it answers. `make_plugins`
        makes the policy and the predictor that new settings name; None: the first ones stay."""
        self.state = State(settings, policy, recovery, predictor, fallback, make_plugins)

    def handle(self, *events: Event) -> Step:
        """Process a batch of events, in time order, then plan once."""
        state = self.state
        state.begin_step()
        for event in events:
            HANDLERS[type(event)](state, event)
        for job in state.ledger.changes():
            if job.ended:
                state.plans.decisions.pop(job.id, None)
        now = events[-1].at
        ledger, fleet, shares = state.ledger, state.fleet, state.shares
        state.has_new_reservations |= fleet.renew_reservations(now, ledger.residents)
        watching.expire(state, now)
        owners = (job.spec.owner for job in ledger.line())
        if shares.rerank(now, owners, len(fleet.gpus)):
            ledger.rerank()
        if not all(isinstance(event, messages.Submitted) for event in events):
            placer.plan(state, now)
            if relief.is_needed(state, now):
                relief.relieve(state, self.view(now))
        memory_limits = renew_limits(state, events)
        for job in ledger.pieces():  # each needs an estimate of its own
            if (row := ledger.jobs.rows.get(job.id)) and row.awaits_estimate:
                state.actions.append(EstimateMemory(row))
        ledger.rates.convert_by(state.settings.host, len(fleet.gpus))
        shares.follow(ledger.rates, now)
        self.check()
        return Step(
            events,
            ledger.changes(),
            tuple(state.news),
            (*memory_limits, *state.actions),
            tuple(fleet.drains.values()) if state.has_new_drains else None,
            state.calls.failures,
            ledger.before(),
            tuple(shares.changed.values()),
            tuple(state.limited),
            tuple(fleet.reservations.values()) if state.has_new_reservations else None,
        )

    def restore(
        self,
        jobs: Iterable[Job],
        ended: Iterable[Outcome] = (),
        drains: Iterable[Drain] = (),
        last_placed: GpuId | None = None,
        history: History | None = None,
        accounts: Iterable[Account] = (),
        ranks: Ranks | None = None,
        limits: Iterable[Limit] = (),
        reservations: Iterable[Reservation] = (),
    ) -> tuple[Action, ...]:
        """Restore the state from a store; returns actions that may not have been carried out.

        `last_placed` is round-robin's position. None for it, `history` or `ranks`: this core's
        stay.
        """
        state = self.state
        state.history = history or state.history
        state.shares = Shares(state.settings.fairness, accounts, ranks or state.shares.ranks)
        jobs = knowledge.with_shared_profiles(jobs)
        state.take_up(jobs, ended, last_placed or state.plans.last_placed)
        ledger, fleet = state.ledger, state.fleet
        for job in ledger.running():
            state.history.learn(job)
        state.limits = {limit.subject: limit for limit in limits}
        fleet.drains = {drain.gpu: drain for drain in drains}
        fleet.reservations = {each.id: each for each in reservations}
        fleet.look_again()
        due = [action for job in self.jobs.rows.values() for action in due_actions(job)]
        for name in dict.fromkeys(job.group for job in ledger.line()):
            if state.history.by_group.of(name):  # an answer may have been under way
                due += knowledge.ask_again(ledger.alike(name))
        return tuple(due)

    # -- read access

    @property
    def settings(self) -> Settings:
        return self.state.settings

    @property
    def jobs(self) -> JobsById:
        """The jobs that have not ended."""
        return self.state.ledger.jobs

    @property
    def outcomes(self) -> Ended:
        """How the most recent jobs ended."""
        return self.state.ledger.ended

    @property
    def policy(self) -> Policy:
        return self.state.deciding.policy

    @property
    def acting(self) -> Policy:
        """The policy that decides now: `policy`, or its fallback."""
        return self.state.deciding.acting

    @property
    def gpus(self) -> Mapping[GpuId, Gpu]:
        return self.state.fleet.gpus

    def view(self, now: float, joining: Job | None = None) -> View:
        """What the policy sees; with `joining`, as if that job were queued."""
        return placer.view(self.state, now, joining)

    def snapshot(self, now: float) -> Scene:
        """A snapshot for other threads: only references are taken, nothing is rendered."""
        state, ledger, fleet = self.state, self.state.ledger, self.state.fleet
        return Scene(
            self.view(now),
            dict(fleet.gpus),
            ledger.jobs.copy(),
            dict(fleet.usage),
            ledger.line(),
            ledger.running(),
            dict(state.plans.decisions),
            ledger.held.copy(),
            fleet.unread,
            dict(fleet.drains),
            self.policy.name,
            state.shares.copy(),
            dict(state.limits),
            ledger.places(),
            tuple(fleet.reservations.values()),
        )

    def check(self) -> None:
        """Assert the invariants for all jobs that the last step changed."""
        ledger = self.state.ledger
        for id in {job.id for job in ledger.changes()}:
            job = ledger.jobs.rows.get(id)
            if job is None or not job.holds_gpus:
                assert id not in ledger.holders
                continue
            assert job.tasks == 1
            assert ledger.holders[id] is job
            stops = job.state is JobState.STOPPING and job.suspension
            assert len(set(job.gpus)) == job.spec.gpus or (stops and not job.gpus)
            for gpu in job.gpus:
                residents = ledger.residents(gpu)
                assert job in residents
                assert len(residents) == 1 or not any(each.exclusive for each in residents)
