"""The recorded timeline: bins, marks, what is kept over a restart, and how much memory it takes."""

from __future__ import annotations

import math
import random
import tracemalloc
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from carma_testing import a_gpu, a_job, changed
from carmad.api.timeline import MOST_POINTS, Span, draw, gpu_timeline_out, namer
from carmad.config import Settings
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.happenings import happenings
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Event, Sampled, Step
from carmad.core.placing.decision import Decision, Placement, Reason, Verdict
from carmad.errors import CarmaError
from carmad.store.database import StoreFull
from carmad.store.sql import SqlStore
from carmad.store.values import Named
from carmad.timeline.hours import (
    CELLS,
    HOUR_S,
    KEPT_S,
    MOST,
    OTHERS,
    UNKNOWN,
    Bins,
    Cell,
    Kind,
    Mark,
    Marks,
    Row,
    Saved,
)
from carmad.timeline.recorder import Timeline

GPU, OTHER = a_gpu(0), a_gpu(1)
NOON = 1_800_000_000 // HOUR_S * HOUR_S
ANY = namer({JobId(7): Named("7", "ann", 1, "mine")}, lambda uid: True)


def row(used: float, *cells: Cell, sm: float = 0.5) -> Row:
    return Row((used, 0.0, sm, UNKNOWN), (used, sm), cells)


def cell(job: int, mib: float, promised: float = 0.0) -> Cell:
    return Cell(JobId(job), mib, mib, promised)


def filled(step_s: int, readings: Iterable[tuple[float, Row]], count: int = 12) -> Bins:
    bins = Bins(NOON, step_s, count)
    for at, reading in readings:
        bins.add(NOON + at, reading)
    return bins


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and value == value]


# -- bins ------------------------------------------------------------------------------------------


def test_a_bin_has_the_mean_and_the_maximum_of_its_readings() -> None:
    bins = filled(10, [(0, row(100, sm=0.2)), (9, row(300, sm=0.4)), (10, row(50, sm=1.0))])
    assert list(bins.columns["used_mib"])[:2] == [200.0, 50.0]
    assert list(bins.columns["used_max_mib"])[:2] == [300.0, 50.0]
    assert bins.columns["sm_active"][0] == pytest.approx(0.3)
    assert math.isnan(bins.columns["power_w"][0])
    assert math.isnan(bins.columns["used_mib"][2])


def test_what_is_unknown_in_one_reading_is_the_mean_of_the_others() -> None:
    bins = filled(10, [(0, row(UNKNOWN)), (1, row(100)), (2, row(UNKNOWN))])
    assert bins.columns["used_mib"][0] == bins.columns["used_max_mib"][0] == 100.0


def test_a_job_there_for_half_a_bin_uses_half_but_was_promised_all() -> None:
    first, then = [cell(1, 4000, 6000)], [cell(2, 2000, 3000)]
    readings = [(at, row(5000, *(first if at < 5 else then))) for at in range(10)]
    (cells,) = filled(10, readings).cells().values()
    assert [each.job for each in cells] == [1, 2]
    assert tuple(cells[0][1:]) == pytest.approx((2000, 4000, 6000))
    assert tuple(cells[1][1:]) == pytest.approx((1000, 2000, 3000))


def test_a_reading_without_a_job_s_memory_hides_no_other_maximum() -> None:
    unknown = Cell(JobId(1), UNKNOWN, UNKNOWN, 0.0)
    bins = filled(10, [(0, row(500, unknown)), (5, row(500, cell(1, 400)))])
    ((its,),) = bins.cells().values()
    assert its.most == 400


def test_a_bin_tells_of_so_many_jobs_and_adds_up_the_others() -> None:
    (cells,) = filled(10, [(0, row(0, *(cell(n, 10) for n in range(1, 40))))]).cells().values()
    assert len(cells) == CELLS + 1
    assert sum(each.used for each in cells) == pytest.approx(390)
    assert cells[-1].job == OTHERS


@pytest.mark.parametrize("at", [-1, 12 * 10, 5])
def test_what_is_outside_or_older_is_ignored(at: float) -> None:
    bins = filled(10, [(30, row(1)), (at, row(100))])
    assert known(bins.columns["used_mib"]) == [1.0]


def test_coarser_bins_say_the_same_as_if_they_had_got_the_readings() -> None:
    rng = random.Random(7)
    readings = [
        (
            at,
            row(
                rng.random() * 1000,
                *(cell(n, rng.random() * 500) for n in rng.sample([1, 2, 3], 2)),
            ),
        )
        for at in range(0, 300, 2)
    ]
    coarse, direct = filled(10, readings, 30).coarser(60), filled(60, readings, 5)
    for name, column in direct.columns.items():
        assert list(coarse.columns[name]) == pytest.approx(list(column), nan_ok=True, rel=1e-4)
    for bin, cells in direct.cells().items():
        its = {each.job: each for each in coarse.cells()[bin]}
        for each in cells:
            assert tuple(its[each.job]) == pytest.approx(tuple(each), rel=1e-4)


def test_wide_bins_stand_for_all_the_narrow_ones_that_they_cover() -> None:
    fine = Bins(NOON - 30, 10, 12)
    fine.take(filled(60, [(0, row(10, cell(1, 5))), (60, row(20))], 2))
    assert known(fine.columns["used_mib"]) == [10.0] * 6 + [20.0] * 3
    assert sorted(fine.cells()) == [3, 4, 5, 6, 7, 8]


# -- the recorder ----------------------------------------------------------------------------------


class Recorded:
    """A timeline that is told of steps."""

    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 - it is frozen
        self.timeline = Timeline(settings.monitor.period_s)
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

    def read(self, at: float, *uses: ProcessUse, gpu: GpuId = GPU.id, **its: object) -> None:
        sample = GpuSample(gpu, NOON + at, 5000, 1, 0.5, processes=uses)
        self.step(Sampled(NOON + at, (changed_sample(sample, **its),)))

    def out(self, since: float, until: float, now: float | None = None) -> Any:
        span = Span.choose(NOON + since, NOON + until, NOON + (now or until), 1)
        found = self.timeline.tracks(span.start, span.end)
        return dict(gpu_timeline_out(draw(found[0], span), ANY))


def changed_sample(sample: GpuSample, **its: object) -> GpuSample:
    from dataclasses import replace

    return replace(sample, **its)  # type: ignore[arg-type]


def on_gpu(id: int = 1, at: float = 0.0, **changes: object) -> Job:
    its = {"state": JobState.STARTING, "gpus": (GPU.id,), "started_at": NOON + at}
    return a_job(id, estimate=Estimate(3000, "declared", firm=True), **its | changes)


def test_a_gpu_that_cannot_be_read_leaves_a_gap() -> None:
    recorded = Recorded()
    recorded.read(0)
    recorded.read(10, fault="fell off the bus")
    recorded.read(20)
    assert recorded.out(0, 40)["used_mib"] == [5000, None, 5000, None]


def test_a_resident_is_there_from_its_placement_on_and_external_memory_is_told_apart() -> None:
    recorded = Recorded()
    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(7),))
    recorded.read(0)
    recorded.read(10, ProcessUse(1, 2000, job=JobId(7)), ProcessUse(2, 100))
    out = recorded.out(0, 20)
    (series,) = out["jobs"]
    assert (series["id"], series["first"]) == (7, 0)
    assert series["used_mib"] == [0, 2000]
    assert known(out["promised_mib"]) == known(series["promised_mib"]) != []
    assert out["external_mib"] == [5000, 3000]


def test_memory_that_is_not_known_per_process_is_null_and_not_zero() -> None:
    recorded = Recorded()
    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(7),))
    recorded.read(0, ProcessUse(1, None, job=JobId(7)))
    (series,) = recorded.out(0, 10)["jobs"]
    assert series["used_mib"] == [None]


def test_marks_say_what_happened_and_others_what_slowed_it() -> None:
    recorded = Recorded()
    job = on_gpu(7)
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


def test_marks_of_an_hour_are_bounded_and_survive_json() -> None:
    marks = Marks()
    for n in range(MOST + 5):
        marks.add(Mark(float(n), Kind.DRAINED, None, "x" * 1000 if n == 3 else ""))
    assert len(list(marks)) == MOST
    again = list(Marks.load([list(mark) for mark in marks.dump()]))
    assert again == list(marks) and len(again[3].text) < 1000


def test_a_vanished_gpu_is_shown_last_and_forgotten_after_a_day(tmp_path: Path) -> None:
    recorded = Recorded()
    for gpu in (GPU, OTHER):
        recorded.read(0, gpu=gpu.id)
    unread = a_gpu(2)  # there is no reading of it yet
    recorded.step(Discovered(NOON + 1, (OTHER, unread)))
    found = recorded.timeline.tracks(NOON, NOON + 10)
    assert [(track.id, track.present) for track in found] == [
        (OTHER.id, True),
        (unread.id, True),
        (GPU.id, False),
    ]
    recorded.timeline.save(lambda hours, before: None, NOON + KEPT_S + 2 * HOUR_S)
    found = recorded.timeline.tracks(NOON, NOON + 10)
    assert [(track.id, track.hours) for track in found] == [(OTHER.id, ()), (unread.id, ())]


def test_a_span_has_few_enough_bins_and_is_within_what_is_kept() -> None:
    now = NOON + 7.5
    for since, step in ((now - 600, 10), (now - 6 * HOUR_S, 30), (0.0, 120)):
        span = Span.choose(since, now + 999, now, 1)
        assert (span.step_s, span.count <= MOST_POINTS) == (step, True)
        assert span.start <= max(since, now - KEPT_S) and now <= span.end < now + step
    assert Span.choose(now - 600, now, now, 100).step_s == 120
    with pytest.raises(CarmaError, match="nothing is recorded"):
        Span.choose(now, now, now, 1)


# -- over a restart --------------------------------------------------------------------------------


def a_day(recorded: Recorded, hours: int = 26) -> list[Saved]:
    """Recorded and saved as a daemon does; what the last save wrote."""
    kept: dict[tuple[GpuId, int], Saved] = {}

    def write(saved: list[Saved], before: float) -> None:
        kept.update({(each.gpu, each.start): each for each in saved})
        for key in [key for key in kept if key[1] < before]:
            del kept[key]

    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(7),))
    for at in range(0, hours * HOUR_S, 120):
        recorded.read(at, ProcessUse(1, 2000 + at // HOUR_S, job=JobId(7)))
        if at % 1200 == 0:
            recorded.timeline.save(write, NOON + at)
    recorded.timeline.save(write, NOON + hours * HOUR_S)
    return sorted(kept.values(), key=lambda each: each.start)


def test_a_day_is_the_same_after_a_restart_with_minutes_for_what_is_old(tmp_path: Path) -> None:
    hours = 26
    before = Recorded()
    saved = a_day(before, hours)
    (track, *_) = before.timeline.tracks(0.0, NOON + 99 * HOUR_S)
    assert [hour.bins.step_s for hour in track.hours] == [60] * 24 + [10]
    store = SqlStore.open(tmp_path / "carma.db")
    store.record_timeline(saved, 0.0)
    store.close()
    store = SqlStore.open(tmp_path / "carma.db")
    after = Recorded()
    after.timeline.load(store.timeline(), NOON + hours * HOUR_S)
    store.close()
    assert after.out(-99, hours * HOUR_S) == before.out(-99, hours * HOUR_S)
    after.read(hours * HOUR_S + 60)  # and goes on, with a gap
    values = after.out(hours * HOUR_S - 20, hours * HOUR_S + 70)["used_mib"]
    assert values == [None] * 8 + [5000]


def test_what_cannot_be_read_or_is_of_the_future_is_left_out() -> None:
    saved = a_day(Recorded(), hours=2)
    broken = [Saved(GPU.id, NOON, body) for body in (b"", b"x", saved[0].body[:-9])]
    after = Recorded()
    after.timeline.load([*broken, *saved], NOON + HOUR_S)  # the clock was set back by an hour
    (track, _) = after.timeline.tracks(0.0, NOON + 99 * HOUR_S)
    assert [hour.start for hour in track.hours] == [NOON]


@pytest.mark.parametrize(
    "wrong",
    [{"start": "noon"}, {"step_s": 0}, {"cell_job": [9]}, {"cell_bin": [9_999]}, {"weights": [1]}],
)
def test_an_hour_that_says_the_impossible_is_left_out(wrong: dict[str, Any]) -> None:
    recorded = Recorded()
    recorded.step(Sampled(NOON, ()), jobs=(on_gpu(7),))
    recorded.read(0)
    (track, *_) = recorded.timeline.tracks(0.0, NOON + HOUR_S)
    bins = track.hours[0].bins.dump()
    assert set(wrong) <= set(bins) and bins["cell_job"] == [0]
    body = zlib.compress(
        to_json({"gpu": None, "bins": bins | wrong, "marks": []}, inf_nan_mode="null")
    )
    after = Recorded()
    after.timeline.load([Saved(GPU.id, NOON, body)], NOON + HOUR_S)
    assert not any(track.hours for track in after.timeline.tracks(0.0, NOON + HOUR_S))


def test_what_a_full_disk_refuses_is_written_the_next_time() -> None:
    recorded, written = Recorded(), list[Saved]()
    recorded.read(0)

    def refuse(saved: list[Saved], before: float) -> None:
        raise StoreFull("full")

    with pytest.raises(StoreFull):
        recorded.timeline.save(refuse, NOON + 1)
    for _ in range(2):
        recorded.timeline.save(lambda saved, before: written.extend(saved), NOON + 1)
    assert [(each.gpu, each.start) for each in written] == [(GPU.id, NOON)]


def test_the_store_keeps_a_day(tmp_path: Path) -> None:
    store = SqlStore.open(tmp_path / "carma.db")
    store.record_timeline([Saved(GPU.id, start, b"a") for start in (0, 3600)], 0.0)
    store.record_timeline([Saved(GPU.id, 3600, b"b")], 1800.0)
    assert store.timeline() == [Saved(GPU.id, 3600, b"b")]
    store.close()


def test_a_day_of_eight_gpus_with_four_jobs_each_takes_about_two_mebibytes() -> None:
    hours = 25
    tracemalloc.start()
    try:
        made = []
        for _ in range(8):
            for hour in range(hours):
                step_s = 10 if hour >= hours - 2 else 60
                bins = Bins(NOON + hour * HOUR_S, step_s, HOUR_S // step_s)
                for at in range(0, HOUR_S, step_s):
                    bins.add(bins.start + at, row(1.0, *(cell(n, 1.0) for n in range(1, 5))))
                bins._numbers = {}
                made.append(bins)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2.1 * 2**20
