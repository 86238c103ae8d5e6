"""Slurm decides where, CARMA decides with whom: jobs of a real Slurm, placed by their node's
carmad."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import slurm
from tests.daemon import CARMA, NO_KERNELS, Carmad, Json, train, until

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=f"needs {slurm.missing()}")


@dataclass
class Site:
    slurm: slurm.Cluster
    node: Carmad

    def run(self, *words: str, **env: str) -> int:
        """Submit to Slurm a script that runs these words by `carma run`."""
        command = " ".join(f"'{word}'" for word in (*CARMA, "run", *words))
        quick = {name: value for name, value in self.node.env.items() if name[:6] != "CARMA_"}
        return self.slurm.sbatch("--requeue", f"--wrap={command}", env=quick | env)

    def jobs(self, slurm_job: int) -> list[Json]:
        found = self.node.get(f"/v1/jobs?slurm_job={slurm_job}")["jobs"]
        return list(found)

    def job(self, slurm_job: int, *states: str) -> Json:
        """The CARMA job of a Slurm job, once it is in one of these states."""
        found: list[Json] = []

        def there() -> bool:
            found[:] = self.jobs(slurm_job)
            return bool(found) and found[0]["state"] in (states or (found[0]["state"],))

        until(there, f"a job of Slurm job {slurm_job} to be {states}, not {found}")
        return found[0]

    def output(self, slurm_job: int) -> str:
        return (self.slurm.folder / f"{slurm_job}.out").read_text()

    def state(self, slurm_job: int) -> str:
        return self.slurm.jobs()[slurm_job]

    def await_state(self, slurm_job: int, state: str) -> None:
        until(lambda: self.state(slurm_job) == state, f"{slurm_job} to be {state}")

    def no_gpu_is_held(self) -> None:
        until(lambda: not any(gpu["jobs"] for gpu in self.node.gpus()), "free GPUs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("slurm")
    with ExitStack() as stack:
        node = "Gres=gpumem:80"
        made = stack.enter_context(
            slurm.cluster(folder, nodes=1, node=node, extra="GresTypes=gpumem\n")
        )
        daemon = Carmad(folder / "n1", "2xA100-40GB", **NO_KERNELS)
        stack.callback(daemon.clear_away)
        daemon.start()
        yield Site(made, daemon)


@pytest.fixture(autouse=True)
def _nothing_left(site: Site) -> Iterator[None]:
    yield
    site.slurm.run("scancel", "-f", "-u", "root")
    if not site.node.alive:
        site.node.start()
    until(lambda: not site.slurm.run("squeue", "-h"), "the end of Slurm's jobs")
    until(lambda: not site.node.get("/v1/jobs")["jobs"], "the end of CARMA's jobs")


def test_a_slurm_job_runs_where_carma_says_and_stays_slurms(site: Site) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID; echo oops >&2; exit 3"
    number = site.run("--gpu-mem", "9G", "--", "sh", "-c", script)
    site.await_state(number, "FAILED")
    said = site.output(number)
    (gpu, known), *_ = (line.split() for line in said.splitlines() if line.startswith("GPU-"))
    assert gpu in {each["id"] for each in site.node.gpus()} and int(known) == number, said
    assert "oops" in said
    job = site.node.job(1)
    assert (job["slurm_job"], job["state"], job["exit"]["code"]) == (number, "failed", 3)
    assert str(number) in site.node.carma("show", "1")
    assert f"Slurm job {number}" in site.node.carma("logs", "1", rc=1)


def test_what_ran_out_of_memory_is_run_again_in_the_same_slurm_job(
    site: Site, tmp_path: Path
) -> None:
    flag = tmp_path / "tried"
    oom = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB"
    script = f'if [ -e {flag} ]; then echo fits; else touch {flag}; echo "{oom}" >&2; exit 1; fi'
    beside = site.node.submit(
        *train(memory_mib=3000, seconds=600, warmup=0), memory_mib=3000, gpus=2
    )
    number = site.run("--gpu-mem", "3G", "--", "sh", "-c", script)
    site.await_state(number, "COMPLETED")
    said = site.output(number)
    assert "is run again" in said and "fits" in said and oom in said, said
    (job,) = site.node.get("/v1/history?states=succeeded&limit=1")["jobs"]
    assert job["slurm_job"] == number and job["attempt"] == 2
    assert job["failures"][0]["cause"] == "gpu_oom"
    site.node.cancel(beside)
