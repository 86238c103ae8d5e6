"""Reports of simulated runs: names, tables, exports, and the page with its charts."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context

from carma_simulator.experiment import Outcome, Rejected
from carma_simulator.hardware import parse
from carma_simulator.report import charts, export, gantt
from carma_simulator.report.charts import cdfs, means
from carma_simulator.report.gantt import BAD
from carma_simulator.report.measures import (
    MEASURES,
    SIMULATOR,
    Row,
    Run,
    gpus,
    measure_notes,
    measure_rows,
    runs,
)
from carma_simulator.report.style import RC, image
from carma_simulator.report.table import Comparison, Overview, comparison
from carmad.config import Collocation, Settings
from carmad.core.jobs.attempt import Cause, JobId
from carmad.core.jobs.states import JobState
from carmad.errors import CarmaError
from carmad.installed import how_to_add
from carmad.readable import change, number, time_unit
from tests.extras.carma_simulator.outcomes import attempt, experiment, gpu, job, made_up, outcome
from tests.terminal import plain


def of(*outcomes: Outcome, **more: Any) -> tuple[Run, ...]:
    return runs([(experiment(made, **more), made) for made in outcomes])


def row(found: tuple[Row, ...], label: str) -> Row:
    return next(row for row in found if row.measure.label == label)


SLOW = outcome(job(0, attempt(0, 7200), alone_s=7200.0), policy="exclusive")
FAST = outcome(job(0, attempt(0, 5400), alone_s=3600.0), policy="magm")
FIVE = [
    made_up(40, "3xA100-40GB", seats, policy=policy)
    for policy, seats in [("exclusive", 1), ("magm", 2), ("lug", 3), ("lucid", 2), ("castor", 4)]
]


# names


def test_a_run_is_named_by_its_policy_where_that_tells_it_from_others() -> None:
    assert [run.name for run in of(SLOW, FAST)] == ["exclusive", "magm"]


def test_runs_of_one_policy_are_named_by_what_differs() -> None:
    oracle = replace(FAST, estimator="oracle")
    again = replace(FAST, estimator="oracle", seed=3)
    names = [run.name for run in of(SLOW, FAST, oracle, again)]
    assert names == [
        "exclusive",
        "magm no estimator seed 0",
        "magm oracle seed 0",
        "magm oracle seed 3",
    ]


def test_settings_tell_runs_apart_and_equal_runs_are_numbered() -> None:
    mps = experiment(FAST, Settings(policy="magm", collocation=Collocation(mps=True)))
    found = runs([(experiment(FAST), FAST), (mps, FAST), (mps, FAST)])
    assert [run.name for run in found] == [
        "magm",
        "magm collocation.mps=True",
        "magm collocation.mps=True #2",
    ]
    assert found[0].settings == {}
    assert found[1].settings == {"collocation.mps": "True"}


@pytest.mark.parametrize("text", ["3xA100-40GB", "250x8xV100-32GB", "2xA100-40GB,2x4xA30-24GB"])
def test_a_cluster_is_told_as_it_is_asked_for(text: str) -> None:
    assert gpus(parse(text)) == text


# figures


def test_every_measure_is_found_under_a_key_of_its_own() -> None:
    (run,) = of(made_up(30, "3xA100-40GB", seats=2))
    values = {measure.key: measure.of(run) for measure in MEASURES}
    assert len(values) == len(MEASURES)
    missing = {key for key, value in values.items() if value is None}
    assert missing == {"deadlines_met", "profiled", "sm_kept"}
    assert run.figures.wait is not None
    assert values["wait_p999_s"] == run.figures.wait.p999
    assert values["bound_makespan_s"] == run.bounds.makespan_s


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345, "12,345"),
        (12345.6, "12,346"),
        (678.4, "678"),
        (99.96, "100"),
        (60.0, "60.0"),
        (9.006, "9.01"),
        (0.9999, "1.00"),
        (0.02347, "0.0235"),
        (-4.2, "-4.20"),
        (0.0, "0"),
        (7, "7"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "before", "text"),
    [(65, 100, "-35%"), (104.6, 100, "+4.6%"), (1200, 100, "×12"), (0, 5, "-100%"), (5, 0, "")],
)
def test_change(value: float, before: float, text: str) -> None:
    assert change(value, before) == text


@pytest.mark.parametrize(
    ("seconds", "name"), [(0, "s"), (89, "s"), (90, "min"), (5400, "h"), (129_600, "days")]
)
def test_time_unit(seconds: float, name: str) -> None:
    assert time_unit(seconds).name == name


def test_a_row_has_one_unit_the_best_is_marked_and_changes_are_against_the_first() -> None:
    found = row(measure_rows(of(SLOW, FAST)), "JCT mean")
    assert found.unit == "h"
    assert [cell.text for cell in found.cells] == ["2.00", "1.50"]
    assert [cell.change for cell in found.cells] == ["", "-25%"]
    assert [cell.best for cell in found.cells] == [False, True]


def test_where_more_is_better_the_largest_is_the_best() -> None:
    found = row(measure_rows(of(SLOW, FAST)), "throughput")
    assert [cell.best for cell in found.cells] == [False, True]


def test_what_is_the_same_everywhere_has_no_best_and_no_change() -> None:
    for label in ("finished", "no-wait makespan"):
        found = row(measure_rows(of(SLOW, SLOW)), label)
        assert all(not cell.best and not cell.change for cell in found.cells)


def test_rows_of_what_never_happened_are_left_out() -> None:
    labels = {row.measure.label for row in measure_rows(of(SLOW, FAST))}
    assert not labels & {"preemptions", "lost mean", "deadlines met", "unfinished"}
    assert "OOM crashes" in labels
    late = replace(
        SLOW, jobs=(job(0, attempt(0, 9), deadline_s=5.0), job(0, state=JobState.QUEUED))
    )
    labels = {row.measure.label for row in measure_rows(of(SLOW, late))}
    assert {"deadlines met", "unfinished"} <= labels


def test_what_cannot_be_told_is_a_dash() -> None:
    nothing = outcome(job(0, state=JobState.QUEUED), policy="stuck")
    found = row(measure_rows(of(SLOW, nothing)), "JCT mean")
    assert [(cell.text, cell.best) for cell in found.cells] == [("2.00", False), ("-", False)]


def test_what_no_run_can_tell_is_a_row_of_dashes_where_it_is_a_time() -> None:
    """One job ends and one never does: of all together there is neither an end nor a bound."""
    half = outcome(job(0, attempt(0, 60), alone_s=60.0), job(0, state=JobState.QUEUED))
    found = measure_rows(of(half))
    for label in ("makespan", "throughput", "queue mean", "no-wait makespan", "unshared makespan"):
        assert [cell.text for cell in row(found, label).cells] == ["-"]
    for label in ("JCT mean", "no-wait JCT mean"):
        assert [cell.text for cell in row(found, label).cells] == ["60.0"]
    assert not {row.measure.label for row in found} & {"deadlines met", "lost mean"}


# runs that leave jobs undone: 2 of 3 jobs are lost to OOM, or nothing ever starts

ALL = outcome(*(job(0, attempt(0, 60 * n), alone_s=60.0) for n in (1, 2, 3)), policy="exclusive")
BETTER = replace(ALL, policy="magm", makespan_s=120.0)
LOSSY = outcome(
    job(0, attempt(0, 50), alone_s=50.0),
    *(job(0, attempt(0, 5), state=JobState.OUT_OF_MEMORY) for _ in range(2)),
    policy="lossy",
)
STUCK = outcome(*(job(0, state=JobState.QUEUED) for _ in range(3)), policy="stuck")


@pytest.mark.parametrize("undone", [LOSSY, replace(LOSSY, makespan_s=120.0), STUCK])
def test_who_leaves_jobs_undone_is_not_faster_for_it(undone: Outcome) -> None:
    power = [gpu("g0", energy_j=joules) for joules in (3e6, 1e6, 2e6)]
    made = [
        replace(run, gpus=(of_all,))
        for run, of_all in zip((ALL, undone, BETTER), power, strict=True)
    ]
    found = measure_rows(of(*made))
    for label in ("makespan", "energy"):
        cells = row(found, label).cells
        assert [cell.best for cell in cells] == [False, False, True]
        assert [cell.change for cell in cells] == ["", "", "-33%"]
    for label in ("JCT mean", "slowdown worst", "Jain's index"):  # the others are the same
        assert not any(cell.best or cell.change for cell in row(found, label).cells)
    assert [cell.best for cell in row(found, "finished").cells] == [True, False, True]
    assert row(found, "finished").cells[1].change in ("-67%", "-100%")


def test_nobody_is_compared_with_a_first_run_that_leaves_jobs_undone() -> None:
    found = measure_rows(of(LOSSY, ALL, BETTER))
    assert [cell.change for cell in row(found, "makespan").cells] == ["", "", ""]
    assert [cell.best for cell in row(found, "makespan").cells] == [False, False, True]
    assert row(found, "finished").cells[1].change == "+200%"


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes seconds."""
    monkeypatch.setattr(charts, "charts", lambda runs: ())


def test_which_runs_are_not_compared_and_why_is_told(no_charts: None) -> None:
    shown = plain([Comparison(of(ALL, LOSSY, STUCK))]), export.page(of(ALL, LOSSY, STUCK))
    for why in (
        "time, energy and fairness are not compared if fewer jobs finished: lossy, stuck",
        "there is no makespan, nor anything derived from it, if some jobs never end: stuck",
    ):
        assert all(why in each for each in shown)
    assert "fewer jobs" not in plain([Comparison(of(ALL, BETTER))], 100)
    assert "fewer jobs" not in export.page(of(ALL, BETTER))


# the table


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits_and_begins_every_block_with_the_first_run(width: int) -> None:
    lines = plain([Comparison(of(*FIVE))], width).splitlines()
    assert max(map(len, lines)) <= width
    headers = [line.split() for line in lines if line.lstrip().startswith("exclusive")]
    assert all(header[0] == "exclusive" for header in headers)
    assert [name for header in headers for name in header[1:]] == ["magm", "lug", "lucid", "castor"]
    assert (len(headers) > 1) == (width < 100)


def test_four_policies_are_beside_each_other_in_a_terminal_of_80_columns() -> None:
    lines = plain([Comparison(of(*FIVE[:4]))], 80).splitlines()
    assert [line.split() for line in lines if line.lstrip().startswith("exclusive")] == [
        ["exclusive", "magm", "lug", "lucid"]
    ]


def test_many_runs_are_a_line_each_in_one_table() -> None:
    assert isinstance(comparison(of(*FIVE)), Comparison)
    many = [replace(SLOW, policy="slow"), replace(FAST, policy="fast"), BETTER, ALL]
    found = comparison(of(*FIVE, *many))
    assert isinstance(found, Overview)
    lines = [line.split() for line in plain([found]).splitlines()]
    titles, statistics, units = lines[:3]
    assert titles[:3] == ["makespan", "JCT", "JCT"]
    assert statistics[:2] == ["mean", "p99"]
    assert units[0] in ("s", "min", "h")
    slow, fast = (next(line for line in lines if line[0] == name) for name in ("slow", "fast"))
    assert float(slow[2]) / float(fast[2].rstrip("*")) == pytest.approx(2 / 1.5)
    assert len(lines) > 2 + len(found.runs)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_overview_fits_and_no_measure_is_left_out(width: int) -> None:
    many = [replace(made, policy=f"a_long_name_{n}") for n in range(2) for made in FIVE]
    lines = plain([Overview(of(*many))], width).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert words.count("JCT") == words.count("wait") == 2
    assert words.count("makespan") == words.count("slowdown") == words.count("busy") == 1


def test_a_note_names_the_runs_that_shared_nothing_or_knew_no_profile() -> None:
    beside = outcome(job(0, attempt(0, 60), id=1), job(0, attempt(9, 70), id=2), policy="magm")
    after = outcome(job(0, attempt(0, 60), id=1), job(0, attempt(60, 70), id=2), policy="sjf")
    blind = replace(after, policy="castor", profiled=0)
    assert [run.figures.shared for run in of(beside, after)] == [2, 0]
    said = plain([Comparison(of(beside, after, blind))], 80)
    assert "no GPU was shared: sjf, castor" in said
    assert (
        "no job started with a known profile, and a policy that needs one does not share: castor"
        in " ".join(said.split())
    )
    assert not measure_notes(of(beside))


def test_the_best_is_seen_without_colour() -> None:
    lines = plain([Comparison(of(SLOW, FAST))], 80).splitlines()
    assert next(line for line in lines if line.startswith("JCT mean")).split() == (
        ["JCT", "mean", "h", "2.00", "1.50*", "-25%"]
    )
    assert "* best of all runs; changes against exclusive" in lines


def test_one_run_has_nothing_to_be_compared_with() -> None:
    lines = plain([Comparison(of(SLOW))], 80).splitlines()
    assert not any("*" in line or "%" in line.split()[-1:] for line in lines)


def test_names_are_shown_as_they_are_and_control_nothing() -> None:
    text = plain([Comparison(of(replace(SLOW, policy="[red]\x1b[2Jx")))], 80)
    assert "[red]?[2Jx" in text


# exports


def test_a_row_for_each_run() -> None:
    file = io.StringIO()
    export.write_runs(of(SLOW, FAST), file)
    first, second = csv.DictReader(io.StringIO(file.getvalue()))
    assert list(first)[:8] == (
        ["run", "trace", "gpus", "policy", "estimator", "interference", "seed", "settings"]
    )
    assert list(first)[8:] == [measure.key for measure in MEASURES]
    assert (first["run"], first["gpus"], first["jct_mean_s"]) == (
        "exclusive",
        "1xA100-40GB",
        "7200.0",
    )
    assert (second["slowdown_p95"], second["deadlines_met"]) == ("1.5", "")


def test_a_row_for_each_job() -> None:
    crashed = job(
        10,
        attempt(20, 30, cause=Cause.GPU_OOM),
        attempt(50, 150, "g0", "g1"),
        alone_s=80.0,
        name="a,b",
        deadline_s=100.0,
    )
    file = io.StringIO()
    export.write_jobs(of(outcome(crashed, job(40, state=JobState.QUEUED, id=2))), file)
    first, second = csv.DictReader(io.StringIO(file.getvalue()))
    wanted = {"run": "magm", "job": "1", "name": "a,b", "wait_s": "30.0", "lost_s": "10.0"}
    wanted |= {"execution_s": "100.0", "jct_s": "140.0", "slowdown": "1.25", "gpus": "g0 g1"}
    wanted |= {"finish_ratio": "1.75", "oom_crashes": "1", "launches": "2", "deadline_met": "False"}
    assert {key: first[key] for key in wanted} == wanted
    assert (second["state"], second["jct_s"], second["gpus"]) == ("queued", "", "")


def test_json_has_everything_and_only_the_simulators_speed_differs_between_equal_runs() -> None:
    def written(wall_s: float) -> Any:
        file = io.StringIO()
        made = replace(FIVE[1], wall_s=wall_s)
        export.write_json(of(made, rejected=(Rejected(7, "no duration"),)), file)
        return json.loads(file.getvalue())

    one, two = written(1.0), written(2.0)
    assert one["format"] == 1
    (run,) = one["runs"]
    assert set(run["figures"]) == {m.key for m in MEASURES if m.group != SIMULATOR}
    assert len(run["jobs"]) == 40
    assert run["jobs"][0]["attempts"][0]["cause"] == "success"
    assert run["rejected"] == [{"line": 7, "why": "no duration"}]
    assert one != two
    assert one["runs"][0].pop("simulator") != two["runs"][0].pop("simulator")
    assert one == two


# charts


def test_means_of_a_step_function() -> None:
    found = means([0.0, 5.0, 20.0], [2.0, 4.0, 8.0], np.array([0.0, 10.0, 20.0, 30.0, 40.0]), 25.0)
    assert found[:3].tolist() == [3.0, 4.0, 8.0]  # the third up to the end at 25
    assert np.isnan(found[3])


def test_means_lose_no_spike() -> None:
    found = means([0.0, 500.0, 500.5], [0.0, 1000.0, 0.0], np.array([0.0, 1000.0]), 1000.0)
    assert found.tolist() == [0.5]


def test_jobs_on_a_gpu_at_once_are_in_lanes_of_their_own() -> None:
    found = [(JobId(1), attempt(0, 10)), (JobId(2), attempt(5, 20)), (JobId(3), attempt(10, 15))]
    alone = (JobId(4), attempt(20, 30))
    bars = [(bar.job, bar.lane, bar.lanes) for bar in gantt.lanes(0, [*found, alone])]
    assert bars == [(1, 0, 2), (2, 1, 2), (3, 0, 2), (4, 0, 1)]


def test_strips_are_means_over_time_and_over_the_gpus_that_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gantt, "HEAT_BINS", 2)
    monkeypatch.setattr(gantt, "MOST_STRIPS", 2)
    one = made_up(1, "3xA100-40GB")
    ids = [str(gpu.gpu) for gpu in one.gpus]
    jobs = (
        job(0, attempt(0, 10, *ids[:2])),
        job(0, attempt(0, 5, ids[2])),
        job(0, attempt(0, 5, ids[2])),
    )
    found = gantt.strips(replace(one, jobs=jobs), 20.0)
    assert found.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    both = gantt.strips(replace(one, jobs=jobs[:1]), 10.0)
    assert both.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_a_crash_has_its_jobs_number_beside_its_mark() -> None:
    """Job 7 crashes 1 s after it began beside job 1, and runs again: both bars are told apart."""
    crash = attempt(0, 1, cause=Cause.GPU_OOM)
    made = outcome(job(0, attempt(0, 50), id=1), job(0, crash, attempt(1, 80), id=7))
    with rc_context(RC):
        (axes,) = gantt.bars(made, 0, 80.0).axes
    told = {(text.get_text(), text.xy[0], text.get_color() == BAD) for text in axes.texts}
    assert told == {("1", 25.0, False), ("7", 1.0, True), ("7", 40.5, False)}


def test_a_curve_rises_to_the_share_that_finished_before_the_axis_ends() -> None:
    half = outcome(
        *(job(0, attempt(0, end), alone_s=10.0) for end in (10, 1000)),
        *(job(0, state=JobState.QUEUED) for _ in range(2)),
    )
    with rc_context(RC):
        jct = cdfs(of(half, replace(half, jobs=half.jobs[:2]))).axes[0]
    ends = [(line.get_xdata()[-2], line.get_ydata()[-1]) for line in jct.get_lines()]
    assert ends == [(1000, 0.5), (1000, 1.0)]
    assert jct.get_xlim()[1] > 1000


def test_a_crowd_has_a_heat_map() -> None:
    assert gantt.has_bars(made_up(10, "64xA100-40GB"))
    assert not gantt.has_bars(made_up(10, "65xA100-40GB"))
    many = replace(SLOW, jobs=tuple(job(n, attempt(n, n + 1)) for n in range(2001)))
    assert not gantt.has_bars(many)


# the page


@pytest.fixture(scope="module")
def page() -> str:
    found = (Rejected(12, "'<b>x</b>' is no number"),)
    return export.page(of(*FIVE[:2], rejected=found), made_at="2026-11-30")


def test_the_page_needs_nothing_else(page: str) -> None:
    assert not re.search(r"https?:|<script|<link|@import", page)
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 5  # CDFs, boxes, timelines, and who was where in each run
    for source in sources:
        kind, _, data = source.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert b"</svg>" in base64.b64decode(data)


def test_the_page_tells_what_was_run_and_escapes_it(page: str) -> None:
    for text in ("exclusive, magm", "by hand, 40 jobs", "3xA100-40GB", "2026-11-30", "defaults"):
        assert text in page
    assert "<b>x" not in page
    assert "never started" not in page and "No job finished" not in page
    assert "&lt;b&gt;x" in page


def test_the_page_has_every_listed_figure_but_the_simulators(page: str) -> None:
    for found in measure_rows(of(*FIVE[:2])):
        told = f"<td>{found.measure.label.replace(chr(39), '&#39;')}</td>" in page
        assert told == (found.measure.group != SIMULATOR)


def test_the_same_runs_make_the_same_page(page: str) -> None:
    again = [replace(made, wall_s=9.0) for made in FIVE[:2]]
    found = (Rejected(12, "'<b>x</b>' is no number"),)
    assert export.page(of(*again, rejected=found), made_at="2026-11-30") == page


def test_large_runs_make_no_large_charts() -> None:
    crowd = made_up(1100, "8xA100-40GB", seats=2)
    assert gantt.has_bars(crowd)
    end_s = crowd.makespan_s
    with rc_context(RC):
        bars = gantt.bars(crowd, 0, end_s)
        heat = gantt.heat(crowd, gantt.strips(crowd, end_s), 0, end_s, 2.0)
        assert max(len(image(bars)), len(image(heat))) < 300_000


@pytest.mark.filterwarnings("error")
def test_runs_in_which_nothing_happened_have_a_page() -> None:
    """Empty axes would say no more than the sentence."""
    stuck = outcome(job(0, state=JobState.QUEUED, id=3, name="<i>", gpus=16), makespan_s=0.0)
    page = export.page(of(stuck))
    assert "unfinished" in page and "<img" not in page
    assert "<p>No job finished in any run: there are no times to draw.</p>" in page
    assert '<td class="number">job 3</td><td>&lt;i&gt;</td><td>16 GPUs</td>' in page
    assert "there is no makespan, nor anything derived from it" in page


@pytest.mark.filterwarnings("error")
def test_runs_in_which_all_jobs_crashed_are_drawn_all_the_same() -> None:
    crash = attempt(0, 10, cause=Cause.GPU_OOM)
    page = export.page(of(outcome(job(0, crash, state=JobState.OUT_OF_MEMORY))))
    assert page.count("<img") == 2, "over time, and which job was where"


def test_the_page_has_a_thousand_of_the_rows_that_were_left_out(no_charts: None) -> None:
    found = tuple(Rejected(line, "no\x1b duration") for line in range(1, 1102))
    page = export.page(of(SLOW, rejected=found))
    assert '<td class="number">line 1000</td><td>no? duration</td>' in page
    assert "1101, of which the first 1000" in page and "line 1001" not in page


def test_without_matplotlib_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "carma_simulator.report.charts", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CarmaError) as failed:
        export.page(of(SLOW))
    assert "matplotlib" in failed.value.message
    assert failed.value.hint == how_to_add("sim")


def test_only_the_page_loads_what_draws() -> None:
    modules = "export, table"
    code = f"import sys; from carma_simulator.report import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "numpy", "jinja2"} & set(done.stdout.split())
