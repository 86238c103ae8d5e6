"""Job scripts that call srun, where there is no Slurm: jobs get one of ours, the last on PATH."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from carmad.attempt.environment import SHIMS
from tests.daemon import CARMA, NO_KERNELS, Carmad, running
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    folder = tmp_path_factory.mktemp("carmad")
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").symlink_to(CARMA[0])
    with running(folder, **NO_KERNELS, CARMA_HOST__CPUS="8") as carmad:
        yield carmad


def srun(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"/usr/bin:/bin:{SHIMS}", "KEPT": "1", "CARMA_PYTHON": sys.executable}
    env |= {"CARMA_JOB_ID": "7", "SLURM_JOB_ID": "7"}
    return subprocess.run(
        ["srun", *words],
        executable=f"{SHIMS}/srun",
        env=env,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "options",
    [
        *("", "-n 1", "-n1", "--ntasks=1", "--ntasks 1 --cpus-per-task 4", "-c4 -u", "--"),
        *("--mpi=pmix --export=ALL", "--kill-on-bad-exit", "-p gpu --gres=gpu:1 --pty"),
        *("-G 1 -N 1 -t 10 -J name", "--cpu-bind none --gpus-per-task 1", "--propagate --x11"),
    ],
)
def test_srun_runs_the_command_whatever_its_options(options: str) -> None:
    ran = srun(*options.split(), "sh", "-c", "echo $1:$PATH; exit 7", "x", "--a b")
    assert (ran.returncode, ran.stdout) == (7, "--a b:/usr/bin:/bin\n"), ran
    assert not ran.stderr or (
        ran.stderr.startswith("srun: ignored: ") and ran.stderr.count("\n") == 1
    )


def test_srun_heeds_what_changes_the_command() -> None:
    options = ("--chdir=/tmp", "--export=ALL,A=b c", "-n", "2")
    ran = srun(*options, "sh", "-c", "echo $PWD $A $KEPT")
    assert ran.stdout == "/tmp b c 1\n" * 2, ran
    for words in ((), ("-n",), ("--ntasks",), ("--multi-prog", "x"), ("-n2", "--mpi=pmix", "x")):
        assert srun(*words).returncode == 1


def test_a_script_of_slurm_runs_with_srun(daemon: Carmad) -> None:
    (daemon.work / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -J slurm -p gpu --nodes=1 --gres=gpu:2 -o said-%j\n"
        'srun -n 1 --mpi=none sh -c \'echo "$SLURM_JOB_NAME $SLURM_GPUS_ON_NODE $0"\' "a b"\n',
    )
    path = daemon.folder / "without-slurm"
    path.mkdir()
    (path / "sh").symlink_to("/bin/sh")
    id = int(daemon.carma("submit", "--parsable", "--export", f"PATH={path}", "job.sh"))
    daemon.ended(id)
    assert (daemon.work / f"said-{id}").read_text() == "slurm 2 a b\n"


def sbatch(daemon: Carmad, *words: str, shell: str = "", **env: str) -> None:
    """Submit it, and wait until it has ended. `shell`: what its shell does first."""
    program = daemon.folder / "bin" / "sbatch"
    subprocess.run(
        ["bash", "-c", f'{shell} exec "$@"', "bash", str(program), "--wait", *words],
        env=daemon.env | {"CARMA_SOCKET": daemon.socket} | env,
        cwd=daemon.work,
        check=True,
        timeout=PATIENCE_S,
    )


def test_without_propagate_a_job_has_the_daemons_limits(daemon: Carmad) -> None:
    words = ("-o", "none.out", "--propagate=NONE", "--wrap", "ulimit -Sn")
    sbatch(daemon, *words, shell="ulimit -Sn 3456;")
    assert (daemon.work / "none.out").read_text() != "3456\n"


def test_what_the_user_has_on_pythons_path_is_the_users_own(daemon: Carmad) -> None:
    """Neither sbatch nor our srun imports it; a job gets it."""
    for name in ("cli", "carma_slurm", "types", "logging", "json"):
        (daemon.work / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    step = ": srun; echo $PYTHONPATH; ${PATH##*:}/srun echo step"
    sbatch(daemon, "-o", "path.out", "--wrap", step, PYTHONPATH=".")
    assert (daemon.work / "path.out").read_text() == ".\nstep\n"


def test_a_job_of_a_job_has_its_own_settings(daemon: Carmad) -> None:
    (daemon.work / "inner.sh").write_text(
        "#!/bin/sh\necho $OMP_NUM_THREADS ${XLA_PYTHON_CLIENT_PREALLOCATE-none}; echo $PATH\n"
    )
    inner = f"{daemon.folder}/bin/sbatch --wait --gpus=1 --exclusive -c 4 -o inner.out inner.sh"
    id = daemon.sh(f": srun; {inner}", gpus=1, cpus=1, memory_mib=1000)
    assert daemon.ended(id)["state"] == "succeeded", daemon.output(id)
    settings, path = (daemon.work / "inner.out").read_text().splitlines()
    assert settings == "4 none" and SHIMS not in path
