"""Sweeps, from `--param` to `carma results`; and what their tasks share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from carma_testing import a_spec
from carmad.core.jobs import recurrence
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.spec import ArrayTask, JobSpec
from carmad.estimates.asking import _alike
from cli.hot import run as run_hot
from cli.main import run
from tests.daemon import CARMA, NO_KERNELS, Carmad, running
from tests.fake_daemon import FakeDaemon

submit = partial(run_hot, "submit")


def swept(fake: FakeDaemon, *words: str) -> list[tuple[str, ...]]:
    """The values of each task, in order."""
    assert submit(list(words)) == 0
    params = fake.body["array"]["params"]
    rows = list(zip(*params.values(), strict=True))
    assert fake.body["array"]["indices"] == list(range(len(rows)))
    return rows


def test_values_are_combined_and_the_last_varies_fastest(fake: FakeDaemon) -> None:
    rows = swept(fake, "--param", "lr=1e-3,x y", "--param", "seed=0-2", "prog")
    assert rows == [(lr, seed) for lr in ("1e-3", "x y") for seed in "012"]
    assert list(fake.body["array"]["params"]) == ["lr", "seed"]
    assert fake.body["array"]["limit"] is None


def test_values_can_be_taken_together(fake: FakeDaemon) -> None:
    words = ("--zip", "--param", "lr=1,2", "--param", "bs=8-16:8", "-a", "%3", "prog")
    assert swept(fake, *words) == [("1", "8"), ("2", "16")]
    assert fake.body["array"]["limit"] == 3


def test_values_can_come_from_a_file(fake: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text('\ufefflr,note\n1e-3,"a, b"\n\n1e-4,\n')
    assert swept(fake, "--params", "runs.csv", "prog") == [("1e-3", "a, b"), ("1e-4", "")]
    rows = swept(fake, "--params", "runs.csv", "--param", "seed=7,007", "prog")
    assert rows[:2] == [("1e-3", "a, b", "7"), ("1e-3", "a, b", "007")]
    assert len(rows) == 4


def test_what_the_command_does_not_mention_follows_it(fake: FakeDaemon, tmp_path: Path) -> None:
    swept(fake, "--param", "lr=1,2", "--param", "seed=1", "prog", "--out", "run-{seed}")
    assert fake.body["argv"] == ["prog", "--out", "run-{seed}", "--lr", "{lr}"]
    swept(fake, "--param", "lr=1,2", "--wrap", "prog --lr $CARMA_PARAM_LR")
    assert fake.body["argv"] == ["/bin/sh", "-c", "prog --lr $CARMA_PARAM_LR"]
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#CARMA --param lr=1,2\n")
    swept(fake, "job.sh", "x{lr}")
    assert fake.body["argv"][2:] == ["x{lr}"]
    assert swept(fake, "--param", "lr=3", "job.sh") == [("3",)], "the command line counts more"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--param", "lr"], "such as lr=1e-3,1e-4"),
        (["--param", "1r=1"], "such as lr=1e-3,1e-4"),
        (["--param", "a=1-9999999999"], "is not an array"),
        (["--param", "a=1", "--param", "a=2"], "a is given twice"),
        (["--zip", "--param", "a=1", "--param", "a=2"], "given twice"),
        (["--zip", "--param", "a=1,2", "--param", "b=2"], "a has 2, b has 1"),
        (["--param", "a=0-999", "--param", "b=0-99"], "more than 10000 combinations"),
        (["--param", "a=1", "-a", "0-3"], "--array takes only %N"),
        (["-a", "%3"], "%N alone is for --param"),
        (["--params", "none.csv"], "cannot read none.csv"),
        (["--params", "/dev/zero"], "/dev/zero is larger than 8 MiB"),
        (["--params", "empty.csv"], "0 rows"),
        (["--params", "odd.csv"], "row 3 does not have 2 values"),
        (["--params", "twice.csv"], "two columns"),
        (["--params", "name.csv"], "such as lr="),
        (["--params", "bytes.csv"], "not CSV in UTF-8"),
    ],
)
def test_what_is_no_sweep(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    why: str,
) -> None:
    files = {"empty": b"a\n", "odd": b"a,b\n1,2\n1\n", "twice": b"a,a\n1,1\n"}
    for name, data in (files | {"name": b"a b\n1\n", "bytes": b"\xff\n1\n"}).items():
        (tmp_path / f"{name}.csv").write_bytes(data)
    assert submit([*words, "prog"]) == 2
    assert why in capsys.readouterr().err
    assert not fake.asked


def test_a_sweep_is_not_estimated_as_one(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["estimate", "--param", "lr=1,2", "prog"]) == 2
    assert "a sweep has no single estimate" in capsys.readouterr().err


def task(*argv: str, **params: str) -> JobSpec:
    return a_spec(argv=argv, array=ArrayTask(JobId(1), 0, params=tuple(params.items())))


def test_values_take_the_places_of_their_names() -> None:
    spec = task("prog", "{a}-{b}", "{c}", '{"a": 1}', a="{b}", b="2")
    assert recurrence.command(spec) == ("prog", "{b}-2", "{c}", '{"a": 1}')
    assert recurrence.variables((("lr", "1"), ("opt.beta-1", "2"))) == {
        "CARMA_PARAM_LR": "1",
        "CARMA_PARAM_OPT_BETA_1": "2",
    }


TRAIN = ("python", "train.py", "--batch-size", "{batch_size}", "--lr", "{lr}")


def test_only_tasks_that_need_the_same_memory_share_an_estimate() -> None:
    one = task(*TRAIN, batch_size="8", lr="1")
    for alike in (task(*TRAIN, batch_size="8", lr="2"), task(*TRAIN, batch_size="8", lr="x")):
        assert _alike(alike, patient=False) == _alike(one, patient=False)
        assert group(alike) == group(one)
    other = task(*TRAIN, batch_size="16", lr="1")
    assert _alike(other, patient=False) != _alike(one, patient=False)
    assert group(other) != group(one)
    silent = [task("sh", "job.sh", batch_size=size) for size in ("8", "16")]
    assert len({group(each) for each in silent}) == 2
    assert len({_alike(each, patient=False) for each in silent}) == 2


def test_a_task_is_a_run_of_the_same_job_as_its_command() -> None:
    one = task(*TRAIN, batch_size="8", lr="1")
    assert group(one) == group(replace(one, argv=recurrence.command(one), array=None))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("carma"), **NO_KERNELS) as carmad:
        yield carmad


def test_a_sweep_and_its_results(daemon: Carmad) -> None:
    (daemon.work / "train.py").write_text(
        "import os, subprocess, sys\n"
        "assert sys.argv[1:] == ['--lr', os.environ['CARMA_PARAM_LR']], sys.argv\n"
        "lr, seed = float(sys.argv[2]), int(os.environ['CARMA_PARAM_SEED'])\n"
        f"told = [{CARMA[0]!r}, 'report', f'acc={{lr + seed}}']\n"
        "if lr < 2: subprocess.run(told + ['loss=7'], check=True)\n"
        "if lr < 2: subprocess.run(told, check=True)\n"
    )
    words = ("--param", "lr=1.5,2.5", "--param", "seed=0-1", "-a", "%2", "--hold")
    command = (sys.executable, "train.py", "--lr", "{lr}")
    env = ("--export", f"CARMA_SOCKET={daemon.socket}")
    label = daemon.carma("submit", "--parsable", *words, *env, "--wrap", " ".join(command)).strip()
    assert "lr=* seed=*" in daemon.carma("queue")
    tasks = daemon.carma("queue", "-r")
    assert all(f"lr={lr} seed={seed}" in tasks for lr in ("1.5", "2.5") for seed in (0, 1))
    shown = daemon.carma("show", f"{label}_3")
    assert "lr=2.5 seed=1" in shown and "--lr 2.5" in shown
    daemon.stop()  # what the tasks run is derived from what is stored
    daemon.start()
    daemon.carma("release", label)
    daemon.carma("wait", label)

    lines = [line.split() for line in daemon.carma("results").splitlines()]
    assert lines[0] == ["JOBID", "STATE", "lr", "seed", "acc", "loss"]
    assert lines[1:] == [
        [f"{label}_0", "succeeded", "1.5", "0", "1.5", "7"],
        [f"{label}_1", "succeeded", "1.5", "1", "2.5", "7"],
        [f"{label}_2", "succeeded", "2.5", "0", "-", "-"],
        [f"{label}_3", "succeeded", "2.5", "1", "-", "-"],
    ]
    best = daemon.carma("results", label, "--csv", "-S", "acc", "-r").splitlines()
    assert best[:2] == [
        "job,state,lr,seed,acc,loss",
        f"{label}_1,succeeded,1.5,1,2.5,7.0",
    ]
    found = json.loads(daemon.carma("results", "--json", f"{label}_1"))["jobs"]
    assert [(one["params"], one["metrics"]) for one in found] == [
        ({"lr": "1.5", "seed": "1"}, {"acc": 2.5, "loss": 7.0})
    ]
    assert "there is no speed" in daemon.carma("results", "--sort", "speed", rc=2)
    assert "lr=* seed=*" in daemon.carma("history")
    assert "lr=2.5 seed=1" in daemon.carma("history", "--array")
    assert ",lr=2.5 seed=1" in daemon.carma("history", "--csv")
    assert "acc=2.5 loss=7" in daemon.carma("show", f"{label}_1")


def test_metrics_are_bounded_and_numbers(daemon: Carmad) -> None:
    id = daemon.sh("exec sleep 1000")
    daemon.await_state(id, "starting", "running")
    path = f"/v1/jobs/{id}/metrics"
    daemon.post(path, {"metrics": {f"m{n}": n for n in range(32)}})
    daemon.post(path, {"metrics": {"m0": 5.5}})
    assert daemon.job(id)["metrics"] == {f"m{n}": n for n in range(32)} | {"m0": 5.5}
    status, out = daemon.call("POST", path, {"metrics": {"one-more": 1}})
    assert (status, "more than 32 metrics" in out["error"]) == (409, True)
    for wrong in ({}, {"a b": 1}, {"a": "1"}, {"a": None}):
        assert daemon.call("POST", path, {"metrics": wrong})[0] == 422
    said = daemon.carma("report", "--job", str(id), "loss=nan", rc=2)
    assert "such as acc=0.91" in said
    daemon.cancel(id)
    daemon.ended(id)
    assert "is not running" in daemon.carma("report", "--job", str(id), "m0=1", rc=None)


@pytest.mark.parametrize(
    "array",
    [
        {"indices": [0, 1], "params": {"a": ["1"]}},
        {"indices": [0], "params": {"a b": ["1"]}},
        {"indices": [0], "params": {"a": ["\n"]}},
        {"indices": [0], "params": {"a": ["x" * 1025]}},
        {"indices": [0], "params": {f"a{n}": ["1"] for n in range(33)}},
    ],
)
def test_a_sweep_that_is_out_of_bounds_is_refused(daemon: Carmad, array: object) -> None:
    assert daemon.call("POST", "/v1/jobs", daemon.submission("true", array=array))[0] == 422
    long = {"indices": [0], "params": {"a": ["x" * 1000]}}
    body = daemon.submission("{a}" * 200, array=long)
    assert daemon.call("POST", "/v1/jobs", body)[0] == 413
