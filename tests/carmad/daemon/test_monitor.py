"""From a source's readings to the core's events."""

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from carma_testing import a_gpu, a_job, a_spec
from carmad import registry
from carmad.attempt.evidence import Evidence
from carmad.config import Monitor as Settings
from carmad.config import Settings as Config
from carmad.core.gpus.gpu import Condition, GpuSample, ProcessUse
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.messages import (
    Discovered,
    DrainRequested,
    Estimated,
    EstimateMemory,
    Exited,
    Launch,
    Sampled,
    Stop,
    Submitted,
)
from carmad.core.scheduler import Scheduler
from carmad.daemon import monitor as monitor_module
from carmad.daemon.monitor import Monitor
from carmad.engine import engine as engine_module
from carmad.engine.clock import Clock
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.gpu.source import Capabilities, Health
from carmad.store.sql import SqlStore
from tests.daemon import until
from tests.waiting import PATIENCE_S


class Source:
    name = "scripted"

    def __init__(self):
        self.gpus = (a_gpu(0), a_gpu(1))
        self.processes = ()
        self.news = ()
        self.held = frozenset()
        self.closed = False
        self.error = None
        self.free_mib = 20_000

    def discover(self):
        if self.error:
            raise self.error
        return self.gpus

    def sample(self, at):
        used = 40_960 - self.free_mib
        return tuple(
            GpuSample(g.id, at, used, self.free_mib, 0.5, processes=self.processes)
            for g in self.gpus
        )

    def pids(self, gpu):
        return self.held

    def silent(self):
        return {}

    def health(self):
        news, self.news = self.news, ()
        return news

    def capabilities(self):
        return Capabilities("scripted", ())

    def close(self):
        self.closed = True


class Posts:
    """An inbox that is never emptied."""

    def __init__(self):
        self.events = []

    def clock(self):
        return 100.0

    def post(self, *events):
        self.events += events

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def parts():
    source, inbox, seen, evidence = Source(), Posts(), [], Evidence()
    evidence.add_supervisor((JobId(7), 2), os.getpid())
    monitor = Monitor(source, Settings(period_s=60), inbox, evidence, seen.append)
    yield monitor, source, inbox, seen
    monitor.stop()
    assert source.closed


def test_the_first_reading_is_there_before_start_returns(parts):
    monitor, source, inbox, seen = parts
    monitor.start()
    assert inbox.of(Discovered)[0].gpus == source.gpus
    assert inbox.of(Sampled)[0].samples == seen[0]


def test_gpus_with_a_fault_are_not_among_those_that_work(parts):
    monitor, source, _, _ = parts
    assert monitor.working() == ()
    sample = source.sample
    source.sample = lambda at: (sample(at)[0], replace(sample(at)[1], fault="GPU is lost"))
    monitor.start()
    assert monitor.working() == source.gpus[:1]
    source.sample = sample
    monitor._read()
    assert monitor.working() == source.gpus


def test_no_index_of_cudas_is_certain_while_a_gpu_fails_or_is_silent(parts):
    monitor, source, _, _ = parts
    assert monitor.cuda_indices() == {}
    source.gpus = tuple(replace(gpu, cuda_index=gpu.index) for gpu in source.gpus)
    first, second = (gpu.id for gpu in source.gpus)
    sample = source.sample
    monitor.start()
    assert monitor.cuda_indices() == {first: 0, second: 1}
    source.sample = lambda at: (sample(at)[0], replace(sample(at)[1], fault="GPU is lost"))
    monitor._read()
    assert monitor.cuda_indices() == {}
    source.sample = sample
    monitor._read()
    assert monitor.cuda_indices() == {first: 0, second: 1}
    source.silent = lambda: {second: "no answer"}
    monitor._read()
    assert monitor.cuda_indices() == {}
    source.silent = dict
    source.gpus = (source.gpus[0], replace(source.gpus[1], cuda_index=None))
    monitor._discover()
    assert monitor.cuda_indices() == {}


def test_a_driver_that_is_loaded_late_is_waited_for_and_told_of_once(parts, monkeypatch, caplog):
    monitor, source, inbox, _ = parts
    there, source.gpus, source.error = source.gpus, (), CarmaError("no driver", "load it")
    monkeypatch.setattr(monitor_module, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(monitor_module, "REDISCOVER_S", 0.0)
    monitor._settings = replace(monitor._settings, period_s=0.01)
    monitor.start()
    (told,) = inbox.of(Discovered)
    assert (told.gpus, told.unread) == ((), "no driver")
    until(lambda: len(inbox.of(Sampled)) > 5, "some more looks")
    assert inbox.of(Discovered) == [told]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no driver; load it" in caplog.text

    source.gpus, source.error = there, None
    until(lambda: len(inbox.of(Discovered)) > 1, "the GPUs to be found")
    assert (inbox.of(Discovered)[1].gpus, inbox.of(Discovered)[1].unread) == (there, "")

    source.error = CarmaError("gone again", "")
    until(lambda: "gone again" in caplog.text, "another look")
    assert len(inbox.of(Discovered)) == 2  # what is known stays: samples tell of faults


def test_a_driver_that_hangs_at_start_keeps_nobody_waiting(parts, monkeypatch):
    monitor, source, inbox, _ = parts
    answers = threading.Event()
    discover = source.discover
    source.discover = lambda: answers.wait() and discover()
    monkeypatch.setattr(monitor_module, "PATIENCE_S", 0.05)
    monitor.start()
    assert inbox.of(Discovered)[0].unread == "the driver has not answered yet"
    answers.set()
    until(lambda: len(inbox.of(Discovered)) > 1, "the GPUs to be found")
    assert inbox.of(Discovered)[1].gpus == source.gpus


def test_processes_are_named_after_their_jobs(parts):
    monitor, source, inbox, _ = parts
    source.processes = (ProcessUse(os.getpid(), 500), ProcessUse(1, 600))
    monitor.start()
    named = inbox.of(Sampled)[0].samples[0].processes
    assert [process.job for process in named] == [7, None]


def test_memory_is_gone_when_the_driver_has_forgotten_the_job_s_processes(parts):
    monitor, source, _, _ = parts
    job = a_job(7, attempt=2, gpus=(a_gpu(0).id,))
    source.processes = (ProcessUse(os.getpid(), 500),)
    source.held = frozenset({os.getpid(), 1})
    monitor.start()
    for _ in range(3):  # whoever asks never waits, and sees what was looked up after he first asked
        assert not monitor._evidence.memory_gone(job)
        looks = dict(monitor._evidence._looks)
        until(lambda seen=looks: monitor._evidence._looks != seen, "another look")
    source.held = frozenset({1})
    until(lambda: monitor._evidence.memory_gone(job), "the memory to be gone")


@pytest.mark.parametrize("broken", [True, False])
def test_a_driver_that_cannot_tell_who_is_there_holds_nobody_up(parts, broken):
    monitor, source, _, _ = parts
    source.processes = (ProcessUse(os.getpid(), 500),)
    source.pids = (lambda gpu: 1 / 0) if broken else (lambda gpu: None)
    monitor.start()
    job = a_job(7, attempt=2, gpus=(a_gpu(0).id,))
    until(lambda: monitor._evidence.memory_gone(job), "the memory to be taken for gone")


@pytest.mark.parametrize("call", ["sample", "pids"])
def test_a_call_that_hangs_holds_nobody_up(parts, call):
    """Neither callers of `capabilities` nor those waiting for memory to be freed."""
    monitor, source, inbox, _ = parts
    monitor._settings = replace(monitor._settings, period_s=0.0)
    source.processes = (ProcessUse(os.getpid(), 500),)
    source.held = frozenset({os.getpid()})
    monitor.start()
    hangs, answers = threading.Event(), threading.Event()
    asked = getattr(source, call)

    def hang(argument):
        hangs.set()
        answers.wait()
        return asked(argument)

    setattr(source, call, hang)
    job = a_job(7, attempt=2, gpus=(a_gpu(0).id,))
    until(lambda: not monitor._evidence.memory_gone(job) and hangs.is_set(), "the driver to hang")
    told = len(inbox.of(Sampled))
    assert monitor.capabilities().source == "scripted"
    assert not monitor._evidence.memory_gone(job)
    assert len(inbox.of(Sampled)) == told, "so the GPUs become stale"
    answers.set()
    until(lambda: len(inbox.of(Sampled)) > told, "it to go on")


def test_while_the_driver_hangs_time_limits_hold_and_no_job_is_placed(tmp_path, monkeypatch):
    """All the way from the source to the core."""
    monkeypatch.setattr(engine_module, "TICK_S", 0.05)
    monkeypatch.setattr(engine_module, "RETRY_S", 0.02)
    source, inbox, launched, stopped = Source(), Inbox(Clock(), 1), [], []
    settings = Config(monitor=Settings(period_s=0.02, stale_s=1.0))
    policy, recovery = registry.bare_policy(settings), registry.bare_recovery(settings)

    def perform(action):
        match action:
            case EstimateMemory(job):
                inbox.post(Estimated(inbox.clock(), job.id, Estimate(1_000, "t")))
            case Launch(job):
                launched.append(job.id)
            case Stop(job):
                stopped.append(job.id)

    def submit(**spec):
        id = inbox.next_ids(1)
        inbox.request(Submitted(inbox.clock(), id, (a_spec(**spec),))).result(PATIENCE_S)
        return id

    store = SqlStore.open(tmp_path / "carma.db")
    core = Scheduler(settings, policy, recovery)
    engine = Engine(inbox, core, store, SimpleNamespace(perform=perform))
    monitor = Monitor(source, settings.monitor, inbox, Evidence(), lambda samples: None)
    thread = threading.Thread(target=engine.run)
    thread.start()
    monitor.start()
    answers = threading.Event()
    try:
        runs = submit(time_limit_s=3.0, gpus=2)
        until(lambda: launched == [runs], "the job to be launched")
        sample = source.sample
        source.sample = lambda at: answers.wait() and sample(at)
        stale = lambda core: [bool(gpu.stale) for gpu in core.view(inbox.clock()).gpus]  # noqa: E731
        until(
            lambda: inbox.ask(stale).result(PATIENCE_S) == [True, True], "the GPUs to become stale"
        )
        until(lambda: stopped == [runs], "its time limit")
        inbox.post(Exited(inbox.clock(), runs, 1, Exit(Cause.TIME_LIMIT)))
        waits = submit()
        decided = lambda core: waits in core.snapshot(inbox.clock()).decisions  # noqa: E731
        until(lambda: inbox.ask(decided).result(PATIENCE_S), "a decision on the next")
        assert launched == [runs]
        answers.set()
        until(lambda: launched == [runs, waits], "the driver to answer")
    finally:
        answers.set()
        monitor.stop()
        inbox.close()
        thread.join(PATIENCE_S)
        store.close()


def test_a_condition_that_drains_does_so_once(parts):
    monitor, source, inbox, _ = parts
    gpu = source.gpus[0].id
    grave = Condition("sram_errors", "many errors", drains=True)
    usual = source.sample
    source.sample = lambda at: tuple(
        replace(each, conditions=(Condition("slowed", "it is hot"), grave))
        if each.gpu == gpu
        else each
        for each in usual(at)
    )
    monitor.start()
    (drained,) = inbox.of(DrainRequested)
    assert (drained.gpu, drained.reason) == (gpu, "many errors")
    monitor._read()
    assert len(inbox.of(DrainRequested)) == 1, "an administrator may have undrained it"


def test_bad_news_drains_a_gpu(parts):
    monitor, source, inbox, _ = parts
    gpu = source.gpus[0].id
    source.news = (
        Health(gpu, 1.0, "Xid 13: a job's fault", drain=False),
        Health(gpu, 1.0, "Xid 79: fallen off the bus", drain=True),
    )
    monitor.start()
    (drained,) = inbox.of(DrainRequested)
    assert (drained.gpu, drained.reason) == (gpu, "Xid 79: fallen off the bus")
