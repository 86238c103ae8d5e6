"""Tasks of an array that wait alike are one job, in the core and in the store. Whoever looks for
one of them finds it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import FakeServer, a_job, a_spec
from carma_testing.builders import changed
from carmad.api.events import Events
from carmad.api.stream import Wanted
from carmad.api.wire import parse_selection
from carmad.config import Host, Retention, Settings
from carmad.core.happenings import Happening, Kind
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import ENDED_REMEMBERED
from carmad.core.jobs.spec import After, ArrayTask, Owner
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import (
    Ended,
    JobsById,
    Outcome,
    gapless,
    ids_of,
    indices,
    part,
    singly,
    spans,
)
from carmad.core.messages import (
    CancelRequested,
    HoldRequested,
    RequeueRequested,
    Step,
    Submitted,
    Tick,
    UpdateRequested,
)
from carmad.metrics.declared import ENDED
from carmad.options import MAX_TASKS
from carmad.store.journal import Journal, read, segments
from carmad.store.sql import SqlStore
from tests.aio import run_async
from tests.api_server import Daemon, running, user_name
from tests.daemon import ROOT

DAY = 86_400.0
TASKS = 3000


def an_array(first: int = 10, index: int = 0, tasks: int = 5, step: int = 1, **its: object) -> Job:
    task = ArrayTask(JobId(first), index, tasks=tasks, more=tasks - 1, step=step)
    return a_job(first, spec=a_spec(array=task), **its)


# -- values


@given(st.lists(st.integers(0, 40), unique=True, max_size=20))
def test_spans_are_the_indices_in_their_order(every: list[int]) -> None:
    assert [index for span in spans(every) for index in span] == every


def test_evenly_spaced_indices_are_one_span() -> None:
    assert [*spans(range(5))] == [range(5)]
    assert [*spans([0, 4, 8])] == [range(0, 12, 4)]
    assert [*spans([1, 2, 3, 7, 9])] == [range(1, 4), range(7, 11, 2)]


@given(st.integers(0, 5), st.integers(1, 4), st.integers(0, 30), st.integers(0, 30))
def test_ids_are_found_by_indices(first: int, step: int, low: int, high: int) -> None:
    job = an_array(10, first, 6, step)
    wanted = [10 + n for n, index in enumerate(indices(job)) if low <= index < high]
    assert [*ids_of(job, range(low, high))] == wanted


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6), st.integers(1, 4)), max_size=4))
def test_the_indices_of_several_rows_are_few_ranges(rows: list[tuple[int, int, int]]) -> None:
    jobs = [an_array(10, index, tasks, step) for index, tasks, step in rows]
    every = sorted({index for job in jobs for index in indices(job)})
    found = [*gapless(jobs)]
    assert [index for its in found for index in its] == every
    assert all(before.stop < after.start for before, after in pairwise(found))


def test_a_part_has_the_ids_and_indices_of_its_tasks() -> None:
    job = an_array(10, 4, 5, 2)
    two = part(job, range(11, 13))
    assert ([*two.ids], [*indices(two)], two.tasks) == ([11, 12], [6, 8], 2)
    assert part(job, job.ids) is job
    alone = [*singly([job, a_job(99)])]
    assert [each.id for each in alone] == [10, 11, 12, 13, 14, 99]
    assert all(each.tasks == 1 for each in alone)
    assert [*indices(a_job(99))] == []


def test_each_task_is_found_by_its_id() -> None:
    jobs = JobsById([a_job(3), an_array(10), an_array(20)])
    assert [*jobs] == [3, *range(10, 15), *range(20, 25)] and len(jobs) == 11
    assert jobs[JobId(12)] == part(an_array(10), range(12, 13))
    assert jobs[JobId(10)].tasks == 1
    assert JobId(15) not in jobs and jobs.get(JobId(19)) is None and jobs.row(JobId(9)) is None
    assert jobs.row(JobId(24)) == an_array(20)
    assert [[*each.ids] for each in jobs.parts(range(13, 22))] == [[13, 14], [20, 21]]
    copied = jobs.copy()
    jobs.remove(JobId(10))
    assert JobId(12) in copied and JobId(12) not in jobs and len(jobs) == 6


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(1, 9),
            st.sampled_from([JobState.CANCELLED, JobState.SUCCEEDED, None]),
        )
    )
)
def test_the_latest_ends_are_remembered(ends: list[tuple[int, int, JobState | None]]) -> None:
    """As by a plain dictionary of ids."""
    ended, plain = Ended(12), dict[JobId, JobState]()
    for first, count, state in ends:
        ids = range(first, first + count)
        ended.forget(ids)  # a job that ends again has been requeued
        for id in ids:
            plain.pop(JobId(id), None)
        if state:
            ended.remember(Outcome(JobId(first), state, count))
            plain |= {JobId(id): state for id in ids}
        if len(ended) == 12:  # what is forgotten is among the oldest
            plain = {id: state for id, state in plain.items() if id in ended}
        assert dict(ended) == plain and len(ended) == len(plain) <= 12
        assert not state or plain.keys() >= set(ids)


@pytest.mark.parametrize(
    ("label", "ids"),
    [
        ("10", range(10, 15)),
        ("12", range(12, 13)),
        ("10_[3-6]", range(11, 13)),
        ("10_2,10_[3-4],11-13", range(10, 14)),
        ("1-9", range(0)),
        ("10_3", range(0)),
        ("20_2", range(0)),
    ],
)
def test_a_selection_takes_a_part_of_an_array(label: str, ids: range) -> None:
    parts = [*parse_selection(label).parts(an_array(10, 2, 5, 2))]
    assert [id for each in parts for id in each.ids] == [*ids]


# -- the core


def a_server(**its: object) -> FakeServer:
    """With an array of five, which wants whole GPUs, of which there are two."""
    server = FakeServer(settings=Settings(policy="exclusive"))
    task = ArrayTask(JobId(1), 0, tasks=5, more=4)
    server.tell(Submitted(0.0, JobId(1), (a_spec(array=task, memory_mib=1000, **its),)))
    return server


def ids(server: FakeServer) -> list[tuple[str, list[int]]]:
    rows = sorted(server.scheduler.jobs.rows.values(), key=lambda job: job.id)
    return [(job.state.value, [*job.ids]) for job in rows]


def test_tasks_leave_their_array_as_they_start() -> None:
    server = a_server()
    assert ids(server) == [("starting", [1]), ("starting", [2]), ("queued", [3, 4, 5])]
    server.exit(JobId(1))
    assert ids(server) == [("starting", [2]), ("starting", [3]), ("queued", [4, 5])]
    assert [each.tasks for each in server.scheduler.view(0.0).queue] == [2]


def test_an_array_is_cancelled_held_and_updated_as_one() -> None:
    server = a_server()
    step = server.tell(HoldRequested(1.0, JobId(3), True, "ada", 2))
    assert [[*job.ids] for job in step.jobs] == [[3, 4, 5]]
    nice = replace(server.job(JobId(3)).spec, nice=3)
    step = server.tell(UpdateRequested(1.0, JobId(3), nice, ("nice",), "ada", more=2))
    assert [[*job.ids] for job in step.jobs] == [[3, 4, 5]]
    step = server.tell(CancelRequested(1.0, JobId(2), "ada", 3))
    assert [(job.state.value, [*job.ids]) for job in step.jobs[-1:]] == [("cancelled", [3, 4, 5])]
    assert server.scheduler.outcomes[JobId(5)] is JobState.CANCELLED
    assert server.job(JobId(2)).state is JobState.STOPPING


def test_an_array_costs_the_core_what_a_job_costs() -> None:
    """Submitted, cancelled while it waits, and depended on: in lines of Python."""

    def cost(tasks: int) -> int:
        server = FakeServer()
        task = ArrayTask(JobId(1), 0, tasks=tasks, more=tasks - 1)
        of_all = Submitted(0.0, JobId(1), (a_spec(array=task),), held=True)
        after = (After(JobId(1)), After(JobId(tasks)))
        of_one = Submitted(0.0, JobId(tasks + 1), (a_spec(after=after),))
        spent = lines(lambda: server.tell(of_all, of_one))
        cancel = CancelRequested(1.0, JobId(1), "ada", tasks - 1)
        spent += lines(lambda: server.tell(cancel))
        spent += lines(lambda: server.scheduler.snapshot(1.0))
        assert server.scheduler.outcomes[JobId(tasks + 1)] is JobState.CANCELLED
        return spent

    cost(10)  # whoever is first compiles what the others reuse
    assert 0 < cost(TASKS) < 1.1 * cost(10)


def lines(call: Callable[[], object]) -> int:
    """How many it runs."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_who_is_changed_apart_waits_apart_from_then_on() -> None:
    server = a_server()
    server.tell(HoldRequested(1.0, JobId(4), True, "ada"))
    assert ids(server)[2:] == [("queued", [3]), ("queued", [4]), ("queued", [5])]
    assert [job.id for job in server.scheduler.jobs.rows.values() if job.held] == [4]
    server.exit(JobId(1))
    server.exit(JobId(2))
    assert [state for state, _ in ids(server)] == ["starting", "queued", "starting"]


def test_what_is_divided_before_its_estimate_is_estimated_nevertheless() -> None:
    server = FakeServer(settings=Settings(policy="exclusive"))
    task = ArrayTask(JobId(1), 0, tasks=5, more=4)
    specs = (a_spec(array=task, memory_mib=1000),)
    server.tell(Submitted(0.0, JobId(1), specs), HoldRequested(0.0, JobId(3), True, "ada"))
    states = {state for state, _ in ids(server)}
    assert states == {"starting", "queued"}, "none is pending"


def test_a_dependent_waits_for_every_task() -> None:
    server = a_server()
    after = tuple(After(JobId(n)) for n in range(1, 6))
    server.next_id = 6
    last = server.submit(after=after, memory_mib=1000)
    for n in (1, 2, 3, 4):
        server.exit(JobId(n))
    assert server.job(last).state is JobState.QUEUED
    server.tell(CancelRequested(1.0, JobId(5), "ada"))
    server.exit(JobId(5))
    assert server.last(last).state is JobState.CANCELLED


def test_dependents_of_tasks_that_never_started_go_with_them() -> None:
    server = a_server()
    server.next_id = 6
    last = server.submit(after=(After(JobId(4)),), memory_mib=1000)
    server.tell(CancelRequested(1.0, JobId(3), "ada", 2))
    assert server.last(last).state is JobState.CANCELLED


def test_those_behind_an_array_do_not_pass_it() -> None:
    """Each task's turn comes before the jobs that came later."""
    server = FakeServer(gpus=3, settings=Settings(policy="exclusive"))
    blocker = server.submit(gpus=3, exclusive=True, memory_mib=1000)
    task = ArrayTask(JobId(2), 0, tasks=3, more=2)
    server.tell(Submitted(0.0, JobId(2), (a_spec(array=task, memory_mib=1000),)))
    server.next_id = 5
    later = server.submit(memory_mib=1000)
    server.exit(blocker)
    assert [server.job(JobId(n)).holds_gpus for n in (2, 3, 4)] == [True] * 3
    assert not server.job(later).holds_gpus


@pytest.mark.parametrize("gpus", [0, 1])
def test_tasks_take_the_cpus_that_there_are(gpus: int) -> None:
    settings = Settings(policy="exclusive", host=Host(cpus=4))
    server = FakeServer(gpus=8, settings=settings)
    task = ArrayTask(JobId(1), 0, tasks=6, more=5)
    spec = a_spec(array=task, gpus=gpus, cpus=1, memory_mib=1000 if gpus else None)
    server.tell(Submitted(0.0, JobId(1), (spec,)))
    server.sample(1.0)
    holding = [job.id for job in server.scheduler.jobs.rows.values() if job.holds_gpus]
    assert holding == [1, 2, 3, 4]


# -- the store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = SqlStore.open(tmp_path / "state" / "carma.db")
    yield opened
    opened.close()


def keep(store: SqlStore, server: FakeServer, begin: int = 0) -> None:
    for step in server.steps[begin:]:
        store.commit(step)


def test_an_array_is_one_row_until_its_tasks_start(store: SqlStore) -> None:
    server = a_server()
    keep(store, server)
    assert [[*job.ids] for job in store.restore().jobs] == [[1], [2], [3, 4, 5]]
    assert store.restore().jobs == tuple(
        sorted(server.scheduler.jobs.rows.values(), key=lambda job: job.id)
    )
    assert store.tasks(JobId(1)) == {JobState.STARTING: 2, JobState.QUEUED: 3}


def test_each_task_has_the_past_that_they_shared(store: SqlStore) -> None:
    server = a_server()
    keep(store, server)
    moves = [(move.before, move.after) for move in store.transitions(JobId(5))]
    waited = [(None, JobState.PENDING), (JobState.PENDING, JobState.QUEUED)]
    assert moves == waited
    seen = len(server.steps)
    server.exit(JobId(1))
    keep(store, server, seen)
    moves = [(move.before, move.after) for move in store.transitions(JobId(3))]
    assert moves == [*waited, (JobState.QUEUED, JobState.STARTING)]
    assert {move.job for move in store.transitions(JobId(3))} == {3}
    assert [(move.before, move.after) for move in store.transitions(JobId(4))] == waited


def test_a_task_without_a_row_is_found(store: SqlStore) -> None:
    server = a_server()
    keep(store, server)
    job = store.job(JobId(4))
    assert job == server.job(JobId(4)) and job.tasks == 1
    assert [each.id for each in store.jobs([JobId(1), JobId(4), JobId(9)])] == [1, 4]
    assert store.job(JobId(6)) is None
    assert [[*each.ids] for each in store.history(arrays=[JobId(1)], index=3)] == [[3, 4, 5]]
    assert store.history(arrays=[JobId(1)], index=7) == []
    names = store.name_jobs([JobId(n) for n in range(7)])
    assert {id: name.label for id, name in names.items()} == {n: f"1_{n - 1}" for n in range(1, 6)}
    assert store.transitions(JobId(6)) == [] == store.decisions(JobId(6), 9)


def test_cancelled_tasks_stay_one_row_and_count_as_many(store: SqlStore) -> None:
    server = a_server()
    server.tell(CancelRequested(1.0, JobId(3), "ada", 2))
    keep(store, server)
    ended = store.history(states=[JobState.CANCELLED])
    assert [[*job.ids] for job in ended] == [[3, 4, 5]]
    assert dict(store.totals(0.0).overall.jobs) == {JobState.CANCELLED: 3}
    assert store.restore().ended == (Outcome(JobId(3), JobState.CANCELLED, 3),)


def test_arrays_that_ended_are_restored_as_rows(store: SqlStore, tmp_path: Path) -> None:
    """Also by the journal, and by a reload."""
    server = FakeServer(gpus=0, settings=Settings(policy="exclusive"))
    first = 1
    for _ in range(5):
        task = ArrayTask(JobId(first), 0, tasks=MAX_TASKS, more=MAX_TASKS - 1)
        server.tell(Submitted(0.0, JobId(first), (a_spec(array=task),)))
        server.tell(CancelRequested(1.0, JobId(first), "ada", MAX_TASKS - 1))
        keep(store, server)
        first += MAX_TASKS
    restored = store.restore()
    assert len(restored.ended) == 5
    assert [each.jobs for each in store.submissions()] == [MAX_TASKS] * 5
    server.scheduler.restore(restored.jobs, restored.ended)
    assert len(server.scheduler.outcomes.rows) == 1
    assert len(server.scheduler.outcomes) == ENDED_REMEMBERED
    server.scheduler.restore(
        restored.jobs, restored.ended, history=History((), store.submissions())
    )
    journal = Journal(tmp_path / "journal", server.scheduler, 1 << 20)
    journal.on_reset(())
    journal.flush()
    (segment,) = segments(tmp_path / "journal")
    begin, _ = read(segment)
    assert begin.ended == tuple(server.scheduler.outcomes.rows.values())
    assert sum(each.jobs for each in begin.submissions) == 5 * MAX_TASKS
    assert len(begin.submissions) == 1


def test_a_stream_of_many_arrays_keeps_their_rows() -> None:
    rows = [an_array(1 + 10_000 * n, 0, 9_999) for n in range(300)]
    ended = changed(an_array(4_000_001, 0, 9_999), state=JobState.CANCELLED, ended_at=9.0)
    wanted = Wanted([*rows, ended])
    assert (len(wanted._jobs.rows), len(wanted._going_on.rows)) == (301, 300)
    task = next(singly([rows[1]]))
    over = Happening(1.0, Kind.ENDED, changed(task, state=JobState.SUCCEEDED), None)
    assert wanted.has(over)
    assert len(wanted._going_on) == 300 * 9_999 - 1
    assert not wanted.has(replace(over, job=replace(task, id=JobId(9_000_000))))
    wanted.look_at(JobsById([part(rows[2], rows[2].ids[5:7]), an_array(5_000_001, 0, 3)]))
    assert [*wanted._going_on] == [*rows[2].ids[5:7]]
    wanted.look_at(JobsById())
    assert wanted.are_over


SPELT_OUT = re.compile(
    r"\bfor \w+ in (?!self|selection)[\w.]+\.ids\b|\*job\.ids\b|\b(set|list|sorted)\([\w.]+\.ids\)"
)


def test_only_one_module_spells_out_the_tasks_of_a_row() -> None:
    """Elsewhere, an array that waits or has ended would cost what all its tasks cost."""
    folders = ("carmad", "policies", "recovery", "cli", "extras")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path != ROOT / "carmad/core/jobs/tasks.py"
        for line in path.read_text().splitlines()
        if SPELT_OUT.search(line)
    }
    assert not found


def test_ids_of_tasks_without_rows_are_never_given_again(store: SqlStore) -> None:
    server = FakeServer(gpus=0, settings=Settings(policy="exclusive"))
    task = ArrayTask(JobId(1), 0, tasks=TASKS, more=TASKS - 1)
    server.tell(Submitted(0.0, JobId(1), (a_spec(array=task),)))
    server.tell(CancelRequested(1.0, JobId(1), "ada", TASKS - 1))
    keep(store, server)
    assert store.restore().next_id == TASKS + 1
    store.backup(1)
    assert store.purge(100 * DAY, Retention(ended_days=1)) == 1
    assert store.restore().next_id == TASKS + 1 == store.last_id_backed_up() + 1


@pytest.mark.parametrize(
    ("again", "left"),
    [(range(3, 4), [[4, 5]]), (range(4, 5), [[3], [5]]), (range(3, 6), [])],
    ids=["first", "middle", "all"],
)
def test_ended_tasks_run_again_apart_from_the_others(
    store: SqlStore, again: range, left: list[list[int]]
) -> None:
    server = a_server()
    server.tell(CancelRequested(1.0, JobId(3), "ada", 2))
    keep(store, server)
    (row,) = store.history(states=[JobState.CANCELLED])
    seen = len(server.steps)
    server.tell(RequeueRequested(2.0, part(row, again), "ada"))
    keep(store, server, seen)
    ended = store.history(states=[JobState.CANCELLED])
    assert sorted([*job.ids] for job in ended) == left
    queued = [job for job in store.restore().jobs if job.state is JobState.QUEUED]
    assert [[*job.ids] for job in queued] == [[*again]]
    for n in (3, 4, 5):
        moves = [move.after.value for move in store.transitions(JobId(n))]
        assert moves == ["pending", "queued", "cancelled", *(["queued"] if n in again else [])]
    seen = len(server.steps)
    for n in {3, 4, 5} - {*again}:
        server.tell(RequeueRequested(3.0, part(row, range(n, n + 1)), "ada"))
    keep(store, server, seen)
    assert store.tasks(JobId(1)) == {JobState.STARTING: 2, JobState.QUEUED: 3}


# -- the API


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as made:
        yield made


def submit(daemon: Daemon, **its: object) -> int:
    body = {"argv": ["true"], "cwd": "/tmp", "held": True, **its}
    status, out = daemon.call("POST", "/v1/jobs", body)
    assert status == 201, out
    return int(out["id"])


def test_an_array_is_submitted_and_cancelled_as_one(daemon: Daemon) -> None:
    written: list[Step] = []
    commit = daemon.store.commit

    def noted(step: Step) -> None:
        written.append(step)
        commit(step)

    daemon.store.commit = noted  # type: ignore[method-assign]
    array = submit(daemon, array={"indices": [*range(TASKS)]})
    assert sum(len(step.jobs) for step in written) <= 2, "submitted, estimated"
    written.clear()
    assert daemon.service.tally.waiting(Owner(os.getuid(), user_name())).jobs == TASKS
    results = daemon.call("POST", "/v1/cancel", {"select": str(array)})[1]["results"]
    label = f"{array}_[0-{TASKS - 1}]"
    said = {"id": array + 1, "label": label, "ok": True, "message": "cancelled", "count": TASKS}
    assert results == [said]
    assert [len(step.jobs) for step in written if step.jobs][-1] == 1
    assert daemon.service.tally.waiting(Owner(os.getuid(), user_name())).jobs == 0
    counted = daemon.service.counts.registry
    assert counted.get_sample_value(ENDED.name, {"outcome": "cancelled"}) == TASKS
    past = daemon.call("GET", "/v1/history")[1]["jobs"]
    assert [(job["count"], job["tasks"]) for job in past] == [(TASKS, f"0-{TASKS - 1}")]
    job = daemon.call("GET", f"/v1/jobs/{array}_2718")[1]
    assert (job["id"], job["state"]) == (array + 2719, "cancelled")


def test_who_waits_for_one_task_is_told_when_all_are_cancelled() -> None:
    events = Events("1", external_mib=0)
    queued, cancelled = an_array(10), changed(an_array(10), state=JobState.CANCELLED)

    async def told() -> list[bool]:
        with ExitStack() as held:
            news = [held.enter_context(events.of_job(JobId(n))) for n in (9, 12, 15)]
            events.on_commit(Step((Tick(0.0),), (cancelled,), (), (), before=(queued,)))
            await asyncio.sleep(0)
            return [each.is_set() for each in news]

    assert run_async(told()) == [False, True, False]


def test_tasks_that_ended_alike_share_a_row_of_the_history(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        body = {"argv": ["train"], "cwd": "/tmp", "env": {}, "gpus": 0}
        array = body | {"array": {"indices": [*range(1, 10)]}}
        out = daemon.call("POST", "/v1/jobs", array)[1]
        first, ids = out["id"], out["ids"]
        alone = int(daemon.call("POST", "/v1/jobs", body)[1]["id"])
        failure = Exit(Cause.FAILURE, 1)
        for id in (*ids, alone):
            daemon.exit(id, failure if id == ids[4] else Exit(Cause.SUCCESS, 0))

        def rows(query: str) -> list[tuple[object, ...]]:
            answer = daemon.call("GET", f"/v1/history?{query}")[1]
            listed = [(job["label"], job["state"], job.get("count")) for job in answer["jobs"]]
            return [*listed, ("more", answer["more"])]

        most = (f"{first}_[1-4,6-9]", "succeeded", 8)
        others = [most, (f"{first}_5", "failed", None)]
        every = [(str(alone), "succeeded", None), *others, ("more", 0)]
        assert rows("fold=true") == every
        assert rows("fold=true&limit=3") == every, "rows are counted, not jobs"
        assert rows("fold=true&limit=2") == [every[0], every[1], ("more", 1)]
        assert len(rows("")) == len(ids) + 2
        folded = daemon.call("GET", "/v1/history?fold=true")[1]["jobs"][1]
        tasks = [
            job
            for job in daemon.call("GET", "/v1/history?states=succeeded")[1]["jobs"]
            if job["label"].startswith(f"{first}_")
        ]
        assert folded["started_at"] == min(job["started_at"] for job in tasks)
        assert folded["ended_at"] == max(job["ended_at"] for job in tasks)
        assert folded["wait_s"] == max(job["wait_s"] for job in tasks)
