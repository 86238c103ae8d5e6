"""The journal: what is written, what is not, and that the daemon never suffers from it."""

from __future__ import annotations

import gzip
import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic_core import to_json

from carma_testing import FakeServer, a_gpu, a_spec
from carmad.config import Monitor, Settings
from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.history import BIN_S, History
from carmad.core.jobs.spec import ArrayTask
from carmad.core.jobs.states import JobState
from carmad.core.messages import (
    Action,
    CancelRequested,
    Discovered,
    DrainRequested,
    Estimated,
    Event,
    RequeueRequested,
    Sampled,
    Step,
    Submitted,
    Tick,
)
from carmad.core.scheduler import Scheduler
from carmad.daemon.monitor import Externals
from carmad.daemon.parts import flush
from carmad.edge import Follower
from carmad.engine.clock import Clock
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.installed import VERSION
from carmad.store import journal
from carmad.store.database import StoreFull
from carmad.store.journal import Begin, Journal
from carmad.store.sql import SqlStore
from lab.replay import reproduce
from policies import builtin
from recovery import ladder
from tests.recorded import PLENTY, Recorded


def plain(directory: Path) -> str:
    """All text in the journal."""
    return "".join(gzip.open(path, "rt").read() for path in journal.segments(directory))


@pytest.mark.parametrize("policy", ["magm", "rr"])
def test_every_segment_alone_leads_to_the_same_decisions(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENTS", PLENTY)  # each flush fills one
    server = Recorded(tmp_path, policy=policy)
    for second in server.busy_day(300):
        if second % 25 == 24:
            server.journal.flush()
    server.journal.flush()
    found = [reproduce(path) for path in journal.segments(tmp_path)]
    assert len(found) >= 12
    assert [each.first for each in found] == [None] * len(found)
    assert sum(each.steps for each in found) == len(server.decided)
    assert sum(each.decisions for each in found) == sum(server.decided) > 150


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.journal"
    path.write_bytes(gzip.compress(to_json(Begin("0.0.9", Settings(), (), (), ())) + b"\n"))
    with pytest.raises(CarmaError, match=r"was recorded by carmad 0\.0\.9, and this is") as caught:
        journal.read(path)
    assert "version that recorded it" in caught.value.hint


def test_the_first_segment_begins_with_what_the_store_had(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    id = server.submit(memory_mib=1000)
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    begin, turns = journal.read(path)
    assert begin == Begin(VERSION, server.scheduler.settings, (), (), ())
    found = list(turns)
    assert [turn.events for turn in found] == [step.events for step in server.steps]
    assert len(found) == 4  # the GPUs, a sample, a submission, its estimate
    (decision,) = found[-1].decisions
    assert decision.placement.job == id
    assert decision == server.steps[-1].decisions[0]


def test_begin_says_what_ended_and_is_drained(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    id = server.submit()
    server.exit(id)
    server.tell(DrainRequested(server.now, server.gpus[2].id, "a fan", "root"))
    server.journal.on_reset(())
    server.journal.flush()
    begin, _ = journal.read(journal.segments(tmp_path)[-1])
    assert isinstance(begin, Begin)
    assert begin.ended == ((id, JobState.SUCCEEDED, 1),)
    assert [(drain.gpu, drain.reason) for drain in begin.drains] == [(server.gpus[2].id, "a fan")]
    assert begin.gpus == server.gpus
    assert begin.last_placed == server.gpus[0].id


def test_begin_counts_each_task_of_an_array(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    array = a_spec(array=ArrayTask(JobId(1), 0, tasks=5, more=4))
    server.tell(Submitted(server.now, JobId(1), (array,)))
    server.journal.on_reset(())
    server.journal.flush()
    begin, _ = journal.read(journal.segments(tmp_path)[-1])
    assert isinstance(begin, Begin)
    then = History((), begin.submissions).traffic(server.now + 2 * BIN_S)
    assert (
        then == server.scheduler.state.history.traffic(server.now + 2 * BIN_S) == [(5, 5), (0, 0)]
    )


def test_no_environment_gets_in(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    id = server.submit(env=(("TOKEN", "hush-hush"),))
    server.exit(id)
    server.tell(RequeueRequested(server.now, server.last(id), "ada"))
    server.journal.on_reset(())  # the job is live, and in what a segment begins with
    server.journal.flush()
    text = plain(tmp_path)
    assert "train.py" in text and '"env":[]' in text
    assert "hush" not in text
    assert server.job(id).spec.environment is not None


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    server = Recorded(tmp_path / "journal")
    server.journal.flush()
    (path,) = journal.segments(tmp_path / "journal")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_oldest_segments_go_when_it_is_full(tmp_path: Path) -> None:
    cap = 60_000
    server = Recorded(tmp_path, cap)
    seen: set[Path] = set()
    for _ in server.busy_day(400):
        server.journal.flush()
        there = journal.segments(tmp_path)
        seen.update(there)
        assert sum(path.stat().st_size for path in there) <= cap
    assert 2 <= len(there) < len(seen)
    assert sorted(seen)[-len(there) :] == there, "the newest are kept"
    assert sum(path.stat().st_size for path in there) > cap / 2
    assert all(reproduce(path).first is None for path in there)


def test_none_is_kept_when_it_may_take_no_room(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    server.journal.flush()
    off = Journal(tmp_path, server.scheduler, 0)
    off.on_reset(())
    off.on_commit(server.tell(Tick(1.0)))
    off.flush()
    assert journal.segments(tmp_path) == []


# -- when something is in the way


def test_the_newest_are_kept_when_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = iter(range(28, 0, -1))

    class SetBack(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> SetBack:
            return cls(2026, 11, next(days), tzinfo=tz)

    monkeypatch.setattr(journal, "datetime", SetBack)
    server = Recorded(tmp_path)
    server.journal.flush()
    cap = 6 * journal.segments(tmp_path)[0].stat().st_size
    for _ in range(10):
        server.journal = Journal(tmp_path, server.scheduler, cap)  # a new daemon's
        server.journal.on_reset(())
        server.sample(1.0)
        server.journal.flush()
        *older, newest = journal.segments(tmp_path)
        (turn,) = journal.read(newest)[1]
        assert turn.events == server.steps[-1].events
    assert 1 <= len(older) < 9


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "the-day-it-broke.jsonl.gz"
    kept.write_text("a copy")
    server = Recorded(tmp_path)
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    assert path != kept
    Journal(tmp_path, server.scheduler, 0).flush()
    assert list(tmp_path.iterdir()) == [kept]


def test_a_segment_that_was_removed_is_followed_by_a_whole_one(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    server.journal.flush()
    (gone,) = journal.segments(tmp_path)
    gone.unlink()
    server.sample(1.0)
    server.journal.flush()  # into nothing
    assert journal.segments(tmp_path) == []
    server.sample(1.0)
    server.sample(1.0)
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    assert reproduce(path).steps == 1  # it begins after the first of the two
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_in_trouble_is_told_of_once_and_lived_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "journal"
    directory.touch()  # no directory: nothing can be written in there
    server = Recorded(directory)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            server.submit()
            server.journal.flush()
    (complaint,) = caplog.records
    assert str(directory) in complaint.getMessage()
    directory.unlink()
    server.submit()  # a segment begins after this submission, with all that came before
    server.sample(1.0)
    server.submit()
    server.journal.flush()
    (path,) = journal.segments(directory)
    begin, turns = journal.read(path)
    assert len(begin.jobs) == 4
    assert len(list(turns)) == 4  # an estimate, the sample, a submission and its estimate
    assert reproduce(path).first is None


def test_text_that_is_no_unicode_costs_a_segment_and_no_more(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    server.tell(CancelRequested(0.0, server.submit(), "a\udc80da"))
    server.journal.flush()
    server.sample(1.0)
    server.sample(1.0)
    server.journal.flush()
    *_, last = journal.segments(tmp_path)
    assert reproduce(last).steps == 1


def test_a_core_that_was_put_back_begins_a_segment(tmp_path: Path) -> None:
    """Decisions whose commit failed are not part of it."""
    server = Recorded(tmp_path)
    id = server.submit(memory_mib=30_000)
    server.exit(id)
    server.journal.flush()
    for _ in range(5):  # commits fail again and again
        server.scheduler.restore([])
        server.journal.on_reset(())
        server.sample(1.0)
    server.submit(memory_mib=1000)
    server.journal.flush()
    before, after = journal.segments(tmp_path)
    assert reproduce(before).first is None
    assert [reproduce(after).steps, reproduce(after).decisions] == [3, 1]


def test_memory_stays_bounded_when_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_PENDING", 50)
    server = Recorded(tmp_path)
    for _ in server.busy_day(100):
        assert len(server.journal._pending) <= 51
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    found = reproduce(path)
    assert 0 < found.steps <= 50
    assert found.first is None


def test_what_waits_to_be_written_holds_no_environments(tmp_path: Path) -> None:
    """They may be 1 MiB each, and a disk may hang for long."""
    server = Recorded(tmp_path)
    id = server.submit(env=(("TOKEN", "hush-hush"),))
    server.exit(id)
    server.tell(RequeueRequested(server.now, server.last(id), "ada"))
    _, *turns = server.journal._pending
    assert len(turns) == 7
    assert "hush" not in repr(turns)


def test_the_commands_of_an_array_are_not_all_in_memory_when_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have 32 MiB of them waiting, and submit and cancel them again and again."""
    members: list[int] = []
    compress = gzip.compress

    def counting(data: bytes, **options: int) -> bytes:
        members.append(len(data))
        return compress(data, **options)

    monkeypatch.setattr(gzip, "compress", counting)
    server = Recorded(tmp_path)
    server.tell(Submitted(0.0, JobId(1), (a_spec(argv=("sh", "x" * 100_000)),) * 60, held=True))
    server.journal.flush()
    monkeypatch.setattr(server.journal, "_full", True)
    server.sample(1.0)  # a segment begins with all of them
    server.journal.flush()
    assert sum(members) > 2 * 60 * 100_000
    assert max(members) < journal.MEMBER_BYTES + 110_000
    assert [reproduce(path).first for path in journal.segments(tmp_path)] == [None, None]


def test_a_line_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    server = Recorded(tmp_path)
    server.submit()
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    steps = reproduce(path).steps
    with path.open("ab") as file:
        file.write(gzip.compress(b'{"events":[["Submitted",'))
    assert reproduce(path).steps == steps > 0


def test_jobs_that_are_run_again_and_again_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was read from disk with its own copy of the command."""
    monkeypatch.setattr(journal, "MOST_PENDING_LETTERS", 1000)
    server = Recorded(tmp_path)
    id = server.submit(argv=("sh", "x" * 400))
    for _ in range(10):
        server.exit(id)
        server.tell(RequeueRequested(server.now, server.last(id), "ada"))
        turns = [turn for turn in server.journal._pending if not isinstance(turn, Begin)]
        again = [e for turn in turns for e in turn.events if isinstance(e, RequeueRequested)]
        assert len(again) <= 2


def test_a_step_that_cannot_be_written_is_followed_by_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason."""
    server = Recorded(tmp_path)
    server.journal.flush()
    server.submit()
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_encode", broken)
        with pytest.raises(RuntimeError):
            server.journal.flush()
    server.sample(1.0)
    server.submit()
    server.journal.flush()
    before, after = journal.segments(tmp_path)
    assert [reproduce(before).first, reproduce(after).first] == [None, None]
    assert reproduce(after).steps == 2  # it begins after the sample


def broken(*_: object) -> None:
    raise RuntimeError("a bug")


# -- samples of steps that are not committed


def test_samples_whose_commit_failed_are_what_the_next_segment_begins_with(tmp_path: Path) -> None:
    """They stay in the core's windows, and the next decisions use them."""
    settings = Settings(monitor=Monitor(stale_s=60))
    core = Scheduler(settings, builtin.magm(settings), ladder.exclusive(settings))
    log = Journal(tmp_path / "journal", core, PLENTY)
    store = FullOnce(SqlStore.open(tmp_path / "carma.db"))
    inbox = Inbox(lambda: 2.0, 1)
    engine = Engine(inbox, core, store, Idle(), (log,))  # type: ignore[arg-type]
    gpu = a_gpu()
    engine.restore()

    def turn(*events: Event) -> None:
        inbox.post(*events)
        inbox.close()
        engine.run()

    turn(Discovered(0.0, (gpu,)), Sampled(0.0, (GpuSample(gpu.id, 0.0, 0, 40_960),)))
    store.full = True
    turn(Sampled(1.0, (GpuSample(gpu.id, 1.0, 30_000, 10_960),)))  # a fresh one will do: dropped
    turn(Submitted(2.0, JobId(1), (a_spec(memory_mib=10_000),)))
    turn(Estimated(3.0, JobId(1), Estimate(10_000, "declared")))
    log.flush()
    store.store.close()
    *_, last = (reproduce(path) for path in journal.segments(tmp_path / "journal"))
    (verdict,) = core.snapshot(3.0).decisions[JobId(1)].placement.verdicts
    assert verdict.rank == -10_960, "free at that sample"
    assert (last.first, last.steps, last.decisions) == (None, 5, 1), "each turn closes with a step"


class FullOnce:
    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.restore = store.restore
        self.full = False

    def commit(self, step: Step) -> None:
        if self.full:
            self.full = False
            raise StoreFull("the disk is full", "make room")
        self.store.commit(step)


def test_samples_that_the_core_did_not_get_to_are_not_among_them(tmp_path: Path) -> None:
    """An event in the batch raises, so the events are then handled one by one."""
    server = Recorded(tmp_path)
    id = server.submit(memory_mib=39_000)
    server.exit(id)
    again = RequeueRequested(server.now, server.last(id), "ada")
    early, late = (
        Sampled(at, tuple(GpuSample(gpu.id, at, used, 40_960 - used) for gpu in server.gpus))
        for at, used in ((1.0, 0), (2.0, 40_000))
    )
    nonsense = Submitted(1.5, "nonsense", (a_spec(),))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        server.tell(early, nonsense, late)
    server.scheduler.restore([])
    server.journal.on_reset(())
    server.tell(early, again)
    server.tell(late)
    server.journal.flush()
    *_, last = (reproduce(path) for path in journal.segments(tmp_path))
    assert (last.first, last.steps, last.decisions) == (None, 2, 1)


# -- how the daemon puts it to use


def told(*followers: Any) -> Callable[[Step], None]:
    """Notifies followers of a step, like the engine."""
    core = SimpleNamespace(jobs=SimpleNamespace(rows={}))
    engine = Engine(cast("Any", None), cast("Any", core), *[cast("Any", None)] * 2, followers)
    return lambda step: engine._notify(step, 0.0, 0.0)


def test_a_step_that_another_could_not_be_told_of_is_in_the_journal(tmp_path: Path) -> None:
    server = FakeServer()
    log = Journal(tmp_path, server.scheduler, PLENTY)
    log.on_reset(())
    committed = told(
        SimpleNamespace(on_timing=lambda *_: None, on_commit=broken, on_reset=lambda jobs: None),
        log,
    )
    committed(server.tell(Tick(1.0)))
    log.flush()
    assert [reproduce(path).steps for path in journal.segments(tmp_path)] == [1]


def test_a_segment_begins_after_a_step_that_the_journal_could_not_take(tmp_path: Path) -> None:
    server = FakeServer()
    log = Journal(tmp_path, server.scheduler, PLENTY)
    log.on_reset(())
    committed = told(log)
    committed(server.tell(Tick(1.0)))
    log.flush()
    lost: Any = replace(server.tell(Tick(2.0)), events=None)
    committed(lost)
    committed(server.tell(Tick(3.0)))
    log.flush()
    assert [reproduce(path).steps for path in journal.segments(tmp_path)] == [1, 1]


def test_the_engine_tells_of_each_time_that_it_puts_the_core_back(tmp_path: Path) -> None:
    settings = Settings()
    core = Scheduler(settings, builtin.magm(settings), ladder.exclusive(settings))
    store = SqlStore.open(tmp_path / "carma.db")
    inbox = Inbox(Clock(), 1)
    restored: list[tuple[JobId, ...]] = []

    class Restored(Follower):
        def on_reset(self, jobs: object) -> None:
            restored.append(tuple(core.jobs))

    engine = Engine(inbox, core, store, Idle(), (Restored(),))
    engine.restore()
    inbox.post(Submitted(1.0, JobId(1), (a_spec(),)))
    inbox.post(Submitted(1.0, "nonsense", (a_spec(),)))  # type: ignore[arg-type]
    inbox.close()
    engine.run()
    store.close()
    assert restored == [(), (), (1,)]  # at the start, after the batch, after the one to blame


def test_external_processes_are_kept_whatever_becomes_of_the_journal() -> None:
    kept: list[Sequence[object]] = []
    store: Any = SimpleNamespace(record_externals=kept.append)
    log: Any = SimpleNamespace(flush=broken)
    with pytest.raises(RuntimeError):
        flush(log, store, Externals(500))
    assert len(kept) == 1


class Idle:
    def perform(self, action: Action) -> None:
        pass
