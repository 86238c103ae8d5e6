"""Long queues: shared results, folding, and caching."""

from __future__ import annotations

import gc
import json
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_gpu_view, a_job, a_spec, a_view
from carma_testing.builders import changed
from carmad.api import actions, service
from carmad.api import job as api_job
from carmad.api.job import Jobs
from carmad.api.rows import FIRST_ROWS, OWN_ROWS, PIECE, fold, row_out, visible_rows
from carmad.api.server import MOST_RECENT
from carmad.api.wire import Selection, as_json, parse_selection
from carmad.attempt.environment import log_paths
from carmad.config import Limits, Settings
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId, Suspension
from carmad.core.jobs.findings import Estimate, Prediction
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import Held
from carmad.core.jobs.spec import ArrayTask
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import JobsById, singly, split
from carmad.core.messages import Step
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.store.database import StoreFull
from tests.aio import run_async
from tests.api_server import ROOT_JOBS, Daemon, as_uid, request, running
from tests.carmad.api.test_api import ADA, JOB, needs_root, submit
from tests.waiting import PATIENCE_S

ARRAY = 200
UID = 1000


def task(id: int, index: int, array: int = 1, limit: int | None = None, **changes: Any) -> Job:
    return a_job(id, spec=a_spec(array=ArrayTask(JobId(array), index, limit)), **changes)


def scene_of(*jobs: Job, held: Held | None = None, settings: Settings | None = None) -> Scene:
    view = a_view([a_gpu_view(0)], jobs, settings=settings)
    line = tuple(job for job in jobs if job.state is JobState.QUEUED)
    return Scene(view, {}, JobsById(jobs), {}, line, held=held or Held())


def viewer(scene: Scene, uid: int = UID, see_all: bool = False) -> Jobs:
    return Jobs(scene, lambda job, ahead: ("out", "err"), (uid, a_spec().user), see_all)


LOOKS = "status jobs jobs/1 jobs/1/why jobs/2/why gpus share starts reservations health stats"


def test_no_scene_outlives_the_next(daemon: Daemon) -> None:
    """With it would its answers, of 16 MB each: carmad seldom looks for cycles."""
    submit(daemon)
    gc.collect()
    before = len(scenes())
    gc.disable()
    try:
        for _ in range(5):
            for path in LOOKS.split():
                assert daemon.call("GET", f"/v1/{path}")[0] == 200, path
            submit(daemon, after=[{"job": "1", "kind": "afterany"}])
        assert len(scenes()) <= before + 2
    finally:
        gc.enable()


def scenes() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, Scene)]


def test_the_elapsed_time_stops_at_the_end_and_while_the_job_is_suspended() -> None:
    gone = Suspension(40.0, "by ada", (GpuId("GPU-0"),), "A100", "local", 1, 1)
    its = {"spec": a_spec(uid=UID), "started_at": 10.0, "attempt": 1}
    jobs = (
        a_job(1, spec=a_spec(uid=UID)),
        a_job(2, state=JobState.RUNNING, gpus=(GpuId("GPU-0"),), **its),
        a_job(3, state=JobState.SUSPENDED, suspension=gone, **its),
        a_job(4, state=JobState.SUCCEEDED, exit=Exit(Cause.SUCCESS), ended_at=30.0, **its),
    )
    scene = replace(scene_of(*jobs), view=replace(scene_of(*jobs).view, now=100.0))
    assert [viewer(scene)(job)["elapsed_s"] for job in jobs] == [0.0, 90.0, 30.0, 20.0]


def test_how_a_script_stopped_when_it_was_tried_is_told_until_it_runs() -> None:
    job = a_job(1, state=JobState.QUEUED, spec=a_spec(uid=UID), crash="at train.py:1: NameError: x")
    assert viewer(scene_of(job))(job)["crash"] == "at train.py:1: NameError: x"
    starts = changed(job, state=JobState.STARTING)
    assert viewer(scene_of(starts))(starts)["crash"] == "at train.py:1: NameError: x"
    ran = changed(job, attempt=1)
    assert viewer(scene_of(ran))(ran)["crash"] is None
    assert "crash" not in viewer(scene_of(job), UID + 1)(job)


def test_what_no_gpu_has_is_told_until_it_runs() -> None:
    need = Estimate(229_478, "trace", low=153_088, high=238_899)
    job = a_job(1, state=JobState.QUEUED, spec=a_spec(uid=UID), estimate=need)
    told = "needs at least 149.5G, and the largest GPU has 40.0G"
    assert viewer(scene_of(job))(job)["too_large"] == told
    ran = changed(job, attempt=1)
    assert viewer(scene_of(ran))(ran)["too_large"] is None
    for may_fit in (replace(need, low=40_960), Estimate(40_960, "history"), None):
        fits = replace(job, estimate=may_fit)
        assert viewer(scene_of(fits))(fits)["too_large"] is None


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    settings = replace(ROOT_JOBS, limits=Limits(queued_per_user=1000))
    with tempfile.TemporaryDirectory(prefix="carma-listing-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder), settings, gpus=1) as daemon:
            submit(daemon, exclusive=True)  # has the only GPU
            yield daemon


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a scene was captured and a job rendered, and how many steps there were."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def counting(*given: Any) -> Any:
            counts[what] += 1
            return original(*given)

        monkeypatch.setattr(owner, name, counting)

    count(Scheduler, "snapshot", "scenes")
    count(api_job.Jobs, "__call__", "jobs")
    count(service.Service, "on_commit", "steps")
    monkeypatch.setattr(service, "FRESH_S", 1e9)  # only a step outdates a scene here
    return counts


def array(daemon: Daemon, tasks: int = ARRAY, **more: object) -> int:
    indices = {"indices": list(range(tasks))}
    status, out = daemon.call("POST", "/v1/jobs", JOB | {"array": indices | more})
    assert status == 201
    first = int(out["id"])
    wait_until_queued(daemon, first + tasks - 1)
    return first


def sweep(daemon: Daemon) -> int:
    """Its tasks differ, so each is a job of its own."""
    return array(daemon, params={"seed": [str(n) for n in range(ARRAY)]})


def wait_until_queued(daemon: Daemon, job: int) -> None:
    """Its estimate is posted by the answering thread, so that step is done when this one is."""
    for _ in range(100):
        daemon.sample()
        if (
            daemon.inbox.ask(lambda core: core.jobs[JobId(job)].state).result(PATIENCE_S)
            != "pending"
        ):
            return
    raise AssertionError(f"job {job} is not estimated")


# folding


def test_tasks_that_wait_for_the_same_are_one_row() -> None:
    jobs = [
        task(1, 0, state=JobState.RUNNING, gpus=("GPU-0",)),
        *(task(id, id - 1, limit=4) for id in range(2, 9)),
        a_job(20),
        task(30, 5, array=30),
        task(9, 8, limit=4, held=True),
        task(10, 11, limit=4),
    ]
    scene = scene_of(*jobs, held=Held(tasks=Counter({JobId(1): 4})))
    one = viewer(scene)
    rows = fold(jobs, one)
    assert [[job.id for job in row] for row in rows] == [
        [1],
        [2, 3, 4, 5, 6, 7, 8, 10],
        [20],
        [30],
        [9],
    ]
    out = row_out(rows[1], one)
    assert (out["id"], out["label"], out["tasks"], out["count"]) == (
        2,
        "1_[1-7,11%4]",
        "1-7,11%4",
        8,
    )
    assert out["reason"] == "(ArrayLimit)"
    assert "count" not in row_out(rows[3], one)
    given = parse_selection(out["label"])
    assert [[*given.parts(job)] for job in rows[1]] == [[job] for job in rows[1]]
    assert not [*given.parts(jobs[0])]


def test_a_row_names_only_so_many_spans() -> None:
    jobs = [task(id, 2 * id) for id in range(1, 100)]
    one = viewer(scene_of(*jobs))
    head, others = fold(jobs, one)
    assert "tasks" not in row_out(head, one), "it waits for GPUs, and the others for their turn"
    out = row_out(others, one)
    assert (out["tasks"], out["count"]) == ("4,6,8,10,12,14,16,18,...", 98)


def test_of_a_long_line_its_head_is_shown_and_one_s_own() -> None:
    others = [a_job(id, spec=a_spec(uid=1)) for id in range(1, 1001)]
    mine = [a_job(id, spec=a_spec(uid=UID)) for id in range(2000, 2100)]
    rows = fold([*others, *mine], viewer(scene_of(*others, *mine)))
    shown, more = visible_rows((UID, a_spec().user), rows)
    ids = [row[0].id for row in shown]
    assert ids == [*range(1, FIRST_ROWS + 1), *range(2000, 2000 + OWN_ROWS)]
    assert more == 1100 - FIRST_ROWS - OWN_ROWS
    assert visible_rows((UID, a_spec().user), rows[:3]) == (rows[:3], 0)


# rows of tasks


@pytest.mark.parametrize("uid", [UID, UID + 1])
def test_tasks_that_wait_alike_are_written_as_each_of_them_would_be(uid: int) -> None:
    array = ArrayTask(JobId(4), 10, None, more=5, step=3)
    name = "1%j0/%A_%a%a-%%a-%x.log"
    spec = a_spec(uid=UID, array=array, argv=("train", "4", "10"), stdout=name, stderr="%j%%")
    other = a_job(1, state=JobState.QUEUED, spec=a_spec(uid=UID))
    job = a_job(4, state=JobState.QUEUED, spec=spec, submitted_at=0.0)
    one = Jobs(scene_of(other, job), log_paths, (uid, a_spec().user), False)
    expected = [one(task) for task in singly([other, job])]
    assert [*one.of_tasks(other), *one.of_tasks(job)] == expected
    assert expected[-1]["label"] == "4_25" and expected[-1].get("position") in (7, None)


def test_tasks_of_which_none_is_in_line_have_no_place() -> None:
    """As those that wait for an estimate, or were cancelled together."""
    for state in (JobState.PENDING, JobState.CANCELLED):
        job = task(4, 1, state=state)
        job = replace(job, spec=replace(job.spec, array=ArrayTask(JobId(4), 1, more=2)))
        one = viewer(scene_of(job), see_all=True)
        found = [*one.of_tasks(job)]
        assert found == [one(each) for each in singly([job])]
        assert [each["position"] for each in found] == [None] * 3


def test_what_json_has_no_word_for_is_null() -> None:
    job = a_job(1, prediction=Prediction(inf, "nobody"))
    (out,) = json.loads(as_json(viewer(scene_of(job)).of_tasks(job)))
    assert out["prediction"]["seconds"] is None


def test_the_first_tasks_and_how_many_others_there_are() -> None:
    jobs = [a_job(1), a_job(2, spec=a_spec(array=ArrayTask(JobId(2), 0, more=9))), a_job(12)]
    every = [job.id for job in singly(jobs)]
    for most in range(15):
        first, others = split(jobs, most)
        assert [job.id for job in singly(first)] == every[:most]
        assert others == len(every[most:])


# over the API


def test_a_scene_is_captured_once_for_a_step(daemon: Daemon, counted: Counter[str]) -> None:
    first = array(daemon)
    counted.clear()
    paths = ["/v1/status", "/v1/jobs", "/v1/gpus", f"/v1/jobs/{first}_0", f"/v1/jobs/{first}_9/why"]
    together = threading.Barrier(len(paths) * 4)

    def ask(path: str) -> int:
        together.wait(PATIENCE_S)
        return daemon.call("GET", path)[0]

    with ThreadPoolExecutor(len(paths) * 4) as pool:
        assert set(pool.map(ask, paths * 4)) == {200}
    assert 1 <= counted["scenes"] <= 1 + counted["steps"]  # none, as a rule, but a late one
    counted.clear()
    daemon.sample()
    assert daemon.call("GET", "/v1/status")[0] == 200
    assert 1 <= counted["scenes"] <= counted["steps"]


def test_a_status_is_rendered_once_for_all_who_ask(
    daemon: Daemon, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FRESH_S", 3600.0)  # however slow this machine is
    array(daemon)
    counted.clear()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: daemon.call("GET", "/v1/status")[1], range(40)))
    assert counted["jobs"] == len(answers[0]["jobs"]) == 2, "one runs, and the array"
    assert answers == answers[:1] * 40


def test_an_array_is_one_row_of_the_status(daemon: Daemon) -> None:
    first = array(daemon, limit=3)
    out = daemon.call("GET", "/v1/status")[1]
    runs, waits = out["jobs"]
    assert [runs["code"], waits["label"]] == ["CF", f"{first}_[0-{ARRAY - 1}%3]"]
    assert (waits["count"], waits["id"], waits["position"]) == (ARRAY, first + 1, 1)
    assert (out["more"], out["counts"]["queued"]) == (0, ARRAY)


def test_a_status_has_only_so_many_rows(daemon: Daemon, counted: Counter[str]) -> None:
    for _ in range(FIRST_ROWS + OWN_ROWS + 20):
        last = submit(daemon)
    wait_until_queued(daemon, last)
    counted.clear()
    out = daemon.call("GET", "/v1/status")[1]
    assert len(out["jobs"]) == counted["jobs"] == 1 + FIRST_ROWS + OWN_ROWS
    assert out["more"] == 20
    assert out["counts"]["queued"] == FIRST_ROWS + OWN_ROWS + 20


def test_every_task_is_listed_unless_folded(daemon: Daemon, counted: Counter[str]) -> None:
    first = array(daemon)
    counted.clear()
    everyone = daemon.call("GET", "/v1/jobs")[1]
    assert [job["id"] for job in everyone["jobs"]] == [
        first - 1,
        *range(first + 1, first + 1 + ARRAY),
    ]
    assert [job["position"] for job in everyone["jobs"]] == [None, *range(1, ARRAY + 1)]
    assert counted["jobs"] == 3, "the one that runs, the first task, and one for the others"

    rows = daemon.call("GET", "/v1/jobs?fold=true")[1]
    assert [row.get("count") for row in rows["jobs"]] == [None, ARRAY]
    some = daemon.call("GET", f"/v1/jobs?fold=true&select={first}_[3-5]")[1]["jobs"]
    assert [row["tasks"] for row in some] == ["3-5"]
    cut = daemon.call("GET", "/v1/jobs?limit=5")[1]
    assert (len(cut["jobs"]), cut["more"]) == (5, ARRAY - 4)
    assert daemon.call("GET", "/v1/jobs?fold=true&limit=1")[1]["more"] == ARRAY


def test_a_long_listing_is_sent_in_pieces_of_a_known_length(daemon: Daemon) -> None:
    """An HTTP/1.0 client, such as `carma`, cannot read chunks."""
    array(daemon, tasks := 300)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(daemon.path)
        connection.sendall(b"GET /v1/jobs HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head and b"chunked" not in head
    assert len(json.loads(body)["jobs"]) == tasks + 1
    assert len(body) > 2 * PIECE


def test_what_is_wanted_of_one_job_looks_at_no_other(daemon: Daemon, counted: Counter[str]) -> None:
    first = array(daemon)
    counted.clear()
    for path in ("", "/why", "/wait?timeout_s=0"):
        assert daemon.call("GET", f"/v1/jobs/{first + 7}{path}")[0] == 200
    assert counted["jobs"] == 3


def test_what_is_done_to_two_jobs_looks_at_no_other(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = array(daemon)
    asked: list[int] = []
    original = Selection.parts

    def looked_at(self: Selection, job: Job) -> Iterator[Job]:
        asked.append(job.id)
        return original(self, job)

    monkeypatch.setattr(Selection, "parts", looked_at)
    results = daemon.call("POST", "/v1/hold", {"select": f"{first + 7},{first + 9}"})[1]["results"]
    assert [one["id"] for one in results] == [first + 7, first + 9]
    assert asked == [first + 1], "which stands for both"


def test_a_sweep_is_cancelled_in_parts_and_others_come_in_between(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(daemon)
    changed: list[int] = []
    original, read = daemon.store.commit, daemon.store.jobs

    def commit(step: Step) -> None:
        changed.append(len(step.jobs))
        original(step)

    monkeypatch.setattr(actions, "PER_STEP", 30)
    monkeypatch.setattr(daemon.store, "commit", commit)
    monkeypatch.setattr(daemon.store, "jobs", lambda ids: read([*ids]) if ids else [])
    out = daemon.call("POST", "/v1/cancel", {"select": str(first)})[1]
    assert [one["message"] for one in out["results"]] == ["cancelled"] * ARRAY
    assert sum(changed) == ARRAY and max(changed) == 30


def test_a_disk_that_fills_up_meanwhile_leaves_the_rest_of_a_sweep(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(daemon)
    room = [True, True]
    original = daemon.store.commit

    def commit(step: Step) -> None:
        if any(job.ended for job in step.jobs) and (not room or not room.pop()):
            raise StoreFull("cannot write", "make room")
        original(step)

    monkeypatch.setattr(actions, "PER_STEP", 30)
    monkeypatch.setattr(daemon.store, "commit", commit)
    status, out = daemon.call("POST", "/v1/cancel", {"select": str(first)})
    assert status == 200
    done = [one["id"] for one in out["results"] if one["ok"]]
    assert done == list(range(first + 1, first + 61))
    assert {one["message"] for one in out["results"] if not one["ok"]} == {"cannot write"}
    assert daemon.call("POST", "/v1/cancel", {"select": str(first)})[0] == 503
    left = daemon.call("GET", "/v1/jobs")[1]["jobs"]
    rest = [*range(first + 61, first + 1 + ARRAY)]
    assert [job["id"] for job in left if job["id"] >= first] == rest


def test_the_status_has_the_jobs_that_ended_last_also_after_a_restart(tmp_path: Path) -> None:
    def shown(daemon: Daemon) -> list[int]:
        return [job["id"] for job in daemon.call("GET", "/v1/status")[1]["jobs"]]

    with running(tmp_path) as daemon:
        ids = [submit(daemon, held=True) for _ in range(MOST_RECENT + 2)]
        for id in ids:
            daemon.call("POST", "/v1/cancel", {"select": str(id)})
        assert shown(daemon) == ids[2:]
    Path(daemon.path).unlink()
    with running(tmp_path) as daemon:
        assert shown(daemon) == ids[2:]


def test_tasks_and_arrays_are_found_among_the_live_and_the_ended(daemon: Daemon) -> None:
    first = array(daemon, 10)
    other = array(daemon, 3)
    daemon.call("POST", "/v1/cancel", {"select": f"{first}_[0-4%2]"})
    assert daemon.call("GET", f"/v1/jobs/{first}_3")[1]["state"] == "cancelled"
    assert daemon.call("GET", f"/v1/jobs/{first}_7")[1]["state"] == "queued"
    for select, count in (
        (f"{first}", 10),
        (f"{first}_[3-6]", 4),
        (f"{first + 4}-{first + 5}", 2),
        (f"1-{10**12}", 14),
        (f"{first}_7,{other}", 4),
    ):
        found = daemon.call("GET", f"/v1/jobs?select={select}")[1]["jobs"]
        assert len(found) == count, select


@needs_root
def test_what_is_rendered_for_an_admin_is_shown_to_nobody_else(daemon: Daemon) -> None:
    array(daemon, 5)
    submit(daemon, name="secret")
    for path in ("/v1/status", "/v1/jobs", "/v1/jobs?fold=true"):
        mine = daemon.call("GET", path)[1]["jobs"]
        assert all("argv" in job for job in mine)
        theirs = as_uid(ADA, daemon.path, "GET", path)[1]["jobs"]
        assert [job["label"] for job in theirs] == [job["label"] for job in mine]
        assert not any("argv" in job or job["name"] != "-" for job in theirs)
        assert request(daemon.path, "GET", path, None)[1]["jobs"][0].keys() == mine[0].keys()


def test_tasks_over_their_limit_share_one_reason() -> None:
    jobs = [task(id, id, limit=2) for id in range(1, 100)]
    scene = scene_of(*jobs, held=Held(tasks=Counter({JobId(1): 2})))
    assert len({id(scene.gate.blocker(job)) for job in jobs}) == 1


def test_listings_are_made_in_threads_that_are_there_already(daemon: Daemon) -> None:
    name = run_async(daemon.service.render(lambda: threading.current_thread().name))
    assert name.startswith("api-worker")
