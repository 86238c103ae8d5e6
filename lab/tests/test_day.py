"""The lab's day: what is read from it, and that the simulator can be given it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_simulator.experiment import Experiment
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carmad.config import Settings
from lab.day import figures
from lab.day.figures import Played, Span, of_day, unused_room
from lab.day.statements import FITS, GOES_FIRST, IN_RANGE, IS_KNOWN, MAY_START, PROMISED, judge
from lab.day.workload import Submission, as_trace


def job(name: str = "train", **fields: object) -> Submission:
    its = {
        "at_s": 0.0,
        "user": "ada",
        "name": name,
        "kind": "medium",
        "memory_mib": 4000,
        "load": 0.5,
        "run_s": 58.5,
        "dram": 0.2,
    }
    return Submission(**its | fields)  # type: ignore[arg-type]


def played(its: Submission, submitted: float, *spans: Span) -> Played:
    return Played(its, its.name, submitted, spans, spans[-1].end, True)


def test_room_beside_a_job_that_fits_is_counted_until_somebody_starts() -> None:
    first = played(job(), 0.0, Span(0.0, 60.0, ("a",)))
    elsewhere = [played(job(load=1.0), 0.0, Span(0.0, 99.0, (gpu,))) for gpu in "bcdefgh"]
    assert unused_room([first, *elsewhere, played(job(), 10.0, Span(60.0, 99.0, ("a",)))]) == [
        (10, 60)
    ]
    heavy = played(job(load=0.6), 10.0, Span(60.0, 99.0, ("a",)))
    assert unused_room([first, *elsewhere, heavy]) == [], "0.5 and 0.6 are too much"
    large = played(job(declared_mib=38_000), 10.0, Span(60.0, 99.0, ("a",)))
    assert unused_room([first, *elsewhere, large]) == []
    wide = played(job(gpus=2), 10.0, Span(60.0, 99.0, ("a", "b")))
    assert unused_room([first, *elsewhere, wide]) == [], "only one of them has room"


def test_figures_count_what_somebody_waited_for() -> None:
    crashed = Span(0.0, 5.0, ("a",), has_crashed=True)
    day = [
        played(job(), 0.0, crashed, Span(10.0, 70.0, ("a",))),
        played(
            job("wide", user="bob", gpus=4, kind="4gpu"), 5.0, Span(125.0, 185.0, tuple("abcd"))
        ),
        played(job("hang", kind="hang"), 0.0, Span(300.0, 400.0, ("b",))),
    ]
    its = of_day(day)
    assert (its.wait_s, its.completion_s, its.makespan_s) == (60.0, 125.0, 400.0)
    assert (its.crashes, its.wide_wait_s, its.lost) == (1, 120.0, 0)
    ada, bob = 70 / 60, 180 / 60
    assert its.jain == pytest.approx((ada + bob) ** 2 / 2 / (ada**2 + bob**2))
    assert its.jobs_per_gpu == pytest.approx((5 + 60 + 4 * 60 + 100) / figures.GPUS / 480)


def test_a_day_is_simulated_as_it_is_read() -> None:
    day = (
        job("sweep", copies=3, run_s=20.0),
        job("wrong", kind="cancelled"),
        job("hang", at_s=1.0, kind="hang", run_s=30.0),
    )
    outcome = simulate(Experiment(as_trace(day), parse("8xA100-40GB"), Settings(), as_daemon=True))
    jobs = figures.simulated(day, outcome)
    assert [each.job.name for each in jobs] == ["sweep"] * 3 + ["hang"]
    assert [each.attempts[0].start for each in jobs] == [0.0, 0.0, 0.0, 1.0]
    assert of_day(jobs).lost == 0


def test_statements_are_held_against_what_happened() -> None:
    ahead = played(job("1"), 0.0, Span(20.0, 50.0, ("a",)))
    head = played(job("2", memory_mib=8000), 0.0, Span(52.0, 60.0, ("a",)))
    why = {
        "job": {"state": "queued"},
        "headline": "waits: job 1 goes first: ada has used less",
        "reasons": [
            {"code": "promised", "need": 39.0, "detail": ""},
            {"code": "promised", "need": 9.0, "detail": "shorter jobs may go first"},
        ],
        "remedies": [
            "GPU 0 can take it when job 1 ends (in 1:00 at the latest)",
            "fits GPU 1 now with --gpu-mem 7G",
        ],
    }
    start = {"label": "2", "expected_at": None, "earliest_at": None, "latest_at": None}
    forecast = start | {"earliest_at": "1970-01-01T00:01:58Z", "latest_at": "1970-01-01T00:02:30Z"}
    samples = [
        {"at": 10.0, "why": {"2": why}, "starts": [start]},
        {"at": 15.0, "why": {}, "starts": [forecast | {"expected_at": "1970-01-01T00:02:00Z"}]},
    ]
    found = judge(samples, [ahead, head], began=70.0)
    assert found[PROMISED] == found[GOES_FIRST] == found[MAY_START] == (1, 1)
    assert found[FITS] == (1, 0), "a job that uses 8,000 MiB"
    assert (found[IN_RANGE], found[IS_KNOWN]) == ((1, 1), (2, 1))
    late = replace(head, attempts=(Span(99.0, 120.0, ("a",)),))
    found = judge(samples, [ahead, late], began=70.0)
    assert found[PROMISED] == found[MAY_START] == found[IN_RANGE] == (1, 0)
