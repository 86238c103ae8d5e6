"""Carrying out actions and reporting their outcomes; watching MPS."""

import os
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from carma_testing import a_gpu_view, a_job, a_spec
from carma_testing.builders import changed
from carmad import configfile
from carmad.accounts import NoAccount
from carmad.attempt import exits
from carmad.attempt.callers import Process
from carmad.attempt.evidence import Evidence
from carmad.attempt.exits import ExitFacts
from carmad.config import Collocation, Settings, Suspending
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId, MemoryLimits, Mode
from carmad.core.jobs.findings import Estimate, Refusal, StageTimes
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import JobsById
from carmad.core.messages import (
    Discovered,
    Estimated,
    EstimateMemory,
    Exited,
    Launch,
    LimitMemory,
    Noticed,
    ReadLog,
    Signal,
    Step,
    Stop,
)
from carmad.daemon import doctor
from carmad.daemon.monitor import MpsWatch
from carmad.daemon.parts import take_over
from carmad.daemon.world import DaemonWorld
from carmad.errors import CarmaError
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.mps import ServerState
from carmad.gpu.source import Capabilities
from tests.waiting import PATIENCE_S, until

GPU, OTHER_GPU = GpuId("GPU-0"), GpuId("GPU-1")


class Inbox:
    def __init__(self):
        self.events = []
        self.jobs = JobsById()

    def clock(self):
        return 5.0

    def post(self, *events, user=None):
        self.events += events

    def ask(self, question):
        answer = Future()
        answer.set_result(question(self))
        return answer


class Launcher:
    def __init__(self):
        self.calls = []
        self.is_there = False

    def has_begun(self, job):
        return self.is_there

    def launch(self, job, env, follow=None, cpus=(), until=None):
        self.until = until
        self.calls.append(("launch", job.id, env))
        if job.spec.cwd == "/refused":
            raise CarmaError("cannot run jobs as bob", "run carmad as root")

    def keep_time(self, job, until):
        self.calls.append(("until", job.id, until))
        return True

    def stop(self, job, grace_s):
        self.calls.append(("stop", job.id, grace_s))

    def name(self, job):
        return f"{job.id}.{job.attempt}"

    def cgroup(self, job):
        return f"/sys/fs/cgroup/carma-job-{job.id}-{job.attempt}" if self.is_there else None

    def signal(self, job, signum):
        self.calls.append(("signal", job.id, signum))
        return True

    def release(self, job):
        self.calls.append(("release", job))

    def reap(self):
        pass


class Mps:
    def __init__(self, broken=False):
        self.broken = broken
        self.pids = frozenset()
        self.state = ServerState.ACTIVE
        self.left = []
        self.started = ()

    def start(self, *gpus):
        self.started = gpus
        if self.broken:
            raise CarmaError("nvidia-cuda-mps-control is not installed")

    def daemon(self, gpu):
        return SimpleNamespace(
            pipe=Path("/run/carma/mps/pipe"),
            log=Path("/run/carma/mps/log"),
            healthy=lambda: not self.broken,
            clients=lambda: self.pids,
            terminate=self.left.append,
            state=lambda: self.state,
        )


def declared(spec, patiently, abandoned):
    if spec.memory_mib is None:
        return Refusal("no idea", "test")
    return Estimate(spec.memory_mib, "test")


def unmeasured(spec):
    return Refusal("no earlier run", "test")


def given(spec):
    return spec


class Limiter:
    """As with a real driver: what has no cgroup has no limits."""

    by_cgroup = True

    def __init__(self, why=""):
        self.why = why
        self.calls = []

    def limit(self, attempt, cgroup, limits):
        self.calls.append((attempt, cgroup, *((each.gpu, each.most_mib) for each in limits)))
        return self.why

    def forget(self, attempt):
        self.calls.append((attempt, "forgotten"))


def a_world(tmp_path, mps=None, grace_s=30.0, estimate=declared, limiter=None):
    inbox, launcher = Inbox(), Launcher()
    world = DaemonWorld(
        state_dir=tmp_path,
        inbox=inbox,
        estimate=estimate,
        measured=unmeasured,
        whole=given,
        launcher=launcher,
        evidence=Evidence(),
        mps=mps,
        checkpoints=Checkpoints(""),
        limiter=limiter or Limiter(),
        suspending=Suspending,
        kill_grace_s=grace_s,
        extra_env={"EXTRA": "1"},
    )
    return world, inbox, launcher


def test_an_adopted_process_that_is_cancelled_at_once_is_ended_by_its_supervisor(tmp_path):
    """Nobody else ends it: what has not been launched yet runs all the same."""
    world, inbox, launcher = a_world(tmp_path)
    world.shepherd.start()
    goes_on, launch = threading.Event(), launcher.launch

    def slow(job, *rest, **named):
        assert goes_on.wait(PATIENCE_S)
        return launch(job, *rest, **named)

    launcher.launch = slow
    job = a_job(7, state=JobState.STARTING, attempt=1, gpus=(GPU,), spec=a_spec(process=(1, 1)))
    world.perform(Launch(job))
    world.perform(Stop(job))
    world.release(JobId(8))  # what follows a stop in its thread
    until(lambda: world._hands._calls.qsize() >= 2, "the stop to wait for the launch")
    goes_on.set()
    world.close()
    assert [call[0] for call in launcher.calls][:2] == ["launch", "stop"]
    assert not [event for event in inbox.events if isinstance(event, Exited)]


def performed(world, *actions):
    world.shepherd.start()
    for action in actions:
        world.perform(action)
    world.close()


def running(mode=Mode.STREAMS, **spec):
    spec = a_spec(uid=0, gid=0, user="root", **spec)
    return a_job(
        7, spec=spec, state=JobState.STARTING, gpus=(GPU,), mode=mode, attempt=2, started_at=0.0
    )


def test_actions_keep_their_order(tmp_path):
    world, _, launcher = a_world(tmp_path)
    job = running()
    performed(world, Launch(job), Signal(job, 12), Stop(job))
    told = {call[0]: call[2] for call in launcher.calls}
    assert [word for word in told if word != "launch"] == ["signal", "stop"]
    assert told["launch"]["CUDA_VISIBLE_DEVICES"] == GPU
    assert told["launch"]["EXTRA"] == "1"
    assert told["stop"] == 30.0


def test_a_log_that_is_still_to_be_read_is_not_asked_for_again(tmp_path, monkeypatch):
    answers, asked = threading.Event(), []

    def read(directory, begins):
        asked.append((directory, begins))
        answers.wait(PATIENCE_S)
        return ""

    monkeypatch.setattr("carmad.daemon.world.read_logs", read)
    world, *_ = a_world(tmp_path)
    world.shepherd.start()
    world.perform(ReadLog(running(), (0,)))
    until(lambda: asked, "the log to be read")
    world.perform(ReadLog(running(), (1,)))
    world.perform(ReadLog(running(), (2,)))
    answers.set()
    until(lambda: len(asked) == 2, "the log to be read again")
    world.perform(ReadLog(running(), (3,)))
    until(lambda: len(asked) == 3, "the log to be read once more")
    world.close()
    assert [begins for _, begins in asked] == [(0,), (1,), (3,)]


def test_a_process_in_a_container_gets_uuids(tmp_path, monkeypatch):
    """It may have only some GPUs, under other indices."""
    world, _, _ = a_world(tmp_path)
    world.shepherd.start()
    world._cuda_indices = lambda: {GPU: 3}
    pids = iter((None, 1))
    monkeypatch.setattr("carmad.daemon.world.pid_in_container", lambda pid: next(pids))
    for process, visible in ((None, "3"), (Process(5, 1), "3"), (Process(6, 1), GPU)):
        assert world._environment(running(), process)["CUDA_VISIBLE_DEVICES"] == visible
    world.close()


def test_what_an_attempt_left_is_removed_after_all_that_was_to_be_done_for_it(tmp_path):
    world, _, launcher = a_world(tmp_path)
    goes_on = threading.Event()
    launch, job = launcher.launch, running()
    launcher.launch = lambda *words: goes_on.wait(PATIENCE_S) and launch(*words)
    world.shepherd.start()
    for action in (Launch(job), Stop(job)):
        world.perform(action)
    world.on_commit(Step((), (changed(job, state=JobState.CANCELLED),), (), ()))
    until(lambda: launcher.calls, "the stop")
    goes_on.set()
    world.close()
    assert [call[0] for call in launcher.calls] == ["stop", "launch", "release"]


def test_a_launch_that_is_refused_ends_the_attempt_with_the_hint(tmp_path):
    world, inbox, _ = a_world(tmp_path)
    performed(world, Launch(running(cwd="/refused")))
    (exited,) = [event for event in inbox.events if isinstance(event, Exited)]
    assert (exited.job, exited.attempt, exited.exit.cause) == (7, 2, Cause.LAUNCH_FAILED)
    assert "run carmad as root" in exited.exit.evidence


def test_a_job_of_an_account_that_is_gone_is_sent_back_to_be_held(tmp_path, caplog):
    world, inbox, launcher = a_world(tmp_path)

    def launch(*_):
        raise NoAccount("there is no ada", "do something")

    launcher.launch = launch
    performed(world, Launch(running()))
    (exited,) = [event for event in inbox.events if isinstance(event, Exited)]
    assert (exited.exit.cause, exited.exit.evidence) == (Cause.NO_ACCOUNT, "there is no ada")
    assert "job 7 is held: there is no ada; do something" in caplog.text


def test_the_doctor_names_jobs_whose_users_are_gone(tmp_path):
    job = a_job(3, held=True, barred="there is no ada")
    scene = SimpleNamespace(live=JobsById((job, a_job(4))))
    (found,) = doctor._accounts(scene)
    assert found["ok"] is False and found["detail"] == "job 3 is held: there is no ada"


def test_what_is_refused_is_in_the_log_and_its_owner_is_told(tmp_path, caplog, monkeypatch):
    world, inbox, launcher = a_world(tmp_path, limiter=Limiter("the driver is too old"))
    launcher.is_there = True
    monkeypatch.setattr(launcher, "signal", lambda job, signum: False)
    monkeypatch.setattr(launcher, "stop", lambda job, grace_s: Path("/none").readlink())
    job = running().with_attempt(memory_limits=(MemoryLimits(GPU, most_mib=9),))
    performed(world, Signal(job, 10), Stop(job), LimitMemory(job))
    notes = [event.note for event in inbox.events if isinstance(event, Noticed)]
    for note in (
        "the signal before its time limit did not reach it: it has no supervisor, yet or any more,"
        " that would pass it on",
        "its GPU memory is not guaranteed: the driver is too old",
    ):
        assert note in notes and note in caplog.text
    assert "carmad could not stop it: No such file or directory" in notes
    assert "could not stop job 7" in caplog.text


def test_what_a_job_was_given_stays_out_of_the_log(tmp_path, caplog, monkeypatch):
    world, _, launcher = a_world(tmp_path)
    monkeypatch.setattr(launcher, "signal", lambda job, signum: 1 / 0)
    performed(world, Signal(running(env=(("MINE", "hunter2"),)), 12))
    assert "could not signal job 7" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_job_is_started_with_the_whole_of_its_environment(tmp_path):
    world, _, launcher = a_world(tmp_path)
    world._whole = lambda spec: replace(spec, env=(*spec.env, ("MINE", "1")))
    performed(world, Launch(running(env=(("VIRTUAL_ENV", "/v"),))))
    env = launcher.calls[0][2]
    assert (env["VIRTUAL_ENV"], env["MINE"]) == ("/v", "1")


def test_a_job_whose_environment_is_gone_ends_and_says_so(tmp_path):
    def gone(spec):
        raise CarmaError("the job's environment is no longer stored", "Submit the job again.")

    world, inbox, launcher = a_world(tmp_path)
    world._whole = gone
    performed(world, Launch(running()))
    (exited,) = [event for event in inbox.events if isinstance(event, Exited)]
    assert exited.exit.cause is Cause.LAUNCH_FAILED
    assert "no longer stored; Submit the job again" in exited.exit.evidence
    assert launcher.calls == []


def test_estimates_and_why_there_is_none(tmp_path):
    world, inbox, _ = a_world(tmp_path)
    world.perform(EstimateMemory(a_job(1)))
    until(lambda: len(inbox.events) == 1)
    world.perform(EstimateMemory(a_job(2, spec=a_spec(memory_mib=9))))
    until(lambda: len(inbox.events) == 2)
    performed(world)
    assert inbox.events == [
        Estimated(5.0, JobId(1), None, "has no memory estimate: no idea"),
        Estimated(5.0, JobId(2), Estimate(9, "test")),
    ]


def test_a_script_that_stops_by_itself_is_reported_with_or_without_an_estimate(tmp_path):
    def asked(spec, *rest):
        if spec.memory_mib is None:
            return Refusal("the script stops at t.py:1: NameError: x", "t", crash="at t.py:1")
        return Estimate(9, "history", crash="at t.py:1")

    world, inbox, _ = a_world(tmp_path, estimate=asked)
    world.perform(EstimateMemory(a_job(1)))
    until(lambda: len(inbox.events) == 1)
    world.perform(EstimateMemory(a_job(2, spec=a_spec(memory_mib=9))))
    until(lambda: len(inbox.events) == 2)
    performed(world)
    assert [(event.note, event.crash) for event in inbox.events] == [("", "at t.py:1")] * 2


def test_a_trial_goes_on_when_its_job_starts_and_stops_when_it_ends(tmp_path):
    begun, job = [], running()

    def hear(spec, patiently, over):
        begun.append(over)
        assert over.wait(PATIENCE_S)
        return Refusal("nobody waits for it", "test")

    world, inbox, _ = a_world(tmp_path, estimate=hear)
    world.perform(EstimateMemory(job))
    until(lambda: begun)
    world.perform(Launch(job))
    assert not begun[0].is_set()
    world.on_commit(Step((), (changed(job, state=JobState.CANCELLED),), (), ()))
    assert begun[0].is_set()
    performed(world)
    assert not any(isinstance(event, Estimated) for event in inbox.events)


def test_an_estimate_that_takes_long_keeps_nothing_else_waiting(tmp_path):
    released = threading.Event()

    def slow(spec, *rest):
        if spec.memory_mib is None:
            assert released.wait(PATIENCE_S)
        return declared(spec, *rest)

    world, inbox, launcher = a_world(tmp_path, estimate=slow)
    for id in range(11, 19):
        spec = a_spec(argv=("python", f"{id}.py"))
        world.perform(
            EstimateMemory(a_job(id, state=JobState.PENDING, spec=spec))
        )  # the core's thread is not held up
    world.perform(Launch(running()))
    world.perform(EstimateMemory(a_job(9, spec=a_spec(memory_mib=9))))
    until(lambda: launcher.calls)
    until(lambda: inbox.events)
    assert [event.job for event in inbox.events] == [9], "it says itself what it needs"
    world.on_commit(Step((), (a_job(18, state=JobState.CANCELLED),), (), ()))
    released.set()
    until(lambda: len(inbox.events) == 8)
    performed(world)
    assert {event.job for event in inbox.events} == {9, *range(11, 18)}
    assert ("release", 18) not in launcher.calls, "it has left nothing behind"


def test_under_mps_a_job_is_given_its_gpu_s_pipe(tmp_path):
    world, _, launcher = a_world(tmp_path, Mps())
    performed(world, Launch(running(Mode.MPS)))
    assert launcher.calls[0][2]["CUDA_MPS_PIPE_DIRECTORY"] == "/run/carma/mps/pipe"


def test_a_client_on_several_gpus_has_one_server_and_a_limit_on_each(tmp_path):
    mps = Mps()
    world, _, launcher = a_world(tmp_path, mps)
    estimate = Estimate(900, "declared", firm=True)
    job = changed(running(Mode.MPS), gpus=(GPU, OTHER_GPU), estimate=estimate)
    performed(world, Launch(job))
    env = launcher.calls[0][2]
    assert mps.started == (GPU, OTHER_GPU)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/carma/mps/pipe"
    assert env["CUDA_VISIBLE_DEVICES"] == f"{GPU},{OTHER_GPU}"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{GPU}=900M,{OTHER_GPU}=900M"


def test_the_mps_daemon_of_an_attempt_that_has_begun_is_left_alone(tmp_path):
    """Each launch is repeated after a restart, until a kernel is seen. With another scope by now,
    its daemon would be stopped before it connects; with a fault, it would be told that it runs
    without MPS."""
    mps = Mps(broken=True)
    world, inbox, launcher = a_world(tmp_path, mps)
    launcher.is_there = True
    performed(world, Launch(running(Mode.MPS)))
    assert mps.started == () and inbox.events == []
    assert [call[0] for call in launcher.calls] == ["launch"]


def test_without_its_mps_daemon_a_job_runs_all_the_same_and_is_told(tmp_path):
    world, inbox, launcher = a_world(tmp_path, Mps(broken=True))
    performed(world, Launch(running(Mode.MPS)))
    assert launcher.calls[0][0] == "launch"
    assert "run/carma/mps" not in launcher.calls[0][2]["CUDA_MPS_PIPE_DIRECTORY"]
    (noticed,) = inbox.events
    assert isinstance(noticed, Noticed) and "without MPS" in noticed.note


def test_a_client_leaves_mps_before_it_is_killed(tmp_path):
    mps = Mps()
    mps.pids = frozenset({71, 72, 73})
    world, _, _ = a_world(tmp_path, mps, grace_s=1.0)
    # 73 is of a later attempt: the job was preempted, and is back already.
    attempt = running(Mode.MPS).attempt
    owners = {71: (7, attempt), 72: (8, attempt), 73: (7, attempt + 1)}
    world._evidence.attempt_of = owners.get
    performed(world, Stop(running(Mode.MPS)))
    until(lambda: mps.left)
    assert mps.left == [71]


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        (ExitFacts(code=0, ended_at=1.0), Cause.SUCCESS),
        (ExitFacts(code=3, ended_at=1.0), Cause.FAILURE),
        (ExitFacts(signal=9, ended_at=1.0, host_oom=True), Cause.HOST_OOM),
        (ExitFacts(code=1, ended_at=1.0, log_tail="CUDA error: out of memory"), Cause.GPU_OOM),
        (ExitFacts(error="no such directory", hint="cd", ended_at=1.0), Cause.LAUNCH_FAILED),
        (ExitFacts(lost=True, ended_at=1.0), Cause.LOST),
        (ExitFacts(never_started=True, ended_at=1.0), Cause.UNSTARTED),
    ],
)
def test_every_end_has_its_cause(tmp_path, ended, cause):
    world, inbox, _ = a_world(tmp_path)
    world._report_exit(running(), ended)
    assert inbox.events[0].exit.cause is cause


@pytest.mark.parametrize(
    ("over_limit", "shared_bytes", "evidence"),
    [
        (True, None, "its processes used more than --mem 8G"),
        (
            True,
            61 << 20,
            "its processes used more than --mem 8G, 61 MiB of it in files in /dev/shm",
        ),
        (False, None, "the kernel's OOM killer struck in its cgroup"),
    ],
)
def test_who_uses_more_memory_than_asked_for_is_told_so(
    tmp_path, over_limit, shared_bytes, evidence
):
    world, inbox, _ = a_world(tmp_path)
    job = running(host_memory_mib=8192)
    ended = ExitFacts(
        signal=9,
        ended_at=1.0,
        host_oom=True,
        over_limit=over_limit,
        shared_bytes=shared_bytes,
    )
    world._report_exit(job, ended)
    assert inbox.events[0].exit.evidence == evidence


@pytest.mark.parametrize(("stopped", "cause"), [(False, Cause.SUCCESS), (True, Cause.CANCELLED)])
def test_a_job_that_ends_well_because_it_was_told_to_is_not_done(tmp_path, stopped, cause):
    """It saved its work; a preempted job continues from there."""
    world, inbox, _ = a_world(tmp_path)
    world._report_exit(running(), ExitFacts(code=0, ended_at=1.0, stopped=stopped))
    assert inbox.events[0].exit.cause is cause


def test_doctor_says_why_a_gpu_takes_no_jobs_where_there_is_no_other():
    scene = SimpleNamespace(unread="", view=SimpleNamespace(gpus=()))
    note = f"{GPU} takes no job: its memory cannot be read"
    *_, told, verdict = doctor._gpus(scene, Capabilities("nvml", (), (), (note,)))
    assert (told["detail"], verdict["ok"]) == (note, False)
    assert verdict["hint"] == "See the notes above."


@pytest.mark.parametrize(
    ("free_mib", "tail", "evidence"),
    [
        (500, "", "its log does not tell why it failed; GPU 0 was 99 % full when it ended"),
        (
            500,
            "epoch 1\n",
            "its log does not tell why it failed; GPU 0 was 99 % full when it ended",
        ),
        (500, "epoch 1\nno such file\nbye\n", "bye"),
        (20_000, "epoch 1\n", "epoch 1"),
    ],
)
def test_a_failure_on_a_full_gpu_that_its_log_does_not_explain_is_told_and_no_more(
    tmp_path, free_mib, tail, evidence
):
    """It is not run again: nothing says that it ran out of memory."""
    world, inbox, _ = a_world(tmp_path)
    world.on_commit(Step((Discovered(0.0, (Gpu(GPU, 0, "a GPU", 40_960),)),), (), (), ()))
    world._evidence.add_supervisor((JobId(7), 2), os.getpid())
    use = ProcessUse(os.getpid(), 500)
    sample = GpuSample(GPU, 0.5, 40_960 - free_mib, free_mib, processes=(use,))
    world._evidence.add([sample])
    world._report_exit(running(), ExitFacts(code=1, ended_at=1.0, log_tail=tail))
    exit = inbox.events[0].exit
    assert (exit.cause, exit.evidence) == (Cause.FAILURE, evidence)


def test_an_end_that_cannot_be_judged_is_a_failure_and_told_once(tmp_path, monkeypatch, caplog):
    world, inbox, _ = a_world(tmp_path)
    monkeypatch.setattr(exits, "classify", lambda *_, **__: 1 / 0)
    world._report_exit(running(), ExitFacts(code=3, ended_at=1.0, log_tail="?"))
    (exited,) = inbox.events
    assert (exited.job, exited.exit) == (7, Exit(Cause.FAILURE, 3, tail=("?",)))
    assert caplog.text.count("cannot tell why job 7 ended") == 1
    assert caplog.text.count("ZeroDivisionError") == 1


def test_what_a_job_s_own_shell_said_of_its_start_can_be_shown(tmp_path):
    world, inbox, _ = a_world(tmp_path)
    world._report_exit(
        running(), ExitFacts(error="conda: \x1b[2J\0\ud800 no", hint="a\nb", ended_at=1.0)
    )
    evidence = inbox.events[0].exit.evidence
    assert evidence == "conda: \ufffd[2J\ufffd\ufffd no; a b"


def test_the_word_of_the_attempt_on_why_it_was_stopped_is_passed_on(tmp_path):
    world, inbox, _ = a_world(tmp_path)
    world._report_exit(
        running(), ExitFacts(signal=15, ended_at=1.0, stopped=True, cause=Cause.TIME_LIMIT)
    )
    assert inbox.events[0].stop is Cause.TIME_LIMIT


def test_only_what_is_not_owed_anything_is_adopted_at_the_start():
    """An owed launch may be postponed, so its supervisor must not be awaited yet."""
    adopted = []
    jobs = [
        a_job(id, state=state, gpus=(GPU,), attempt=1)
        for id, state in enumerate((JobState.STARTING, JobState.RUNNING, JobState.STOPPING), 1)
    ]
    scheduler = SimpleNamespace(outcomes={}, jobs=JobsById(jobs))
    world = SimpleNamespace(
        adopt=lambda job: adopted.append(job.id),
        compare=list,
        shepherd=SimpleNamespace(start=lambda: None),
    )
    take_over(scheduler, SimpleNamespace(jobs_on_disk=set), world)
    assert adopted == [2]


def test_memory_that_does_not_come_back_is_told(tmp_path):
    world, inbox, _ = a_world(tmp_path)
    world._report_exit(running(), ExitFacts(code=0, ended_at=1.0, memory_held=True))
    noticed, exited = inbox.events
    assert (noticed.job, exited.exit.cause) == (7, Cause.SUCCESS)
    assert "memory" in noticed.note


def under_mps(id, state=JobState.RUNNING, **fields):
    return a_job(id, state=state, gpus=(GPU,), mode=Mode.MPS, attempt=2, **fields)


def a_watch():
    """And a job that was seen to run a kernel under MPS, with the pids of its processes."""
    inbox, mps, running = Inbox(), Mps(), set()
    inbox.jobs = JobsById((under_mps(8, kernels=((GPU, 1.0),)),))
    evidence = SimpleNamespace(running=lambda key: running if key == (8, 2) else {80})
    return MpsWatch(mps, inbox, evidence), inbox, mps, running


def test_a_job_outside_mps_is_told():
    watch, inbox, mps, running = a_watch()
    mps.pids = frozenset({71})
    running |= {80, 81}
    watch.look()
    assert inbox.events == [], "it may be about to connect"
    watch.look()
    assert [(event.job, "outside MPS" in event.note) for event in inbox.events] == [(8, True)]


def test_a_job_whose_processes_come_go_or_are_clients_is_not_outside_mps():
    watch, inbox, mps, running = a_watch()
    inbox.jobs.put(under_mps(7))  # it has run no kernel yet
    inbox.jobs.put(under_mps(9, state=JobState.STOPPING, kernels=((GPU, 1.0),)))
    mps.pids = frozenset({71})
    for alive in ({80}, set(), {80}, {71, 80}, {80}, set()):  # as it dies, or is started again
        running.clear()
        running |= alive
        watch.look()
    assert inbox.events == []


def test_an_mps_server_that_has_faulted_or_hangs_is_told():
    watch, inbox, mps, _ = a_watch()
    mps.state = ServerState.FAULT
    watch.look()
    assert "FAULT" in inbox.events[0].note
    inbox.events.clear()
    mps.broken = True
    watch.look()
    assert [event.note for event in inbox.events] == ["its MPS daemon does not answer"]


@pytest.fixture
def installed():
    """In a directory that everyone can access, unlike pytest's own."""
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_the_doctor_says_whether_users_can_read_what_watches_their_stages(installed, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    folder = installed / "hooks"
    folder.mkdir()
    hook = folder / "sitecustomize.py"
    hook.touch()
    parts = (installed, folder, hook)
    for part in parts:
        part.chmod(0o755)
    assert not list(doctor._hooks(folder))
    for closed in parts:
        closed.chmod(0o700)
        (check,) = doctor._hooks(folder)
        assert check["ok"] is None and check["detail"].endswith(f" {closed}")
        closed.chmod(0o755)
    hook.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not list(doctor._hooks(folder)), "only its own user's jobs run"


def test_the_doctor_says_where_memory_cannot_be_guaranteed():
    able, unable = a_gpu_view(0), a_gpu_view(1)
    able = replace(able, gpu=replace(able.gpu, guarantees=True))
    on = Settings(collocation=Collocation(guarantee_memory=True))

    def found(settings, *gpus):
        scene = SimpleNamespace(view=SimpleNamespace(gpus=gpus))
        return [(check["ok"], check["detail"]) for check in doctor._guarantees(settings, scene)]

    assert found(Settings(), able, unable) == []
    assert found(on, able) == [(True, "the driver guarantees what jobs were promised")]
    assert found(on, able, unable) == [(None, "guarantee_memory has no effect on GPU 1")]


def test_the_doctor_says_what_a_policys_system_lacks():
    nothing = SimpleNamespace(has=lambda name: False, last_words=("duration: 9 jobs are too few",))
    trained = SimpleNamespace(has=lambda name: name == "duration", last_words=())

    def found(settings, *line, models=nothing):
        scene = SimpleNamespace(line=line, view=SimpleNamespace(gpus=range(8)))
        return {each["name"]: each for each in doctor._system(settings, scene, models)}

    lucid = configfile.load(None, {"CARMA_POLICY": "lucid"})
    assert found(Settings()) == {}
    system, model = found(lucid).values()
    assert 'predictor is "additive"' in system["detail"] and "not" not in system["detail"]
    assert system["detail"].endswith("so that 1 of 8 GPUs profile new jobs")
    assert model["ok"] is None and model["detail"].endswith("yet: duration: 9 jobs are too few")
    assert list(found(lucid, models=trained)) == ["system"]
    without = configfile.load(None, {"CARMA_POLICY": "lucid", "CARMA_PREDICTOR": "history"})
    (system,) = found(without).values()
    assert 'predictor is "history" (environment), not "additive"' in system["detail"]
    cuckoo = configfile.load(None, {"CARMA_POLICY": "cuckoo"})
    known = a_job(1, spec=a_spec(expected_s=60.0), stage_times=(StageTimes(0.1, 0.1, 0.1),))
    lacking = found(cuckoo, known, a_job(2), a_job(3, spec=a_spec(expected_s=60.0)))
    assert lacking["system: duration"]["detail"].startswith("of 3 jobs that wait, 1 ")
    assert lacking["system: stages"]["detail"].startswith("of 3 jobs that wait, 2 ")
    assert found(cuckoo, known) == {}


def test_the_doctor_asks_every_mps_daemon_that_has_jobs():
    resident = a_job(1, state=JobState.RUNNING, mode=Mode.MPS)
    scene = SimpleNamespace(
        view=SimpleNamespace(gpus=[a_gpu_view(0, residents=(resident,)), a_gpu_view(1)])
    )
    mps = Mps(broken=True)
    settings = Settings(collocation=Collocation(mps=True))
    found = {check["name"]: check["ok"] for check in doctor._mps(settings, scene, mps)}
    assert found["mps on gpu 0"] is False
    assert "mps on gpu 1" not in found
    mps.state = ServerState.FAULT
    found = {check["name"]: check["ok"] for check in doctor._mps(settings, scene, mps)}
    assert found["mps on gpu 1"] is False
    node = Settings(collocation=Collocation(mps=True, mps_scope="node"))
    found = {check["name"]: check["ok"] for check in doctor._mps(node, scene, mps)}
    assert {name for name, ok in found.items() if ok is False} - {"mps"} == {"mps server"}


def test_after_a_change_of_scope_the_doctor_asks_the_daemon_that_has_the_job():
    """A job on GPU 1 runs under that GPU's own daemon, and the node has none yet."""
    works, not_yet = Mps().daemon(GPU), Mps(broken=True).daemon(GPU)
    mps = SimpleNamespace(daemon=lambda gpu: works if gpu == "GPU-00000001" else not_yet)
    job = changed(running(Mode.MPS), gpus=(GpuId("GPU-00000001"),))
    views = tuple(a_gpu_view(n, residents=(job,) * n) for n in range(2))
    scene = SimpleNamespace(view=SimpleNamespace(gpus=views))
    node = Settings(collocation=Collocation(mps=True, mps_scope="node"))
    assert not [each for each in doctor._mps(node, scene, mps) if each["name"] == "mps server"]


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        (Collocation(mps=True), "one user share a GPU"),
        (Collocation(mps=True, mps_scope="node"), "one user run at a time, on all GPUs"),
        (Collocation(mps=True, mps_scope="node", mps_multiuser=True), "several users"),
    ],
)
def test_the_doctor_says_whose_jobs_share_an_mps_server(shared, words):
    assert words in doctor._mps_users(Settings(collocation=shared))["detail"]


# -- memory limits


def limited(most_mib, **changes):
    return changed(running(), memory_limits=(MemoryLimits(GPU, 8_192, most_mib),), **changes)


def test_limits_wait_until_the_attempt_has_a_cgroup_and_then_the_latest_are_set(tmp_path):
    limiter = Limiter()
    world, _, launcher = a_world(tmp_path, limiter=limiter)
    world.shepherd.start()
    world.perform(LimitMemory(limited(31_000)))
    world.perform(Launch(running()))
    until(lambda: "launch" in {call[0] for call in launcher.calls}, "its launch")
    world.perform(LimitMemory(limited(28_000)))
    world._hands.submit(lambda: None).result(PATIENCE_S)
    assert limiter.calls == []
    launcher.is_there = True
    until(lambda: limiter.calls, "its limits")
    world.close()
    assert set(limiter.calls) == {("7.2", "/sys/fs/cgroup/carma-job-7-2", (GPU, 28_000))}


def test_limits_of_a_running_attempt_are_set_at_once_and_its_owner_is_told_why_not(tmp_path):
    world, inbox, launcher = a_world(tmp_path, limiter=Limiter("the driver says no"))
    launcher.is_there = True
    performed(world, LimitMemory(limited(31_000)))
    notes = [event.note for event in inbox.events if isinstance(event, Noticed)]
    assert notes == ["its GPU memory is not guaranteed: the driver says no"]


def test_limits_are_forgotten_once_the_end_of_the_attempt_is_committed(tmp_path):
    limiter = Limiter()
    world, _, launcher = a_world(tmp_path, limiter=limiter)
    launcher.is_there = True
    ended = changed(limited(31_000), state=JobState.FAILED, exit=Exit(Cause.FAILURE), ended_at=9.0)
    world.shepherd.start()
    world.perform(LimitMemory(limited(31_000)))
    world.on_commit(Step((), (ended,), (), ()))
    world.close()
    assert limiter.calls[-1] == ("7.2", "forgotten")
    assert not world._limited
