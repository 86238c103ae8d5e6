"""Slurm's commands, as pip installs them with CARMA."""

from __future__ import annotations

from pathlib import Path

from carma_slurm import VERSION
from tests.packaging.test_installed import Environment, wheel

__all__ = ["wheel"]  # a fixture


def test_the_words_and_the_stand_in_come_with_the_wheel(wheel: Path, tmp_path: Path) -> None:
    env = Environment(tmp_path / "env")
    env.install(wheel)
    assert "slurm-commands" in env.run("carma", "help", "--all")
    env.python.with_name("sbatch").symlink_to("carma")
    assert env.run("sbatch", "--version") == f"{VERSION}\n"
    own = f"CARMA_PYTHON={env.python} SLURM_JOB_ID=7 CARMA_JOB_ID=7"
    step = f"{own} {env.packages}/carmad/hooks/bin/srun -n 1 echo a step"
    assert env.run("/bin/sh", "-c", step) == "a step\n"
