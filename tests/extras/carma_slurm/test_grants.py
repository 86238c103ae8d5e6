"""Which submissions are part of a job of Slurm's, and what those may ask for; without a Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carma_slurm import grants
from carma_slurm.grants import Grants, job_in
from carma_testing import a_spec
from carmad.config import Cluster
from carmad.core.jobs.spec import Allocation, JobSpec
from carmad.errors import CarmaError

ITS = Allocation("Slurm", 17)


@pytest.fixture
def grant(monkeypatch: pytest.MonkeyPatch) -> Grants:
    """Job 17, of which process 5 is part, has 12 GiB."""
    monkeypatch.setattr(grants, "job_of", {5: 17, 6: None}.get)
    monkeypatch.setattr(grants, "grant_gib", lambda cluster, job: 12)
    return Grants(Cluster("slurm"))


def run(gib: int, allocation: Allocation | None = ITS, gpus: int = 1) -> JobSpec:
    spec = a_spec(memory_mib=gib << 10, gpus=gpus, interactive=True)
    return replace(spec, allocation=allocation)


def test_runs_in_a_job_of_slurms_share_what_it_has(grant: Grants) -> None:
    room = grant.check(run(8)).condition
    assert room
    room([run(8, None), run(8, Allocation("Slurm", 18)), run(8, gpus=0)])
    with pytest.raises(CarmaError, match=r"gave job 17 12 GiB .* its runs here ask for 13"):
        room([run(5)])
    alone = grant.check(run(13)).condition
    assert alone
    with pytest.raises(CarmaError, match="this run asks for 13"):
        alone([])


def test_others_are_let_pass(grant: Grants) -> None:
    assert (grant.allocation(5), grant.allocation(6)) == (ITS, None)
    for spec in (run(8, None), run(8, gpus=0), run(8, Allocation("Flux", 17))):
        found = grant.check(spec)
        assert found.spec == spec and found.condition is None


@pytest.mark.parametrize(
    "cgroup",
    [
        "5:memory:/slurm/uid_1000/job_17/step_0/task_0",
        "5:freezer:/slurm_node3/uid_1000/job_17/step_batch",
        "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0",
        "0::/system.slice/node3_slurmstepd.scope/job_17/step_batch/user/task_special",
    ],
)
def test_a_slurm_job_is_known_by_its_cgroup(cgroup: str) -> None:
    assert job_in(f"1:name=systemd:/\n{cgroup}\n".encode()) == 17


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_17/step_0",
        "0::/user.slice/slurm/uid_1000/job_17",
        "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",  # Slurm 26.05
    ],
)
def test_other_cgroups_say_nothing(cgroup: str) -> None:
    assert job_in(f"{cgroup}\n".encode()) is None
