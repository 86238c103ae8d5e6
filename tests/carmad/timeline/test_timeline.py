"""The recorded timeline: minutes, marks, what is kept over a restart, how much disk it takes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_gpu, a_job, changed
from carmad.api.timeline import MOST_POINTS, Span, gpu_timeline_out
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.happenings import happenings
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Event, Sampled, Step
from carmad.core.placing.decision import Decision, Placement, Reason, Verdict
from carmad.errors import CarmaError
from carmad.http.problems import Unavailable
from carmad.store.values import Named
from carmad.timeline import recorder
from carmad.timeline.marks import Kind, Mark
from carmad.timeline.recorder import HOUR_S, KEPT_S, MOST_JOBS, MOST_MARKS, Timeline

GPU, OTHER = a_gpu(0), a_gpu(1)
NOON = 1_800_000_000 // HOUR_S * HOUR_S
ANY = {JobId(7): Named("7", "ann", 1, "mine")}


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


class Recorded:
    """A timeline that is told of steps."""

    def __init__(self, folder: Path) -> None:
        self.timeline = Timeline(folder / "timeline.db")
        self.jobs: dict[JobId, Job] = {}
        self.step(Discovered(NOON, (GPU, OTHER)))

    def step(
        self, *events: Event, jobs: tuple[Job, ...] = (), decisions: tuple[Decision, ...] = ()
    ) -> None:
        before = tuple(self.jobs[job.id] for job in jobs if job.id in self.jobs)
        step = Step(events, jobs, decisions, (), before=before)
        self.jobs |= {job.id: job for job in jobs}
        self.timeline.on_commit(step)
        self.timeline.on_happenings(list(happenings(step)), {})

    def read(self, at: float, *uses: ProcessUse, gpu: GpuId = GPU.id, **its: Any) -> None:
        sample = GpuSample(gpu, NOON + at, 5000, 1, 0.5, processes=uses)
        self.step(Sampled(NOON + at, (replace(sample, **its),)))

    def out(self, since: float, until: float, step_s: int = 1) -> Any:
        now = NOON + until
        span = Span.choose(NOON + since, now, now, step_s)
        return dict(gpu_timeline_out(span.read(self.timeline, now)[0], span.count, ANY))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def on_gpu(id: int = 7, at: float = 0.0, **changes: object) -> Job:
    its = {"state": JobState.STARTING, "gpus": (GPU.id,), "started_at": NOON + at}
    return a_job(id, estimate=Estimate(3000, "declared", firm=True), **its | changes)


def used(id: int, mib: int | None) -> ProcessUse:
    return ProcessUse(id, mib, job=JobId(id))


# -- minutes


def test_a_minute_has_the_mean_and_the_maximum_of_what_is_known(recorded: Recorded) -> None:
    recorded.read(0, memory_used_mib=1000, power_w=100.0)
    recorded.read(30, memory_used_mib=3000, power_w=None)
    recorded.read(60, fault="fell off the bus")
    recorded.read(120)
    out = recorded.out(0, 180)
    assert (out["used_mib"], out["used_max_mib"]) == ([2000, None, 5000], [3000, None, 5000])
    assert out["power_w"] == [100.0, None, None]


def test_a_resident_is_there_from_its_placement_on_and_external_memory_is_told_apart(
    recorded: Recorded,
) -> None:
    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(),))
    recorded.read(0)
    recorded.read(60, used(7, 2000), ProcessUse(2, 100))
    out = recorded.out(0, 120)
    (series,) = out["jobs"]
    assert (series["id"], series["first"]) == (7, 0)
    assert series["used_mib"] == [0, 2000]
    assert known(out["promised_mib"]) == known(series["promised_mib"]) != []
    assert out["external_mib"] == [5000, 3000]


def test_a_job_there_for_half_of_a_bin_uses_half_but_was_promised_all(recorded: Recorded) -> None:
    recorded.read(0)
    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(),))
    recorded.read(30, used(7, 2000))
    recorded.read(60, used(7, 4000))
    recorded.step(Sampled(NOON + 61, ()), jobs=(on_gpu(state=JobState.SUCCEEDED),))
    recorded.read(120)
    (series,) = recorded.out(0, 240)["jobs"]
    assert (series["used_mib"], series["used_max_mib"]) == ([1000, 4000], [2000, 4000])
    (series,) = recorded.out(0, 240, step_s=120)["jobs"]
    assert (series["used_mib"], series["used_max_mib"]) == ([2500], [4000])
    assert len(set(series["promised_mib"])) == 1 and series["promised_mib"][0] >= 3000


def test_memory_that_is_not_known_per_process_is_null_and_not_zero(recorded: Recorded) -> None:
    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(),))
    recorded.read(0, used(7, None))
    (series,) = recorded.out(0, 60)["jobs"]
    assert series["used_mib"] == [None]


def test_a_minute_tells_of_so_many_jobs_and_adds_up_the_others(recorded: Recorded) -> None:
    count = MOST_JOBS + 4
    for n in range(2):
        recorded.read(n, *(used(id, 10) for id in range(1, count + 1)))
    series = recorded.out(0, 60)["jobs"]
    assert [each["id"] for each in series] == [*range(1, MOST_JOBS + 1), None]
    assert sum(each["used_mib"][0] for each in series) == 10 * count


# -- marks


def test_marks_say_what_happened(recorded: Recorded) -> None:
    job = on_gpu()
    event = Sampled(NOON + 1.0, ())
    recorded.step(event, jobs=(a_job(7, state=JobState.QUEUED),))
    recorded.step(event, jobs=(job,))
    oom = Exit(Cause.GPU_OOM)
    waiting = changed(job, state=JobState.QUEUED, exit=oom, ended_at=NOON + 1.0)
    recorded.step(event, jobs=(waiting,))
    refused = (Verdict(GPU.id, (Reason("risk", 0.8, 0.93, "SMACT"),)),)
    for at in (2.0, 3.0):  # within a minute: once
        decision = Decision(NOON + at, "magm", Placement(JobId(7), verdicts=refused))
        recorded.step(event, decisions=(decision,))
    marks = recorded.out(0, 10)["marks"]
    told = [(mark["kind"], mark["job"], mark["text"]) for mark in marks]
    assert told == [
        ("started", 7, ""),
        ("oom", 7, ""),
        ("risky", 7, "0.93 of 0.80 SMACT"),
    ]


def test_marks_of_an_hour_are_bounded(recorded: Recorded) -> None:
    recorded.timeline._mark(
        (GPU.id, Mark(NOON + n / 10, Kind.DRAINED, None, "x" * 1000)) for n in range(MOST_MARKS + 5)
    )
    recorded.timeline._mark([(GPU.id, Mark(NOON + HOUR_S, Kind.RESUMED))])
    marks = recorded.timeline.tracks(NOON, 3600, 2, NOON + 2 * HOUR_S)[0].marks
    assert len(marks) == MOST_MARKS + 1 and marks[-1].kind == "resumed"
    assert len(marks[3].text) < 1000


# -- which GPUs, and when


def test_a_vanished_gpu_is_shown_last_and_forgotten_after_a_day(recorded: Recorded) -> None:
    for gpu in (GPU, OTHER):
        recorded.read(0, gpu=gpu.id)
    unread = a_gpu(2)  # there is no reading of it yet
    recorded.step(Discovered(NOON + 1, (OTHER, unread)))
    found = recorded.timeline.tracks(NOON, 60, 1, NOON + 60)
    assert [(track.id, track.present) for track in found] == [
        (OTHER.id, True),
        (unread.id, True),
        (GPU.id, False),
    ]
    found = recorded.timeline.tracks(NOON, 60, 1, NOON + KEPT_S + 2 * HOUR_S)
    assert [(track.id, track.bins) for track in found] == [(OTHER.id, {}), (unread.id, {})]


def test_a_span_has_few_enough_bins_and_is_within_what_is_kept() -> None:
    now = NOON + 7.5
    for since, step in ((now - 600, 60), (now - 6 * HOUR_S, 60), (0.0, 120)):
        span = Span.choose(since, now + 999, now, 1)
        assert (span.step_s, span.count <= MOST_POINTS) == (step, True)
        assert span.start <= max(since, now - KEPT_S) and now <= span.end < now + step
    assert Span.choose(now - 600, now, now, 100).step_s == 120
    with pytest.raises(CarmaError, match="nothing is recorded"):
        Span.choose(now, now, now, 1)


# -- on disk


def test_a_killed_daemon_loses_what_it_had_not_saved_and_no_more(tmp_path: Path) -> None:
    killed = Recorded(tmp_path)
    killed.step(Sampled(NOON, ()), jobs=(a_job(7, state=JobState.QUEUED),))
    killed.step(Sampled(NOON, ()), jobs=(on_gpu(),))
    for at in range(0, 200, 10):
        killed.read(at, used(7, 2000))
    killed.timeline.save(NOON + 200)  # in the midst of a minute
    killed.read(201, used(7, 9000))
    after = Recorded(tmp_path)
    assert after.out(0, 240)["used_mib"] == [5000] * 4
    (series,) = after.out(0, 240)["jobs"]
    assert series["used_max_mib"] == [2000] * 4
    assert [mark["kind"] for mark in after.out(0, 240)["marks"]] == ["started"]
    after.read(215, memory_used_mib=1000)
    assert after.out(0, 240)["used_mib"] == [5000] * 3 + [1000], "of this minute, what is new"
    assert tmp_path.joinpath("timeline.db").stat().st_mode & 0o777 == 0o600


def test_what_is_of_the_future_is_forgotten(recorded: Recorded) -> None:
    """The clock was set back."""
    recorded.read(HOUR_S)
    recorded.timeline.save(NOON + HOUR_S)
    recorded.read(0)
    assert recorded.timeline.tracks(NOON, 3600, 2, NOON + 60)[0].bins[JobId(0)].keys() == {0}


def fill_disk(recorded: Recorded) -> None:
    """Save what is there, and leave room for nothing more."""
    recorded.timeline.save(NOON + 180)
    disk = recorded.timeline._database
    assert disk is not None
    disk.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size for less than that


def test_what_a_full_disk_refuses_is_a_gap(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.read(0)
    fill_disk(recorded)
    for minute in range(4):
        for n in range(100):
            recorded.read(180 + minute * 60, *(used(n + job, 10) for job in range(1, 17)))
        recorded.timeline._mark([(GPU.id, Mark(NOON + 180, Kind.DRAINED, None, "x" * 200))] * 100)
        recorded.timeline.save(NOON + 360 + minute * 60)
    assert caplog.text.count("the timeline has a gap") == 1
    assert not recorded.timeline._marks and len(recorded.timeline._minutes) <= 2, (
        "memory is bounded"
    )
    recorded.read(1200)
    out = recorded.out(0, 1260)
    assert out["used_mib"][0] == out["used_mib"][20] == 5000 and None in out["used_mib"]


def test_what_is_recorded_can_be_read_while_the_disk_is_full(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open the file anew takes space."""
    recorded.read(0)
    fill_disk(recorded)
    recorded.timeline._mark([(GPU.id, Mark(NOON + 180, Kind.DRAINED, None, "x" * 200))] * 100)
    recorded.timeline.save(NOON + 240)

    def full(file: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(recorder, "_open", full)
    assert recorded.out(0, 60)["used_mib"] == [5000]
    recorded.timeline._database = None
    with pytest.raises(Unavailable, match="database or disk is full") as caught:
        Span(NOON, 60, 1).read(recorded.timeline, NOON + 240)
    assert caught.value.hint


@pytest.mark.parametrize("wrong", ["garbage", "version"])
def test_a_file_that_is_broken_or_anothers_is_replaced(
    tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "timeline.db"
    if wrong == "garbage":
        file.write_bytes(b"no database" * 1000)
    else:
        sqlite3.connect(file).execute("PRAGMA user_version = 99")
    recorded = Recorded(tmp_path)
    recorded.timeline.save(NOON)
    assert f"the timeline has a gap: {file} cannot be used" in caplog.text
    recorded.read(0)
    assert recorded.out(0, 60)["used_mib"] == [5000]


def test_a_day_of_a_gpu_with_four_jobs_takes_less_than_a_mebibyte(recorded: Recorded) -> None:
    recorded.step(Sampled(NOON, ()), jobs=tuple(on_gpu(id) for id in range(1, 5)))
    for at in range(0, 30 * HOUR_S, 60):
        recorded.read(at, *(used(id, 1000 + at % 97) for id in range(1, 5)), power_w=123.4)
        if at % 600 == 0:
            recorded.timeline.save(NOON + at)
    file = recorded.timeline._file
    assert sum(each.stat().st_size for each in file.parent.glob("timeline.db")) < 1 << 20
    assert file.with_name("timeline.db-wal").stat().st_size < 5 << 20
    out = recorded.out(6 * HOUR_S, 30 * HOUR_S)
    assert len(out["jobs"]) == 4 and None not in out["used_mib"]
