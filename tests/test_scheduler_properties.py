"""Any order of any reports, late and repeated: the core never loses sight of a live process.

The model is the world itself: which attempts really run. After every event the core must hold
GPUs for exactly those, and its own invariants must stand (`Scheduler.check`).
"""

from dataclasses import fields

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carmad.config import Collocation, Limits, Monitor, Settings
from carmad.core.line import Held, place_in_line
from carmad.core.messages import (
    CancelRequested,
    Discovered,
    DrainRequested,
    Estimated,
    Exited,
    HoldRequested,
    Launch,
    Noticed,
    RequeueRequested,
    Sampled,
    Signal,
    Stop,
    Submitted,
    Tick,
    owed,
)
from carmad.core.scheduler import Scheduler
from carmad.core.states import TRANSITIONS
from carmad.core.types import (
    After,
    AfterKind,
    ArrayTask,
    Cause,
    Estimate,
    Exit,
    GpuSample,
    JobId,
    JobState,
    ProcessUse,
    WarnSignal,
)
from carmad.testing import a_gpu, a_spec
from policies import builtin
from recovery import ladder

GPUS = tuple(a_gpu(n) for n in range(3))
EXITS = [
    Exit(Cause.SUCCESS, 0),
    Exit(Cause.FAILURE, 1),
    Exit(Cause.FAILURE, None, 9),
    Exit(Cause.GPU_OOM, 1),
    Exit(Cause.HOST_OOM, None, 9),
    Exit(Cause.LAUNCH_FAILED),
    Exit(Cause.LOST),
]


def facts(gpu):
    told = (field.name for field in fields(gpu) if field.name not in ("recent", "known"))
    return [getattr(gpu, name) for name in told], gpu.score


class Server(RuleBasedStateMachine):
    policy = "magm"
    settings = Settings(
        monitor=Monitor(window_s=3, stale_s=60, first_kernel_timeout_s=20),
        limits=Limits(backfill=1, gpus_per_user=5),
    )

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.alive = {}  # the model: (job, attempt) -> its GPUs
        self.dead = []
        self.ended = {}
        self.states = {}
        self.next_id = 1
        self.make()
        self.tell(Discovered(self.now, GPUS))
        self.sample(0, 0.0, True, None, 1)

    def make(self):
        self.scheduler = Scheduler(
            self.settings,
            getattr(builtin, self.policy)(self.settings),
            ladder.adaptive(self.settings),
        )

    def tell(self, *events):
        self.now += 1
        step = self.scheduler.handle(*events)
        for job in step.jobs:
            before = self.states.get(job.id)
            assert before in (None, job.state) or job.state in TRANSITIONS[before]
            self.states[job.id] = job.state
            if job.ended:
                self.ended[job.id] = job
        for action in step.actions:
            match action:
                case Launch(job):
                    assert (job.id, job.attempt) not in self.alive, "started twice"
                    assert (job.id, job.attempt) not in self.dead, "an attempt started again"
                    self.alive[job.id, job.attempt] = job.gpus
                case Stop(job) | Signal(job):
                    assert (job.id, job.attempt) in self.alive, "nothing to signal"

    @invariant()
    def the_core_holds_gpus_for_exactly_what_lives(self):
        jobs = self.scheduler.jobs.values()
        held = {(j.id, j.attempt): j.gpus for j in jobs if j.holds_gpus}
        assert held == self.alive

    @invariant()
    def no_owed_action_is_for_a_job_that_is_gone(self):
        for job in self.scheduler.jobs.values():
            action = owed(job)
            if isinstance(action, (Launch, Stop)):
                assert (job.id, job.attempt) in self.alive

    @invariant()
    def what_was_kept_is_what_would_be_worked_out_anew(self):
        """Views stand until something changes them; the indexes of the ledger follow its jobs."""
        core = self.scheduler
        kept = [facts(gpu) for gpu in core.view(self.now).gpus]
        core._fleet.look_again()
        assert kept == [facts(gpu) for gpu in core.view(self.now).gpus]
        jobs, ledger = core.jobs.values(), core._ledger
        queued = [job for job in jobs if job.state is JobState.QUEUED]
        place = lambda job: place_in_line(job, core.policy.order(job))  # noqa: E731
        assert list(core.line()) == sorted(queued, key=place)
        held = Held()
        for job in jobs:
            if job.holds_gpus:
                held.add(job)
        assert ledger.held == held
        assert set(core.view(self.now).running) == {job for job in jobs if job.holds_gpus}
        for gpu in GPUS:
            assert set(ledger.residents(gpu.id)) == {
                job for job in jobs if job.holds_gpus and gpu.id in job.gpus
            }

    @invariant()
    def every_job_is_somewhere(self):
        assert set(self.scheduler.jobs) | set(self.ended) == set(range(1, self.next_id))

    @rule(
        gpus=st.integers(1, 3),
        exclusive=st.booleans(),
        user=st.sampled_from([("ada", 1000), ("bob", 1001)]),
        limit=st.sampled_from([None, 5, 30]),
        begin=st.sampled_from([None, 10.0]),
        data=st.data(),
    )
    def submit(self, gpus, exclusive, user, limit, begin, data):
        after = ()
        if self.next_id > 1 and data.draw(st.booleans()):
            on = JobId(data.draw(st.integers(1, self.next_id - 1)))
            after = (After(on, data.draw(st.sampled_from(list(AfterKind)))),)
        warn = WarnSignal(12, 4) if limit else None
        spec = a_spec(
            gpus=gpus,
            exclusive=exclusive,
            user=user[0],
            uid=user[1],
            time_limit_s=limit,
            warn=warn,
            begin_at=begin,
            after=after,
        )
        first, self.next_id = self.next_id, self.next_id + 1
        self.tell(Submitted(self.now, JobId(first), (spec,)))
        if data.draw(st.integers(0, 3)):  # mostly, the estimate comes at once
            self.tell(Estimated(self.now, JobId(first), None))

    @rule(tasks=st.integers(2, 4), limit=st.sampled_from([None, 1, 2]))
    def submit_an_array(self, tasks, limit):
        first = JobId(self.next_id)
        self.next_id += tasks
        specs = tuple(a_spec(array=ArrayTask(first, n, limit)) for n in range(tasks))
        self.tell(Submitted(self.now, first, specs))

    @rule(data=st.data(), mib=st.sampled_from([None, 500, 20_000, 50_000]), firm=st.booleans())
    def estimate(self, data, mib, firm):
        pending = [j.id for j in self.scheduler.jobs.values() if j.state is JobState.PENDING]
        if pending:
            estimate = Estimate(mib, "t", firm=firm) if mib else None
            self.tell(Estimated(self.now, data.draw(st.sampled_from(pending)), estimate))

    @rule(data=st.data(), exit=st.sampled_from(EXITS))
    def processes_end(self, data, exit):
        if self.alive:
            job, attempt = data.draw(st.sampled_from(sorted(self.alive)))
            del self.alive[job, attempt]
            self.dead.append((job, attempt))
            self.tell(Exited(self.now, job, attempt, exit))

    @rule(data=st.data(), exit=st.sampled_from(EXITS))
    def repeat_a_report(self, data, exit):
        if self.dead:
            self.tell(Exited(self.now, *data.draw(st.sampled_from(self.dead)), exit))

    @rule(
        used=st.integers(0, 40_000),
        busy=st.sampled_from([None, 0.0, 0.5, 0.95]),
        kernels=st.booleans(),
        fault=st.sampled_from([None, None, None, "lost"]),
        times=st.integers(1, 8),
    )
    def sample(self, used, busy, kernels, fault, times):
        for _ in range(times):
            samples = []
            for n, gpu in enumerate(GPUS):
                here = [job for (job, _), gpus in self.alive.items() if gpu.id in gpus]
                uses = tuple(ProcessUse(9000 + j, 100, float(kernels), j) for j in here)
                gone = fault if n == 0 else None
                sample = GpuSample(
                    gpu.id,
                    self.now,
                    used,
                    40_960 - used,
                    busy,
                    busy,
                    busy,
                    processes=uses,
                    fault=gone,
                )
                samples.append(sample)
            self.tell(Sampled(self.now, tuple(samples)))

    @rule(job=st.integers(1, 12))
    def cancel(self, job):
        self.tell(CancelRequested(self.now, JobId(job), "ada"))

    @rule(job=st.integers(1, 12), held=st.booleans())
    def hold(self, job, held):
        self.tell(HoldRequested(self.now, JobId(job), held, "ada"))

    @rule(data=st.data())
    def requeue(self, data):
        if self.ended:
            id = data.draw(st.sampled_from(sorted(self.ended)))
            if id not in self.scheduler.jobs:
                self.tell(RequeueRequested(self.now, self.ended[id], "ada"))

    @rule(gpu=st.sampled_from(GPUS), reason=st.sampled_from([None, "fan"]))
    def drain(self, gpu, reason):
        self.tell(DrainRequested(self.now, gpu.id, reason, "root"))

    @rule(gone=st.booleans())
    def a_gpu_comes_or_goes(self, gone):
        self.tell(Discovered(self.now, GPUS[:2] if gone else GPUS))

    @rule(job=st.integers(1, 12))
    def notice(self, job):
        self.tell(Noticed(self.now, JobId(job), "a note"))

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds):
        self.now += seconds
        self.tell(Tick(self.now))

    @rule()
    def restart(self):
        """The daemon dies between two steps and comes back with what is on disk."""
        jobs = tuple(self.scheduler.jobs.values())
        recent = tuple((id, job.state) for id, job in self.ended.items())
        drains = tuple(self.scheduler.drains.values())
        self.make()
        for action in self.scheduler.restore(jobs, recent, drains):
            if isinstance(action, Launch):
                assert (action.job.id, action.job.attempt) in self.alive
        self.tell(Discovered(self.now, GPUS))


class MpsServer(Server):
    policy = "lug"
    settings = Settings(
        monitor=Monitor(window_s=2, stale_s=60, first_kernel_timeout_s=20),
        collocation=Collocation(mps=True, max_jobs_per_gpu=2),
    )


class ExclusiveServer(Server):
    policy = "exclusive"


@pytest.mark.parametrize("machine", [Server, MpsServer, ExclusiveServer])
def test_the_core_against_a_model_of_the_world(machine):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(max_examples=120, stateful_step_count=40, deadline=None),
    )
