"""`carma simulate`: its arguments, output, files, cache and errors."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_simulator import recorded, sweep
from carma_simulator.commands.simulate import POLICIES
from carma_simulator.experiment import Experiment
from carma_simulator.hardware import parse
from carma_simulator.recorded import History
from carma_simulator.run import simulate
from carma_simulator.traces import sources
from carmad import registry
from carmad.config import Monitor, Settings
from carmad.configfile import by_name, load
from carmad.core.placing.view import Policy
from carmad.errors import CarmaError
from cli import client
from cli.main import run
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]

# Each may share a GPU: together they load neither its SMs nor its memory.
TRACE = """\
name,submit_s,duration_s,user,memory_mib,sm_active,estimate_guess_mib
first,0,100,ada,8000,0.3,9000
second,0,100,ben,8000,0.3,40000
"""
ONE_GPU = ("--gpus", "1xA100-40GB", "--interference", "none")


@pytest.fixture(autouse=True)
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "two.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """The runs of a sweep of one process."""
    assert run(["simulate", "two.csv", *ONE_GPU, "--jobs", "1", "--json", *words]) == 0
    runs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return runs


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[float, float]]:
    """Makespan and mean JCT of each run."""
    found = [one["figures"] for one in answer(capsys, *words)]
    return [(one["makespan_s"], one["jct_mean_s"]) for one in found]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["simulate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


# -- what it comes to


def test_the_help_names_the_policies() -> None:
    """Other people's plugins need not be named."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        ours = tomllib.load(file)["project"]["entry-points"]["carma.policies"]
    assert sorted(ours) == POLICIES


def test_a_name_of_several_jobs_that_are_not_the_same_is_noted(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    trace.write_text(TRACE.replace("second", "first").replace("ben,8000", "ada,9000"), "utf-8")
    run(["simulate", "two.csv", *ONE_GPU])
    said = capsys.readouterr().err
    assert "differ in load: 1 names, such as first" in said


def test_policies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """10 s to the first kernel and 100 s of training each. Alone, the second one begins when the
    first has ended, at 110; beside it, 30 s after the first one's first kernel, at 40."""
    assert figures(capsys, "--policy", "exclusive", "--policy", "magm") == [
        (220, (110 + 220) / 2),
        (150, (110 + 150) / 2),
    ]


def test_a_table_for_people_with_the_lower_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "two.csv", *ONE_GPU, "-p", "exclusive", "-p", "magm"]) == 0
    out, err = capsys.readouterr()
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert "exclusive magm" in lines
    assert "makespan min 3.67 2.50* -32%" in lines
    assert "no-wait JCT mean min 1.83 1.83" in lines, "every job alone at once takes 110 s"
    assert "unshared makespan min 3.67 3.67" in lines, "two jobs of 110 s on one GPU"
    assert err == "", "no progress bar where nobody looks"


def test_settings_are_the_defaults_and_not_the_servers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = tmp_path / "carma.toml"
    server.write_text('policy = "exclusive"\n', encoding="utf-8")
    monkeypatch.setenv("CARMA_CONFIG", str(server))
    monkeypatch.setenv("CARMA_POLICY", "exclusive")
    assert answer(capsys)[0]["policy"] == Settings().policy != "exclusive"
    assert answer(capsys, "--config", str(server))[0]["policy"] == "exclusive"
    assert answer(capsys, "--config", str(server), "--policy", "rr")[0]["policy"] == "rr"


def test_settings_and_physics_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The 10 s of settling end at 20."""
    words = ["--set", "monitor.window_s=10", "--set", "physics.first_kernel_s=20"]
    assert figures(capsys, *words[:2]) == [(20 + 110, (110 + 130) / 2)]
    assert figures(capsys, *words) == [(30 + 120, (120 + 150) / 2)]
    assert answer(capsys, *words)[0]["settings"] == {
        "monitor.window_s": "10.0",
        "physics.first_kernel_s": "20.0",
    }


def test_a_policy_is_simulated_in_its_system(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    """As the daemon runs it: both read one list."""
    runs = answer(capsys, "--policy", "lucid", "--policy", "asrpt", "--policy", "magm")
    assert [one["settings"] for one in runs] == [
        {"predictor": "additive", "profiling.gpus": "auto", "limits.preemption": "True"},
        {"predictor": "forest"},
        {},
    ]
    for one in runs[:2]:
        of_daemon = by_name(load(None, {"CARMA_POLICY": one["policy"]}))
        assert {name: str(of_daemon[name]) for name in one["settings"]} == one["settings"]
    (one,) = answer(capsys, "--policy", "asrpt", "--set", "predictor=history")
    assert one["settings"] == {}, "the default, but set"


def test_estimates_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """By the estimate, the second job needs 40,000 MiB, which is free when the first has ended."""
    words = ["--estimator", "none", "--estimator", "oracle", "--estimator", "guess"]
    runs = answer(capsys, *words)
    assert [one["estimator"] for one in runs] == ["none", "oracle", "guess"]
    assert [one["figures"]["makespan_s"] for one in runs] == [150, 150, 220]


def test_mps_and_recovery(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    """Two jobs of 30,000 MiB do not fit on 40,960; the second to come runs out of memory.

    Under MPS, jobs of one user alone share a GPU.
    """
    trace.write_text(TRACE.replace("8000", "30000").replace("ben", "ada"), encoding="utf-8")
    (one,) = answer(capsys, "--mps", "--recovery", "adaptive")
    assert one["settings"] == {"collocation.mps": "True", "recovery.name": "adaptive"}
    assert {attempt["mode"] for job in one["jobs"] for attempt in job["attempts"]} >= {"mps"}
    assert one["figures"]["oom_crashes"] == 1
    assert one["figures"]["finished"] == 2


def test_all_policies_are_those_that_are_installed(capsys: pytest.CaptureFixture[str]) -> None:
    runs = answer(capsys, "--policy", "all")
    assert [one["policy"] for one in runs] == registry.names("policies")


def test_a_policy_without_its_libraries_is_left_out_of_all_and_said_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = registry.bare_policy

    def lacking(settings: Settings) -> Policy:
        if settings.policy == "lucid":
            raise CarmaError("'lucid' of policies cannot be loaded: No module named 'heavy'")
        return made(settings)

    monkeypatch.setattr(registry, "bare_policy", lacking)
    assert run(["simulate", "two.csv", "--policy", "all", "--json", "--jobs", "1"]) == 0
    said = capsys.readouterr()
    assert "left out: 'lucid' of policies" in said.err
    runs = json.loads(said.out)["runs"]
    assert len(runs) == len(registry.names("policies")) - 1


def test_a_sweep_is_everything_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    policies = ["--policy", "rr", "--policy", "rr", "--policy", "magm"]
    estimators = ["--estimator", "none", "--estimator", "oracle"]
    runs = answer(capsys, *policies, *estimators, "--seed", "1", "--seed", "2")
    assert [(one["policy"], one["estimator"], one["seed"]) for one in runs] == [
        (policy, estimator, seed)
        for policy in ("rr", "magm")
        for estimator in ("none", "oracle")
        for seed in (1, 2)
    ]


def test_tuning_tries_every_combination_and_names_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The shorter the window, the sooner the second job may join the first."""
    words = ["--tune", "monitor.window_s=30,10", "--tune", "limits.backfill=0,1,0"]
    runs = answer(capsys, *words)
    assert [one["settings"] for one in runs] == [
        settings | more
        for settings in ({}, {"monitor.window_s": "10.0"})
        for more in ({"limits.backfill": "0"}, {"limits.backfill": "1"})
    ]
    assert run(["simulate", "two.csv", *ONE_GPU, "--jobs", "1", *words]) == 0
    assert "the lowest mean JCT: magm monitor.window_s=10.0" in capsys.readouterr().err


def test_settings_for_a_policy_are_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    """It is simulated if it is not yet, and nothing else changes."""
    words = ["simulate", "two.csv", *ONE_GPU, "--jobs", "1", "-p", "magm", "--tune", "lucid"]
    assert run([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [one["run"] for one in json.loads(out)["runs"]] == ["magm", "lucid"]
    assert err.endswith("lucid: of the settings tried, none is better than the current ones\n")


def test_seeds_without_errors_to_vary(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> bool:
        assert run(["simulate", "two.csv", *ONE_GPU, "--jobs", "1", "--seed", "1", *words]) == 0
        err = capsys.readouterr().err
        assert err == "" or err.startswith("carma: the seeds make no difference, ")
        assert ("generate:NAME?seed=1" in err) == bool(err)
        return bool(err)

    of_memory = ("--set", "physics.estimate_error=0.3")
    assert told("--seed", "2")
    assert not told("--seed", "1"), "one seed, twice"
    assert told("--seed", "2", *of_memory), "there are no estimates"
    assert not told("--seed", "2", *of_memory, "--estimator", "none", "--estimator", "oracle")
    assert not told("--seed", "2", "--set", "physics.duration_error=0.3")


def test_rows_that_are_left_out(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    bad = "".join(f"bad,0,-{n},ada,8000,0.3,\n" for n in range(1, 6))
    trace.write_text(TRACE + bad, encoding="utf-8")
    assert run(["simulate", "two.csv", *ONE_GPU]) == 0
    err = capsys.readouterr().err
    assert err.startswith(
        "carma: rows of the trace that are left out: 5; line 4: duration_s is -1,"
    )
    assert "; line 6: " in err and "line 7" not in err
    assert err.endswith("; and 2 more\n")


def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["-p", "exclusive", "-p", "rr", "--csv", "runs.csv", "--csv-jobs", "jobs.csv"]
    assert run(["simulate", "two.csv", *ONE_GPU, *words]) == 0
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], float(row["makespan_s"])) for row in rows] == [
        ("exclusive", 220),
        ("rr", 150),
    ]
    with (tmp_path / "jobs.csv").open(encoding="utf-8", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["first", "second"] * 2
    assert "carma: wrote runs.csv\n" in capsys.readouterr().err


def test_a_trace_is_written_instead_of_simulated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trace: Path
) -> None:
    assert run(["simulate", "two.csv", "--export", "again.csv"]) == 0
    assert "carma simulate again.csv\n" in capsys.readouterr().out
    assert sources.load("again.csv").tasks == sources.load("two.csv").tasks
    assert run(["simulate", "two.csv", "--export", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "again.csv").read_text(encoding="utf-8")


def test_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="reports with charts need it")
    assert run(["simulate", "two.csv", *ONE_GPU, "--html", "report.html"]) == 0
    assert "carma: wrote report.html\n" in capsys.readouterr().err
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


# -- a server's own history


def test_history(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """First under its own policy, on its own GPUs, with its own settings."""
    settings = Settings(policy="rr", monitor=Monitor(window_s=10.0))
    past = Experiment(sources.load("two.csv"), parse("1xA100-40GB"), settings, "guess", "none")
    outcome = replace(simulate(past), policy="recorded", makespan_s=1000.0)
    asked: list[str | None] = []

    def from_history(get: Callable[..., Any], user: str | None, **period: str | None) -> History:
        assert get is client.get
        asked.append(period["since"])
        return History(past, outcome, ("7 jobs that run or wait are left out",))

    monkeypatch.setattr(recorded, "from_history", from_history)
    words = ["simulate", "--history", "-S", "2026-11-01T00:00+00:00", "-p", "exclusive"]
    words += ["--json", "--jobs", "1"]
    assert run(words) == 0
    out, err = capsys.readouterr()
    found = [(one["run"], one["figures"]["makespan_s"]) for one in json.loads(out)["runs"]]
    assert found == [("recorded", 1000), ("rr", 220), ("exclusive", 220)]
    assert run([*words, "--estimator", "none", "--gpus", "2xA100-40GB"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["gpus"], one["estimator"]) for one in runs[1:]] == [("2xA100-40GB", "none")] * 2
    assert [one["settings"]["monitor.window_s"] for one in runs] == ["10.0"] * 3
    assert asked == ["2026-11-01T00:00:00.000Z"] * 2
    assert err == "carma: 7 jobs that run or wait are left out\n"


def test_history_without_a_daemon(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "none.sock"))
    assert run(["simulate", "--history"]) == 3
    assert "no answer at" in capsys.readouterr().err


# -- the cache


def test_nothing_is_simulated_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trace: Path
) -> None:
    before = answer(capsys)

    def fail(*_: object) -> None:
        raise CarmaError("simulated")

    monkeypatch.setattr(sweep, "simulate", fail)
    assert answer(capsys) == before
    for words in (["--no-cache"], ["--seed", "1"], ["--mps"]):
        assert run(["simulate", "two.csv", *ONE_GPU, *words]) == 1
    trace.write_text(TRACE.replace("100", "101"), encoding="utf-8")
    assert run(["simulate", "two.csv", *ONE_GPU]) == 1
    assert capsys.readouterr().out == ""


# -- what can go wrong


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        ("", "give either TRACE or --history"),
        ("two.csv --history", "give either TRACE or --history"),
        ("two.csv --since 7d", "--since goes with --history"),
        ("two.csv --user ada", "--user goes with --history"),
        ("two.csv --policy nope", "choose one of asrpt, best_fit, carma, castor, "),
        ("two.csv --recovery nope", "among the installed recoveries"),
        ("two.csv --gpus 3xAbacus", "A100-40GB"),
        ("two.csv --estimator nope", "choose one of none, oracle, history, guess"),
        ("two.csv --interference nope", "additive"),
        ("two.csv --set monitor.windows_s=3", "Did you mean monitor.window_s?"),
        ("two.csv --set monitor.window_s=x", "--set monitor.window_s should be a valid number"),
        ("two.csv --set window_s", "--set window_s has no value"),
        ("two.csv --set risk=3", "--set risk is a group of settings"),
        ("two.csv --set physics.gravity=9.81", "first_kernel_s"),
        ("two.csv --set physics.oom_s=soon", "a number of 0 or more, not 'soon'"),
        ("two.csv --set physics.oom_s=inf", "a number of 0 or more, not 'inf'"),
        ("two.csv --tune monitor.windows_s=3,4", "Did you mean monitor.window_s?"),
        ("two.csv --tune monitor.window_s=3,", "should be a valid number"),
        ("two.csv --tune monitor.window_s", "give KEY=A,B, or one of lucid"),
        ("two.csv --jobs 0", "--jobs: "),
    ],
)
def test_wrong_words(capsys: pytest.CaptureFixture[str], words: str, piece: str) -> None:
    assert piece in refused(capsys, *words.split())


def test_no_such_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "nowhere.csv"]) == 1
    assert "nowhere.csv" in capsys.readouterr().err


def test_a_trace_without_jobs(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    trace.write_text(TRACE.splitlines()[0] + "\n", encoding="utf-8")
    assert run(["simulate", "two.csv"]) == 1
    assert "two.csv has no job that can be simulated" in capsys.readouterr().err


def test_errors_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "two.csv", "--json", "--policy", "nope"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["code"], "'nope'" in told["error"]) == ("usage", True)


@pytest.mark.parametrize("option", ["--csv", "--csv-jobs", "--html"])
def test_a_file_that_cannot_be_written_is_told_of_before_anything_is_simulated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def fail(_: object) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr(sweep, "simulate", fail)
    for file, why in (("no/such/file", "there is no folder no/such"), (".", "it is a folder")):
        assert run(["simulate", "two.csv", *ONE_GPU, option, file]) == 1
        assert capsys.readouterr() == ("", f"carma: cannot write {file}: {why}\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run(["simulate", "two.csv", *ONE_GPU, option, "file"]) == 1
    assert capsys.readouterr() == ("", "carma: cannot write file: no permission\n")


def test_a_file_on_stdout_stands_there_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["simulate", "two.csv", *ONE_GPU, "--csv-jobs", "-"]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in csv.DictReader(out.splitlines())] == ["first", "second"]
    assert (err, (tmp_path / "-").exists()) == ("", False)
    told = refused(capsys, "two.csv", "--csv", "-", "--csv-jobs", "-")
    assert told.startswith("carma: only one thing can be written to stdout\n")
    assert run(["simulate", "two.csv", "--csv", "-", "--json"]) == 2


def test_jobs_that_never_start(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    trace.write_text("name,submit_s,duration_s,gpus\none,0,9,1\nbig,1,9,2\n", encoding="utf-8")
    assert run(["simulate", "two.csv", *ONE_GPU, "-p", "exclusive"]) == 0
    out, err = capsys.readouterr()
    assert err == (
        "carma: jobs that want more GPUs than there are: 1; the largest, big, wants 2:"
        " --gpus 2xA100-40GB\n"
        "carma: exclusive: jobs that never start: 1; the first is big, for 2 GPUs\n"
    )
    lines = [line.split() for line in out.splitlines()]
    assert ["makespan", "s", "-"] in lines, "it never ends"
    assert ["JCT", "mean", "s", "19.0"] in lines


def test_where_nothing_finishes_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    trace.write_text("name,submit_s,duration_s,gpus\nbig,0,9,13\n", encoding="utf-8")
    assert run(["simulate", "two.csv", *ONE_GPU, "-p", "exclusive", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"][0]["figures"]["makespan_s"] is None
    assert "wants 13: --gpus 2x8xA100-40GB\n" in err
    assert err.endswith("carma: no job finished in any run\n")


def test_jobs_that_want_more_memory_than_there_is(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    trace.write_text(TRACE.replace("ben,8000", "ben,40961"), encoding="utf-8")
    assert run(["simulate", "two.csv", *ONE_GPU]) == 0
    assert capsys.readouterr().err == (
        "carma: jobs that want more memory than any GPU has: 1; the largest, second, wants"
        " 40,961 MiB\n"
    )


def test_measured_pairs_of_other_models_make_no_difference(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    trace.write_text(
        "name,submit_s,duration_s,model,batch_size\na,0,9,VGG,8\nb,0,9,GPT,8\n", encoding="utf-8"
    )
    head = "model1,batchsize1,speed1,model2,batchsize2,speed2\n"

    def told(pairs: str, *words: str) -> str:
        (tmp_path / "pairs.csv").write_text(head + pairs, encoding="utf-8")
        words = ("--gpus", "1xA100-40GB", "--interference", "measured:pairs.csv", *words)
        assert run(["simulate", "two.csv", *words]) == 0
        return capsys.readouterr().err

    beginning = "carma: {} of 2 models of the trace, at their batch sizes, have pairs measured "
    assert told("vgg,8,0.5,vgg,8,0.5\n") == beginning.format(1) + (
        "under streams in pairs.csv; for the others: conserving\n"
    )
    assert told("vgg,8,0.5,gpt,8,0.5\n") == ""
    assert told("vgg,8,0.5,gpt,8,0.5\n", "--mps").startswith(beginning.format(0) + "under mps ")


SLOW = """
import os, time
from multiprocessing.connection import Connection
from pathlib import Path

def stay():
    Path(f"pid-{os.getpid()}").touch()
    time.sleep(600)

class Slow:
    name = "slow"
    def order(self, job): return 0.0
    def plan(self, view): stay()

class SlowToAnswer(Slow):
    def plan(self, view):
        Connection._send = half
        return ()

def half(connection, message):
    os.write(connection.fileno(), bytes(message)[: len(message) // 2])
    stay()

def slow(settings): return Slow()
def slow_to_answer(settings): return SlowToAnswer()
"""
# What a shell begins in the background ignores SIGINT, and so does all that it begins, tests too.
CARMA = """
import signal
from cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.mark.parametrize(
    ("policy", "send", "number"),
    [
        ("slow", os.killpg, signal.SIGINT),
        ("slow", os.kill, signal.SIGTERM),
        ("slow_to_answer", os.killpg, signal.SIGINT),
    ],
)
def test_interrupted(
    tmp_path: Path,
    policy: str,
    send: Callable[[int, signal.Signals], None],
    number: signal.Signals,
) -> None:
    """With Ctrl-C, every process of the group gets the signal; with `kill`, only one."""
    info = tmp_path / "slow-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: slow\nVersion: 1\n", encoding="utf-8")
    entry = f"[carma.policies]\n{policy} = slow_policy:{policy}\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    (tmp_path / "slow_policy.py").write_text(SLOW, encoding="utf-8")
    words = ["simulate", "two.csv", "-p", policy, "--seed", "1", "--seed", "2", "--jobs", "2"]
    words += ["--set", "physics.duration_error=1"]
    carma = subprocess.Popen(
        [sys.executable, "-c", CARMA, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        at_work = until(
            lambda: list(tmp_path.glob("pid-*")), "both", wanted=lambda found: len(found) == 2
        )
        send(carma.pid, number)
        assert carma.communicate(timeout=PATIENCE_S) == ("", "")
        assert carma.returncode == 128 + number
        for path in at_work:
            with pytest.raises(ProcessLookupError):
                os.kill(int(path.name.removeprefix("pid-")), 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(carma.pid, signal.SIGKILL)


def test_its_help_looks_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "simulate"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: carma simulate")
    assert not set(out) & set("╭─│")
    assert run(["simulate", "--help"]) == 0
    assert capsys.readouterr().out == out


def test_other_commands_do_not_wait_for_the_simulator() -> None:
    code = (
        "import sys, cli.main, cli.app; cli.app.load(cli.app.verbs.OWN['why']);"
        "print([m for m in sys.modules if m.startswith('carma_simulator')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
