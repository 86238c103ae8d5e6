"""A sweep of Hydra's, with its submitit launcher as it is, on CARMA."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, running

pytest.importorskip("hydra_plugins.hydra_submitit_launcher")

APP = """\
import json, hydra, submitit

@hydra.main(version_base=None, config_path=None)
def main(config):
    job = submitit.JobEnvironment()
    with open(f"told-{config.lr}.json", "w") as file:
        json.dump([config.lr, job.job_id], file)

main()
"""


def test_a_sweep_is_an_array_of_carma(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with running(tmp_path, **NO_KERNELS) as carmad:
        asked = ["hydra/launcher=submitit_carma", "+hydra.launcher.memory_mib=4000"]
        swept = subprocess.run(
            [sys.executable, "app.py", "-m", *asked, "hydra.sweep.dir=sweep", "+lr=0.1,0.01"],
            cwd=tmp_path,
            env=carmad.env | {"CARMA_SOCKET": carmad.socket},
            capture_output=True,
            text=True,
        )
        assert swept.returncode == 0, swept
        told = [json.loads((tmp_path / f"told-{lr}.json").read_text()) for lr in ("0.1", "0.01")]
        assert told == [[0.1, "1_0"], [0.01, "1_1"]]
        for task in ("1_0", "1_1"):
            job = carmad.get(f"/v1/jobs/{task}")
            assert (job["state"], job["memory"]["declared_mib"]) == ("succeeded", 4000)


def test_without_the_launcher_hydra_starts_as_ever(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['hydra_plugins.hydra_submitit_launcher'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name.endswith('submitit_launcher')"
        " else real(name, *rest)\n"
        "import hydra_plugins.carma_launcher, sys\n"
        "print('hydra' in sys.modules, 'submitit' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "False False\n", ran
