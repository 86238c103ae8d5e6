"""Recognising runs of the same job, and estimating the next one from their peaks."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from carma_testing import a_run, a_server, a_spec
from carmad.config import Settings
from carmad.core.jobs.recurrence import template
from carmad.plugin import Estimate, JobSpec, Refusal, Run
from estimators.history import current_history, history, unchecked_history
from tests.here import Here

COMMAND = "python train.py --model resnet50 --batch-size 64 --seed 1"


def asked(spec: JobSpec, *runs: Run) -> Estimate | Refusal:
    return history(Settings(), a_server(runs=runs)).estimate(spec)


def estimated(spec: JobSpec, *runs: Run) -> Estimate:
    answer = asked(spec, *runs)
    assert isinstance(answer, Estimate), answer
    return answer


def refused(spec: JobSpec, *runs: Run) -> str:
    answer = asked(spec, *runs)
    assert isinstance(answer, Refusal), answer
    return answer.why


def alike(line: str, other: str) -> bool:
    return template(tuple(shlex.split(line))) == template(tuple(shlex.split(other)))


@pytest.mark.parametrize(
    "other",
    [
        "python train.py --model resnet50 --batch-size 64 --seed 2",
        "python train.py --model resnet50 --batch-size 64",
        "python train.py --model=resnet50 --batch_size=64 --lr 3e-4",
        "python train.py --batch-size 64 --model resnet50 --epochs=90 --save-every 5",
        "python train.py --model resnet50 --batch-size 64 --output-dir runs/7 --run-name again",
        "python train.py --model resnet50 --batch-size 64 --out 'a place' --seed -1",
        "python train.py model=resnet50 +batch_size=64 hydra.run.dir=out trainer.max_epochs=3",
    ],
)
def test_what_takes_no_memory_is_left_out(other: str) -> None:
    assert alike(COMMAND, other)


@pytest.mark.parametrize(
    "other",
    [
        "python train.py --model resnet50 --batch-size 65",
        "python train.py --model resnet18 --batch-size 64",
        "python train.py --model resnet50 --batch-size 64 --amp",
        "python train.py --model resnet50 --batch-size 64 --never-heard-of 1",
        "python train.py --model resnet50 --batch-size 64 --output 10",
        "python train.py --model resnet50 --batch-size 64 --dropout 0.1",
        "python train.py --model resnet50 --batch-size 64 cifar10",
        "python other.py --model resnet50 --batch-size 64",
        "python3 train.py --model resnet50 --batch-size 64",
        "torchrun --nproc_per_node 2 train.py --model resnet50 --batch-size 64",
        "python train.py model.name=resnet50 --batch-size 64",
    ],
)
def test_all_else_matters(other: str) -> None:
    assert not alike(COMMAND, other)


def test_a_rate_matters_by_being_on_or_off() -> None:
    assert alike("t.py --dropout 0.1", "t.py --dropout=0.5")
    assert alike("t.py optim.momentum=0.9", "t.py optim.momentum=.95")
    assert not alike("t.py --dropout 0.1", "t.py --dropout 0.0")
    assert not alike("t.py --dropout 0.1", "t.py --dropout linear")


def test_short_options_know_their_case() -> None:
    assert not alike("t.py -b 64", "t.py -B 64")
    assert not alike("t.py a b", "t.py b a")
    assert alike("t.py -b 64 -w 4", "t.py -w 4 -b 64")


def test_the_margin_shrinks_with_the_runs() -> None:
    margins = []
    for n in (1, 2, 7, 30):
        estimate = estimated(a_spec(), *[a_run(10_000)] * n)
        assert estimate.mib == 10_000
        assert estimate.notes == (f"n={n}",)
        assert estimate.low is not None
        margins.append(estimate.safe_mib / estimate.mib - 1)
    assert margins == sorted(margins, reverse=True)
    assert margins == pytest.approx([0.327, 0.189, 0.084, 0.038], abs=0.002)


def test_the_estimate_is_the_95th_percentile() -> None:
    runs = [a_run(peak) for peak in range(10_000, 10_100)]
    assert estimated(a_spec(), *runs).mib == 10_094


def test_it_looks_at_no_file_itself(tmp_path: Path) -> None:
    """Because the daemon is root: only what the user's own process reports counts."""
    (tmp_path / "train.py").touch()
    server = a_server(runs=[a_run(cwd=str(tmp_path), ended_at=900.0)])
    estimate = history(Settings(), server).estimate(a_spec(cwd=str(tmp_path)))
    assert isinstance(estimate, Estimate)
    assert estimate.notes == ("n=1",)
    assert [argv[-1] for argv in server.tried] == ["train.py"]


def test_peaks_that_scatter_widen_it() -> None:
    calm = estimated(a_spec(), *[a_run(peak) for peak in (9_990, 10_000, 10_000, 10_010)] * 5)
    wild = estimated(a_spec(), *[a_run(peak) for peak in (6_000, 8_000, 9_000, 10_010)] * 5)
    assert calm.mib == wild.mib == 10_010
    assert wild.safe_mib - wild.mib > 4 * (calm.safe_mib - calm.mib)


def test_runs_that_ended_early_teach_nothing() -> None:
    full = [a_run(10_000)] * 9
    early = [a_run(700), a_run(900), a_run(1_200), a_run(5_000)]
    assert estimated(a_spec(), *full, *early).mib == 10_000
    assert estimated(a_spec(), *full, *early).safe_mib <= estimated(a_spec(), *full).safe_mib


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": 1001},
        {"cwd": "/home/ada/other"},
        {"gpus": 2},
        {"batch_size": 64},
        {"conda_env": "torch"},
        {"env": (("VIRTUAL_ENV", "/home/ada/env"),)},
        {"env": (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)},
    ],
)
def test_runs_of_other_users_places_and_environments_are_not_its_own(
    changes: dict[str, object],
) -> None:
    assert "no earlier run" in refused(a_spec(), a_run(**changes))
    assert "no earlier run" in refused(a_spec(**changes), a_run())
    assert estimated(a_spec(**changes), a_run(), a_run(9_000, **changes)).mib == 9_000


def test_other_variables_do_not_matter() -> None:
    assert estimated(a_spec(env=(("TERM", "xterm"),)), a_run()).mib == 8_000


def test_arguments_that_changed_are_named() -> None:
    def command(line: str) -> tuple[str, ...]:
        return tuple(line.split())

    past = [a_run(argv=command("python train.py --model a -b 64"))] * 3
    past += [a_run(argv=command("python train.py --model b -b 64"))]
    past += [a_run(argv=command("python eval.py --model c"))]
    why = refused(a_spec(argv=command("python train.py --model a -b 128")), *past)
    assert why == "no earlier run with these arguments: 3 runs differ in b"
    why = refused(a_spec(argv=command("python eval.py --model c --amp")), *past)
    assert why == "no earlier run with these arguments: one run differs in amp"
    assert refused(a_spec(argv=command("python new.py")), *past) == "no earlier run of this command"


@pytest.mark.parametrize("line", ["python train.py", "python -m train", "run --config c.yaml"])
def test_a_script_that_was_changed_since(tmp_path: Path, line: str) -> None:
    for name in ("train.py", "c.yaml"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000, 1000))
    own = {"cwd": str(tmp_path), "argv": tuple(line.split())}
    spec = a_spec(**own)
    old = [a_run(6_000, ended_at=900 + n, **own) for n in range(4)]
    new = a_run(9_000, ended_at=1001, **own)
    answer = tmp_path / "answer"

    def told(*runs: Run) -> Estimate:
        estimate = history(Settings(), Here(answer, runs)).estimate(spec)
        assert isinstance(estimate, Estimate)
        return estimate

    assert told(new).notes == ("n=1",)
    both = told(new, *old)
    assert (both.mib, both.notes[0]) == (9_000, "n=1")
    assert both.notes[1].endswith("was changed after 4 runs")

    outdated = told(*old)
    current = told(*[a_run(6_000, ended_at=1001, **own)] * 4)
    assert outdated.mib == current.mib
    assert outdated.safe_mib - outdated.mib > 2 * (current.safe_mib - current.mib)
    refusal = current_history(Settings(), Here(answer, old)).estimate(spec)
    assert isinstance(refusal, Refusal)
    assert refusal.why.endswith("was changed after all 4 runs")
    assert isinstance(current_history(Settings(), Here(answer, [new])).estimate(spec), Estimate)
    assert unchecked_history(Settings(), a_server(runs=old)).estimate(spec) == current
