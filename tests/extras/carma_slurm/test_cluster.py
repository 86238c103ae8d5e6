"""CARMA on the nodes of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras.carma_slurm import slurm
from tests.waiting import until

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=f"needs {slurm.missing()}")


def test_the_cluster_of_the_tests_runs_a_job_on_each_node(tmp_path: Path) -> None:
    with slurm.cluster(tmp_path, node="Gres=gpumem:80", extra="GresTypes=gpumem\n") as made:
        script = "--wrap=echo $CARMA_SOCKET"
        jobs = [made.sbatch("--gres=gpumem:60", script) for _ in made.nodes]
        until(lambda: set(made.jobs().values()) == {"COMPLETED"}, "all jobs")
        sockets = {(tmp_path / f"{job}.out").read_text().strip() for job in jobs}
        assert sockets <= {f"{tmp_path}/{name}/sock" for name in made.nodes}
