"""What jobs get: the environment, the command line, the names of their logs."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import changed
from carmad.added import ADDED
from carmad.attempt.environment import (
    NO_MPS,
    SHIMS,
    at_a_terminal,
    command,
    expand,
    job_environment,
    log_paths,
    scrub,
)
from carmad.core.jobs.attempt import GpuId, JobId, Mode
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import Allocation, ArrayTask, Script
from tests.attempts import ME, Bench, make_job

GPUS = (GpuId("GPU-aaa"), GpuId("GPU-bbb"))


def job(**spec: Any) -> Job:
    return make_job(Path("/work"), "true", id=7, attempt=2, **spec)


@pytest.mark.parametrize(
    "name",
    [
        *("SSH_AUTH_SOCK", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "TMUX_PANE", "_"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CARMA_JOB_ID", "SLURM_JOB_ID"),
        *("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "PWD"),
        *("", "a=b"),
    ],
)
def test_what_is_scrubbed(name: str) -> None:
    assert scrub({name: "x", "KEPT": "y"}) == {"KEPT": "y"}


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH"),
        *("LD_PRELOAD", "PYTHONPATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "OMP_NUM_THREADS"),
        *("TERM", "LANG", "WORK_DIR", "BASH_FUNC_module%%", "HF_TOKEN", "PAD_TOKEN_ID"),
    ],
)
def test_what_is_kept(name: str) -> None:
    assert scrub({name: "x"}) == {name: "x"}


def test_the_job_learns_its_ids() -> None:
    env = job_environment(job(array=ArrayTask(JobId(5), 2)), GPUS)
    for prefix in ("CARMA", "SLURM"):
        assert env[f"{prefix}_JOB_ID"] == "7"
        assert env[f"{prefix}_ARRAY_JOB_ID"] == "5"
        assert env[f"{prefix}_ARRAY_TASK_ID"] == "2"
        assert env[f"{prefix}_RESTART_COUNT"] == "1"
    assert env["CARMA_JOB_NAME"] == "test"
    assert "CARMA_ARRAY_JOB_ID" not in job_environment(job(), GPUS)


def test_the_job_gets_slurms_variables_that_promise_no_tasks() -> None:
    array = ArrayTask(JobId(5), 2, tasks=3, least=1, most=9)
    env = job_environment(job(array=array), GPUS)
    given = {name[6:]: value for name, value in env.items() if name.startswith("SLURM_")}
    assert given == {
        "JOB_ID": "7",
        "JOB_NAME": "test",
        "RESTART_COUNT": "1",
        "ARRAY_JOB_ID": "5",
        "ARRAY_TASK_ID": "2",
        "ARRAY_TASK_COUNT": "3",
        "ARRAY_TASK_MIN": "1",
        "ARRAY_TASK_MAX": "9",
        "GPUS_ON_NODE": "2",
        "SUBMIT_DIR": "/work",
        "NNODES": "1",
        "JOB_NUM_NODES": "1",
        "JOB_NODELIST": socket.gethostname(),
    }
    assert "SLURM_JOB_USER" not in env
    own = job(env=(("SLURM_SUBMIT_DIR", "/home/me"), ("SLURM_SUBMIT_HOST", "here")))
    of_sbatch = job_environment(own, GPUS, indices=(0, 3))
    assert of_sbatch["SLURM_JOB_GPUS"] == "0,3"
    assert of_sbatch["SLURM_SUBMIT_DIR"] == "/home/me"
    assert (of_sbatch["SLURM_JOB_USER"], of_sbatch["SLURM_JOB_UID"]) == (ME.pw_name, str(ME.pw_uid))


def test_only_jobs_that_call_srun_get_ours_and_last() -> None:
    path = "/usr/bin:/bin"
    env = (("PATH", path),)
    assert job_environment(job(env=env), GPUS)["PATH"] == path
    script = Script("", 0, 1, "#!/bin/sh\nsrun python train.py\n")
    for calls in (
        job(env=env, script=script),
        make_job(Path("/work"), "sh", "-c", "srun x", env=env),
    ):
        made = job_environment(calls, GPUS)
        assert made["PATH"] == at_a_terminal(made)["PATH"] == f"{path}:{SHIMS}"
    assert "PATH" not in at_a_terminal(job_environment(job(env=env), GPUS)), "the shell's own stays"


def test_the_user_is_itself() -> None:
    env = job_environment(job(env=(("USER", "root?"), ("PWD", "/elsewhere"))), GPUS)
    assert (env["USER"], env["LOGNAME"]) == (ME.pw_name, ME.pw_name)
    assert (env["HOME"], env["SHELL"]) == (ME.pw_dir, ME.pw_shell)
    assert env["PWD"] == "/work"
    assert job_environment(job(env=(("HOME", "/scratch"),)), GPUS)["HOME"] == "/scratch"
    assert job_environment(job(uid=2**31 - 7), GPUS)["HOME"] == "/"


@pytest.mark.parametrize(("gpus", "visible"), [((), ""), (GPUS, "GPU-aaa,GPU-bbb")])
def test_only_the_jobs_gpus_are_visible(gpus: tuple[GpuId, ...], visible: str) -> None:
    env = job_environment(job(env=(("CUDA_VISIBLE_DEVICES", "0,1,2,3"),)), gpus)
    assert env["CUDA_VISIBLE_DEVICES"] == visible
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("spec", "mode", "visible"),
    [
        ({}, Mode.STREAMS, "3,1"),
        ({}, Mode.EXCLUSIVE, "3,1"),
        ({}, Mode.MPS, "GPU-aaa,GPU-bbb"),  # the server has a numbering of its own
        ({"container": "torch"}, Mode.STREAMS, "GPU-aaa,GPU-bbb"),  # it has only its own GPUs
        # a cgroup may hide the others
        ({"allocation": Allocation("Slurm", 7)}, Mode.STREAMS, "GPU-aaa,GPU-bbb"),
    ],
)
def test_indices_name_gpus_only_where_all_are_seen(
    spec: dict[str, Any], mode: Mode, visible: str
) -> None:
    known = {GPUS[0]: 3, GPUS[1]: 1, GpuId("GPU-ccc"): 0}
    one = changed(job(**spec), mode=mode)
    assert job_environment(one, GPUS, cuda_indices=known)["CUDA_VISIBLE_DEVICES"] == visible
    part = {GPUS[0]: 3}
    assert job_environment(one, GPUS, cuda_indices=part)["CUDA_VISIBLE_DEVICES"] == ",".join(GPUS)
    assert job_environment(one, (), cuda_indices=known)["CUDA_VISIBLE_DEVICES"] == ""


def test_without_mps_no_server_is_found() -> None:
    theirs = (("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps"), ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"))
    env = job_environment(job(env=theirs), GPUS)
    assert {key: env[key] for key in env if "MPS" in key} == {"CUDA_MPS_PIPE_DIRECTORY": NO_MPS}
    assert not Path(NO_MPS).exists()


def test_under_mps_the_owner_s_word_limits_each_visible_gpu() -> None:
    word = Estimate(900, "declared", high=1000, firm=True)
    placed = changed(job(), mode=Mode.MPS, estimate=word)
    pipe, logs = Path("/run/carma/mps/0"), Path("/var/log/mps")
    env = job_environment(placed, GPUS, mps_pipe=pipe, mps_log=logs)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(pipe)
    assert env["CUDA_MPS_LOG_DIRECTORY"] == str(logs)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "GPU-aaa=1000M,GPU-bbb=1000M"
    assert env["CARMA_GPU_MEM_MB"] == "900"
    retried = replace(placed, retry=Retry("oom", margin_mib=500))
    env = job_environment(retried, GPUS[:1], mps_pipe=pipe)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "GPU-aaa=1500M"


def test_a_guess_limits_nobody() -> None:
    guessed = changed(job(), mode=Mode.MPS, estimate=Estimate(900, "horus"))
    env = job_environment(guessed, GPUS, mps_pipe=Path("/run/mps"))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in env
    assert env["CARMA_GPU_MEM_MB"] == "900", "it may still be told"


def test_without_an_estimate_there_is_no_limit() -> None:
    env = job_environment(job(), GPUS, mps_pipe=Path("/run/mps"))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in env
    assert "CARMA_GPU_MEM_MB" not in env


def test_a_job_that_may_be_split_is_told_its_part() -> None:
    estimate = Estimate(900, "declared", high=1000, batch_mib=800, firm=True)
    whole = changed(job(batch_size=64), mode=Mode.MPS, estimate=estimate)
    split = changed(whole, accumulation=4)
    for placed, steps, part, mib, limit in (
        (whole, "1", "64", 900, 1000),
        (split, "4", "16", 300, 400),
    ):
        env = job_environment(placed, GPUS[:1], mps_pipe=Path("/run/mps"))
        assert (env["CARMA_ACCUMULATION_STEPS"], env["CARMA_BATCH_SIZE"]) == (steps, part)
        assert env["CARMA_GPU_MEM_MB"] == str(mib)
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"GPU-aaa={limit}M"
    odd = job_environment(job(batch_size=8, env=(("CARMA_BATCH_SIZE", "999"),)), GPUS)
    assert odd["CARMA_BATCH_SIZE"] == "8", "CARMA's word counts"


def test_one_that_may_not_is_told_nothing() -> None:
    env = job_environment(job(), GPUS)
    assert not {"CARMA_ACCUMULATION_STEPS", "CARMA_BATCH_SIZE"} & env.keys()


def test_frameworks_share_unless_the_job_is_alone_or_the_user_has_chosen() -> None:
    def chosen(found: Job) -> tuple[str | None, str | None]:
        env = job_environment(found, GPUS)
        return env.get("XLA_PYTHON_CLIENT_PREALLOCATE"), env.get("TF_FORCE_GPU_ALLOW_GROWTH")

    assert chosen(changed(job(), mode=Mode.STREAMS)) == ("false", "true")
    assert chosen(changed(job(), mode=Mode.EXCLUSIVE)) == (None, None)
    assert chosen(changed(job(), mode=Mode.MIG)) == (None, None)
    assert chosen(job(exclusive=True)) == (None, None)
    own = job(env=(("XLA_PYTHON_CLIENT_MEM_FRACTION", ".3"), ("TF_FORCE_GPU_ALLOW_GROWTH", "0")))
    assert chosen(own) == (None, "0")


def test_what_carma_adds_is_known_and_taken_back() -> None:
    """Also from a list of folders; what its user has changed since is the user's own."""
    script = Script("", 0, 1, "#!/bin/sh\nsrun python train.py\n")
    shell = {"PATH": "/bin", "PYTHONPATH": "/mine"}
    own = {"cpus": 2, "watch_stages": True, "script": script}
    env = job_environment(changed(job(env=tuple(shell.items()), **own), mode=Mode.STREAMS), GPUS)
    added = {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "XLA_PYTHON_CLIENT_PREALLOCATE", "MASTER_PORT"}
    assert added <= env.keys()
    assert {*scrub(env)} == {*shell, "HOME", "SHELL", "USER", "LOGNAME"}
    assert scrub(env).items() >= shell.items()
    assert scrub(env | {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    for nonsense in ("[nonsense", "[3]", '{"A": 3}', "[" * 100_000):
        assert scrub({"A": "1", ADDED: nonsense}) == {"A": "1"}
    chosen = {"PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "3"}
    env = job_environment(job(env=tuple(chosen.items()), cpus=2), GPUS)
    assert env.items() >= chosen.items() and scrub(env).items() >= chosen.items()


def test_each_job_has_a_port_and_no_other_sign_of_several_processes() -> None:
    ports = {
        job_environment(make_job(Path("/"), "x", id=id), ())["MASTER_PORT"] for id in range(99)
    }
    assert len(ports) == 99 and all(20_000 <= int(port) < 27_000 for port in ports)
    env = job_environment(job(), GPUS)
    assert env["PET_MASTER_PORT"] == env["MASTER_PORT"]
    assert not {"MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK"} & env.keys()
    for name in ("MASTER_PORT", "PET_MASTER_PORT"):
        env = job_environment(job(env=((name, "4"),)), GPUS)
        assert {each: env[each] for each in env if "MASTER" in each} == {name: "4"}


def test_log_names() -> None:
    plain = job(name="a/b", stdout="%x-%j-%A_%a-%u-%%j-%q-%")
    assert expand(plain.spec.stdout, plain) == f"a_b-7-7_0-{ME.pw_name}-%j-%q-%"
    task = job(array=ArrayTask(JobId(5), 2), stdout="logs/%A_%a.out", stderr="/var/%j.err")
    assert log_paths(task) == ("/work/logs/5_2.out", "/var/7.err")
    assert expand("%4j-%999999999a-%4x%4%", task) == f"0007-0000000002-{task.spec.name}%"
    for name in ("./logs//%j.out", "/var/.//log/../x", "a./.b/..", "//x"):
        path = str(Path("/work", expand(name, task)))
        assert log_paths(job(stdout=name))[0].lstrip("/") == path.lstrip("/")
    assert log_paths(job()) == ("/work/carma-7.out", "/work/carma-7.out")


FAKE_CONDA = """#!/bin/sh
[ "$1" = shell.posix ] || exit 1
cat <<'HOOK'
conda() {
    case "$2" in
        good|/envs/good) export CONDA_DEFAULT_ENV="$2" PATH="$FAKE_ENV/bin:$PATH" ;;
        *) echo "EnvironmentNameNotFound: $2" >&2; return 1 ;;
    esac
}
HOOK
"""


@pytest.fixture
def conda(tmp_path: Path) -> tuple[Bench, dict[str, str]]:
    bench = Bench(tmp_path)
    binaries = tmp_path / "env/bin"
    binaries.mkdir(parents=True)
    (binaries / "only-here").write_text('#!/bin/sh\nprintf "<%s>" "$CONDA_DEFAULT_ENV" "$@"\n')
    (tmp_path / "conda").write_text(FAKE_CONDA)
    for program in (binaries / "only-here", tmp_path / "conda"):
        program.chmod(0o755)
    env = {"CONDA_EXE": str(tmp_path / "conda"), "FAKE_ENV": str(tmp_path / "env")}
    return bench, {**env, "PATH": os.environ["PATH"]}


@pytest.mark.parametrize("name", ["good", "/envs/good"])
def test_a_conda_environment_is_activated(conda: tuple[Bench, dict[str, str]], name: str) -> None:
    bench, env = conda
    words = ("two words", "", "-x", "$HOME")
    end = bench.run("only-here", *words, conda_env=name, env=tuple(env.items()))
    assert (end["code"], end["error"]) == (0, "")
    assert bench.lines() == [f"<{name}><two words><><-x><$HOME>"]


@pytest.mark.parametrize(
    ("argv", "change", "words"),
    [
        (("only-here",), {"conda_env": "bad"}, "cannot activate the conda environment bad"),
        (("not-there",), {}, "cannot run not-there: command not found"),
        (("only-here",), {"CONDA_EXE": "/no/conda"}, "conda was not found"),
    ],
)
def test_a_conda_environment_that_does_not_work(
    conda: tuple[Bench, dict[str, str]], argv: tuple[str, ...], change: dict[str, str], words: str
) -> None:
    bench, env = conda
    name = change.pop("conda_env", "good")
    end = bench.run(*argv, conda_env=name, env=tuple((env | change).items()))
    assert words in end["error"]
    assert end["hint"]


def test_without_conda_the_command_is_the_users_own() -> None:
    assert command(job()) == ("true",)


def test_the_part_of_the_batch_in_the_command() -> None:
    argv = ("train", "--batch={batch_size}", "{batch_size}x{batch_size}", "{other} {}")
    split = changed(make_job(Path("/work"), *argv, batch_size=48), accumulation=4)
    assert command(split) == ("train", "--batch=12", "12x12", "{other} {}")
    in_conda = replace(split, spec=replace(split.spec, conda_env="ml"))
    assert command(in_conda)[-4:] == command(split)
    assert command(make_job(Path("/work"), *argv)) == argv, "who told no batch size is left alone"
