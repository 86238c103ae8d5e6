"""The recipes of docs/guides/tools.md that can run here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, ROOT, Carmad, running

GUIDE = (ROOT / "docs/guides/tools.md").read_text()


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("carmad"), **NO_KERNELS) as daemon:
        yield daemon


def block(mark: str) -> str:
    """The block of code with this text."""
    found = [code for code in re.findall(r"```\w+\n(.*?)```", GUIDE, re.DOTALL) if mark in code]
    assert len(found) == 1, (mark, found)
    return str(found[0])


def test_optuna_workers_share_a_study(carmad: Carmad) -> None:
    optuna = pytest.importorskip("optuna")
    (carmad.work / "tune.py").write_text(block("# tune.py").replace("n_trials=10", "n_trials=3"))
    carmad.carma("submit", "-W", "-G", "0", "-a", "0-1", "--", sys.executable, "tune.py")
    journal = optuna.storages.journal.JournalFileBackend(str(carmad.work / "tune.log"))
    study = optuna.load_study(study_name="tune", storage=optuna.storages.JournalStorage(journal))
    assert len(study.trials) == 6


def test_tags_from_the_environment_and_afterwards(carmad: Carmad) -> None:
    script = block("WANDB_TAGS").replace("exec python train.py", "env")
    (carmad.work / "train.sh").write_text(script)
    label = carmad.carma("submit", "-W", "--parsable", "-J", "resnet", "train.sh").strip()
    output = (carmad.work / f"carma-{label}.out").read_text()
    said = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert said["WANDB_NAME"] == f"resnet-{label}"
    assert said["WANDB_TAGS"] == f"carma,job-{label}"
    assert said["WANDB_NOTES"] == f"CARMA job {label} on {said['CUDA_VISIBLE_DEVICES']}"

    program = block("carma show 42").partition("python -c '")[2].rpartition("'")[0]
    shown = carmad.carma("show", label, "--json")
    told = subprocess.run(
        [sys.executable, "-c", program], input=shown, capture_output=True, text=True
    )
    tags = json.loads(told.stdout)
    assert tags["carma_job"] == label and tags["carma_neighbours"] == 0, told


def test_mlflow_lines(tmp_path: Path) -> None:
    tags: dict[str, str] = {}
    program = f"import json, os\nclass mlflow: set_tags = print\n{block('mlflow.set_tags')}"
    env = {"CARMA_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "GPU-1"}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    tags = eval(ran.stdout)
    assert tags == {"carma_job_id": "7", "cuda_visible_devices": "GPU-1"}
