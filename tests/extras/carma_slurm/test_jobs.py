"""Slurm's commands as programs, on a real daemon."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from carma_slurm import WORDS
from carma_slurm.words.fields import HOST
from tests.daemon import CARMA, NO_KERNELS, Carmad, running, train
from tests.functions import add
from tests.waiting import PATIENCE_S, until


class Slurm:
    """The commands by their names, in the daemon's work folder."""

    def __init__(self, carmad: Carmad, links: Path) -> None:
        self.carmad = carmad
        self.env = carmad.env | {
            "PATH": f"{links}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CARMA_SOCKET": carmad.socket,
        }

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.carmad.work,
            env=self.env | options.pop("env", {}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **options,
        )

    def say(self, *words: str, **options: Any) -> str:
        done = self.run(*words, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sbatch(self, *words: str, **options: Any) -> int:
        return int(self.say("sbatch", "--parsable", *words, **options))

    def script(self, *words: str, lines: str) -> int:
        return self.sbatch(*words, input=f"#!/bin/sh\n{lines}\n")

    def sacct(self, job: int, *fields: str) -> list[str]:
        said = self.say("sacct", "-nPXj", str(job), "-o", ",".join(fields or ("State",)))
        return said.splitlines()

    def output(self, job: int) -> str:
        return (self.carmad.work / f"slurm-{job}.out").read_text()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    links = tmp_path_factory.mktemp("bin")
    for word in WORDS:
        (links / word).symlink_to(CARMA[0])
    with running(tmp_path_factory.mktemp("carmad"), **NO_KERNELS, CARMA_HOST__CPUS="8") as carmad:
        yield Slurm(carmad, links)


def test_a_job_has_slurms_environment_and_its_steps_theirs(slurm: Slurm) -> None:
    steps = "srun -n 3 sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS/$SLURM_LOCALID > step-$SLURM_PROCID'"
    lines = f"echo $SLURM_JOBID $SLURM_NODELIST $SLURM_NTASKS; {steps}"
    lines += "; srun -n 2 -o '%j-%t.out' sh -c 'echo $SLURM_STEP_NUM_TASKS; exit $SLURM_PROCID'"
    job = slurm.script("-n", "2", lines=lines)
    slurm.carmad.ended(job)
    assert slurm.sacct(job, "state", "exitcode", "jobname") == ["FAILED|1:0|sbatch"]
    words = slurm.output(job).splitlines()[0].split()
    assert words == [str(job), os.uname().nodename, "2"]
    assert "task 1: Exited with exit code 1" in slurm.output(job)
    work = slurm.carmad.work
    assert [(work / f"step-{at}").read_text() for at in range(3)] == [
        f"{at}/3/{at}\n" for at in range(3)
    ]
    assert [(work / f"{job}-{at}.out").read_text() for at in range(2)] == ["2\n", "2\n"]


def test_a_job_knows_when_its_time_limit_ends_it(slurm: Slurm) -> None:
    job = slurm.script("--time=3", lines="echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))")
    slurm.carmad.ended(job)
    assert slurm.output(job) == "180\n"


def test_a_step_divides_the_gpus(slurm: Slurm) -> None:
    step = "srun -l sh -c 'echo $CUDA_VISIBLE_DEVICES'; srun -n1 sh -c 'echo $SLURM_STEP_GPUS'"
    job = slurm.script("-n2", "--gpus-per-task=1", lines=f"echo $CUDA_VISIBLE_DEVICES; {step}")
    slurm.carmad.ended(job)
    whole, *parts, indices = slurm.output(job).splitlines()
    gpus = whole.split(",")
    assert len(indices.split(",")) == 2 and {*indices.split(",")} <= {"0", "1", "2"}
    assert len(gpus) == 2 and sorted(parts) == [f"{at}: {gpu}" for at, gpu in enumerate(gpus)]


def test_each_task_of_a_step_reads_its_input(slurm: Slurm) -> None:
    lines = "srun -n 2 -l sh <<X\necho task $SLURM_NTASKS\nX"
    job = slurm.script("-n2", lines=lines + "\nseq 50000 | srun -n 3 -l sh -c 'tail -n1; exit 4'")
    slurm.carmad.ended(job)
    assert slurm.sacct(job, "exitcode") == ["4:0"]
    said = [line for line in slurm.output(job).splitlines() if not line.startswith("srun")]
    assert sorted(said[:2]) == ["0: task 2", "1: task 2"]
    assert sorted(said[2:]) == ["0: 50000", "1: 50000", "2: 50000"]


def test_a_step_ends_some_time_after_its_first_task(slurm: Slurm) -> None:
    task = "sh -c 'test $SLURM_PROCID = 0 || { sleep 600; true; }'"  # it is not the task itself
    job = slurm.script("-n2", lines=f"srun -l --wait=1 {task}; echo $?; srun -n1 -W 9 echo over")
    slurm.carmad.ended(job)
    said = slurm.output(job)
    assert "First task exited 1s ago" in said and said.endswith("\n137\nover\n")


def test_a_step_ends_when_nobody_reads_its_lines(slurm: Slurm) -> None:
    job = slurm.script("-n2", lines="srun -n 2 -l yes | head -n 1; echo over")
    slurm.carmad.ended(job)
    assert slurm.output(job).splitlines()[-1] == "over"


HEARS = """
import os, signal, time
def note(signum, _):
    with open(f"heard-{os.environ['SLURM_PROCID']}", "a") as file:
        file.write(f"{signal.Signals(signum).name}\\n")
    if signum == signal.SIGHUP:
        os._exit(0)
for each in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(each, note)
note(signal.SIGCONT, None)
while True:
    time.sleep(0.1)  # a signal just before pause() would not end it
"""


def test_a_task_gets_each_signal_once(slurm: Slurm) -> None:
    work = slurm.carmad.work
    (work / "hears.py").write_text(HEARS)
    step = f"srun -n 2 {sys.executable} hears.py & echo $! > step"
    lines = f"trap : TERM\n{step}\nwhile kill -0 $!; do wait; done"
    job = slurm.script("-n2", lines=lines)

    def heard() -> list[list[str]]:
        return [path.read_text().split() for path in sorted(work.glob("heard-*"))]

    def both_hear(name: str) -> None:
        def do_they() -> bool:
            return len(heard()) == 2 and all(name in each for each in heard())

        until(do_they, name)

    both_hear("SIGCONT")
    srun = int((work / "step").read_text())
    os.kill(srun, signal.SIGUSR1)
    both_hear("SIGUSR1")
    slurm.say("scancel", "--signal=USR2", str(job))
    both_hear("SIGUSR2")
    slurm.say("scancel", str(job))  # carmad does it
    both_hear("SIGTERM")
    with suppress(ProcessLookupError):  # its grace is over
        os.kill(srun, signal.SIGHUP)
    slurm.carmad.ended(job)
    for each in heard():
        assert [word for word in each if word != "SIGHUP"] == [
            *("SIGCONT", "SIGUSR1", "SIGUSR2", "SIGTERM")
        ]


def test_states_of_jobs_that_end_badly(slurm: Slurm) -> None:
    late = slurm.script("--time=0:01", lines="exec sleep 60")
    large = slurm.sbatch("--gres=gpu:1", "--wrap", f"exec {' '.join(train(memory_mib=90000))}")
    gone = slurm.script(lines="exec sleep 60")
    slurm.carmad.await_state(gone, "starting", "running")
    slurm.say("scancel", str(gone))
    for job in (late, large, gone):
        slurm.carmad.ended(job)
    assert slurm.sacct(late) == ["TIMEOUT"]
    assert slurm.sacct(large) == ["OUT_OF_MEMORY"]
    assert slurm.sacct(gone) == [f"CANCELLED by {os.getuid()}"]
    said = slurm.say("squeue", "-h", "-t", "all", "-o", "%i %t").splitlines()
    assert {f"{late} TO", f"{large} OOM", f"{gone} CA"} <= {*said}
    assert slurm.say("squeue", "-h", "-j", f"{late},{large}") == ""


def test_a_signal_reaches_what_the_batch_shell_has_started(slurm: Slurm) -> None:
    inner = 'trap "echo told; exit 0" USR1; echo ready > ready; while :; do sleep 0.1; done'
    job = slurm.script(lines=f"trap 'echo shell' USR1; sh -c '{inner}'; echo over")
    ready = slurm.carmad.work / "ready"
    until(lambda: ready.exists() and bool(ready.read_text()), "the job to be ready")
    slurm.say("scancel", "--signal=USR1", str(job))
    slurm.carmad.ended(job)
    said = slurm.output(job).splitlines()  # perhaps also how the shell's sleep has ended
    assert "told" in said and "shell" not in said and said[-1] == "over"
    assert slurm.run("scancel", "--signal=USR1", str(job)).returncode == 1


def test_arrays_and_dependencies(slurm: Slurm) -> None:
    array = slurm.script("--array=0-2", lines="test $SLURM_ARRAY_TASK_ID = 1")
    then = slurm.script(f"--dependency=afterany:{array}", lines="echo then")
    slurm.carmad.ended(then)
    found = slurm.sacct(array, "JobID", "State")
    assert found == [f"{array}_0|FAILED", f"{array}_1|COMPLETED", f"{array}_2|FAILED"]
    assert (slurm.carmad.work / f"slurm-{array}_1.out").exists()


def test_a_task_of_an_array_requeues_itself_alone(slurm: Slurm) -> None:
    """Also the first: the array has an id of its own."""
    lines = "echo $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID; test $SLURM_RESTART_COUNT -gt 0 && exit 0"
    array = slurm.script("-a", "0-2", lines=f"{lines}; scontrol requeue $SLURM_JOB_ID; sleep 600")
    tasks = [array + 1, array + 2, array + 3]
    for task in tasks:
        slurm.carmad.ended(task)
    assert slurm.sacct(array, "JobID", "State") == [f"{array}_{at}|COMPLETED" for at in range(3)]
    assert [slurm.carmad.job(task)["attempt"] for task in tasks] == [2, 2, 2]
    for at, task in enumerate(tasks):
        said = (slurm.carmad.work / f"slurm-{array}_{at}.out").read_text().splitlines()
        assert said.count(f"{task} {array}") == 2
    slurm.say("scontrol", "requeue", str(array))
    for task in tasks:
        until(lambda task=task: slurm.carmad.ended(task)["attempt"] == 3, "all to run again")


def test_a_task_requeues_itself_at_its_time_limit(slurm: Slurm) -> None:
    """The usual recipe."""
    lines = "trap 'carma requeue $CARMA_JOB_ID' USR1; echo $CARMA_RESTART_COUNT"
    lines += "; [ $CARMA_RESTART_COUNT = 0 ] && while :; do sleep 0.1; done; exit 0"
    said = slurm.say(
        *("carma", "submit", "--parsable", "--gpus", "0", "--array", "0-1", "--time", "0:14"),
        *("--signal", "USR1@8", "--wrap", lines),
    )
    for task in (int(said) + 1, int(said) + 2):
        assert slurm.carmad.ended(task)["state"] == "succeeded"
        assert slurm.carmad.job(task)["attempt"] == 2


def test_an_array_is_all_of_its_tasks(slurm: Slurm) -> None:
    line = "echo this is $CARMA_ARRAY_TASK_ID; exit $((CARMA_ARRAY_TASK_ID == 2 ? 3 : 0))"
    words = ("--parsable", "--gpus", "0", "--array", "0-3", "--name", "sweep", "--wrap", line)
    array = slurm.say("carma", "submit", *words).strip()
    assert slurm.run("carma", "wait", array).returncode == 3
    why = slurm.say("carma", "why", array)
    assert why.startswith(f"Array {array}  sweep\n")
    assert f"succeeded  3  {array}_[0-1,3]" in why and f"failed     1  {array}_2" in why
    assert f"Job {array}_2 failed with exit code 3" in why
    assert f"the first that failed: carma show {array}_2" in slurm.say("carma", "show", array)
    told = json.loads(slurm.say("carma", "why", "--json", array))
    assert [job["label"] for job in told["jobs"]] == [f"{array}_{at}" for at in range(4)]
    assert told["why"]["job"]["label"] == f"{array}_2"
    told = json.loads(slurm.say("carma", "show", "--json", f"{array}_[1-2]"))
    assert [job["state"] for job in told["jobs"]] == ["succeeded", "failed"]
    states = ["succeeded", "succeeded", "failed", "succeeded"]
    said = [f"==> {array}_{at} {state} <==\nthis is {at}\n" for at, state in enumerate(states)]
    assert slurm.say("carma", "logs", array) == "".join(said)
    assert slurm.say("carma", "logs", "-f", f"{array}_[0,3]") == said[0] + said[3]
    assert slurm.say("carma", "logs", f"{array}_3") == "this is 3\n"
    left = "3 tasks that did not fail: left alone (--all requeues every task)"
    said = [f"job {array}_[0-1,3]: {left}", f"job {array}_2: requeued"]
    assert slurm.say("carma", "requeue", array).splitlines() == said
    assert slurm.run("carma", "wait", "last").returncode == 3
    assert f"job {array}_[0-3]: requeued" in slurm.say("carma", "requeue", "--all", array)
    assert slurm.run("carma", "wait", array).returncode == 3
    tasks = [slurm.carmad.job(int(array) + at)["attempt"] for at in range(1, 5)]
    assert tasks == [2, 2, 3, 2]
    assert slurm.run("carma", "requeue", f"{array}_[0-1]", f"{array}_9").returncode == 0
    assert slurm.run("carma", "wait", f"{array}_[0-1]").returncode == 0


def test_the_limit_of_an_array_is_changed(slurm: Slurm) -> None:
    array = slurm.sbatch("-a", "0-4%1", "--wrap", "test $SLURM_ARRAY_TASK_ID = 0 || sleep 600")
    slurm.carmad.ended(array + 1)
    slurm.carmad.await_state(array + 2, "running")
    assert slurm.carmad.job(array + 3)["reason"] == "(ArrayLimit)"
    said = slurm.say("carma", "update", "--array", "%2", str(array)).splitlines()
    assert f"job {array}_[1-4]: updated: --array" in said, "that task 0 has ended is no error"
    slurm.carmad.await_state(array + 3, "running")
    assert slurm.carmad.job(array + 4)["reason"] == "(ArrayLimit)"
    slurm.say("scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=0")
    for task in (array + 4, array + 5):
        slurm.carmad.await_state(task, "running")
    slurm.say("scancel", f"{array}_[1-3]")
    slurm.carmad.await_state(array + 5, "running")
    slurm.say("carma", "cancel", str(array))
    assert "indices" in slurm.run("carma", "update", "--array", "1-2%3", str(array)).stderr


def test_people_read_the_names_of_tasks(slurm: Slurm) -> None:
    array = slurm.sbatch("-a", "0-1", "--wrap", "sleep 600")
    words = ("--parsable", "--gpus", "0", "--after", f"{array}_[0-1]", "true")
    last = int(slurm.say("carma", "submit", *words))
    shown = slurm.say("carma", "show", str(last))
    assert f"afterok:{array}_[0-1]" in shown
    assert f"job {array}_0, job {array}_1 must end first" in slurm.say("carma", "why", str(last))
    slurm.say("scancel", f"{array}_1")
    slurm.carmad.ended(last)
    assert f"job {array}_1 ended as cancelled" in slurm.say("carma", "why", str(last))
    refused = slurm.run("carma", "requeue", str(last)).stderr
    assert f"depends on job {array}_1, which ended as cancelled" in refused
    slurm.say("scancel", str(array))


def test_a_singleton_waits_for_all_jobs_of_its_name(slurm: Slurm) -> None:
    first = slurm.script("-J", "chain", "-H", "-a", "0-1", lines="true")
    other = slurm.script("-J", "other", "-d", "singleton", lines="true")
    second = slurm.script("-J", "chain", "-d", "singleton", lines="true")
    third = slurm.script("-J", "chain", f"-dafterok:{second},singleton", lines="true")
    slurm.carmad.ended(other)
    waits = dict(
        line.split(" ", 1)
        for line in slurm.say("squeue", "-hr", "-o", "%i %r %E", "-n", "chain").splitlines()
    )
    of_first = f"afterany:{first}_0(unfulfilled),afterany:{first}_1(unfulfilled)"
    assert waits[str(second)] == f"Dependency {of_first}"
    assert waits[str(third)].startswith(f"Dependency afterok:{second}(unfulfilled),{of_first}")
    slurm.say("scontrol", "release", str(first))
    slurm.carmad.ended(third)
    assert slurm.sacct(third) == ["COMPLETED"]


def test_a_held_job_is_changed_and_released(slurm: Slurm) -> None:
    job = str(slurm.script("-H", lines="true"))
    assert slurm.say("squeue", "-h", "-j", job, "-o", "%t %r") == "PD JobHeldUser\n"
    slurm.say("scontrol", "update", f"JobId={job}", "JobName=other", "TimeLimit=7")
    assert slurm.say("squeue", "-h", "-j", job, "-o", "%j %l") == "other 7:00\n"
    slurm.say("scontrol", "release", job)
    slurm.carmad.ended(int(job))
    assert "JobState=COMPLETED" in slurm.say("scontrol", "show", "job", job)


def test_a_job_requeues_itself(slurm: Slurm) -> None:
    lines = "echo run $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT = 0 ] || exit 0"
    lines += "; scontrol requeue $SLURM_JOB_ID; exec sleep 60"
    job = slurm.script("--time=1", lines=lines)
    slurm.carmad.ended(job)
    assert slurm.sacct(job, "state", "restarts") == ["COMPLETED|1"]
    assert "run 1" in slurm.output(job)


def test_srun_and_salloc_wait_here(slurm: Slurm) -> None:
    done = slurm.run("srun", "-n2", "-l", "sh", "-c", "echo $SLURM_NTASKS; exit 3")
    assert done.returncode == 3, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0: 2", "1: 2"]
    # The step does not say again of its job's options that they mean nothing to it.
    done = slurm.run("srun", "-Q", "-t1", "--mem=64", "sh", "-c", "echo $SLURMD_NODENAME")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{HOST}\n", "")
    done = slurm.run("srun", "--pty", "--overlap", "--task-prolog=/x", "-X", "true")
    assert done.returncode == 0
    ignored = [line for line in done.stderr.splitlines() if "ignored" in line]
    assert ignored == ["srun: ignored: --task-prolog=/x"]
    script = "echo $SLURM_JOB_ID; srun pwd"
    done = slurm.run("salloc", "-J", "mine", "-D", "/usr", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    job, step = done.stdout.splitlines()
    assert step == "/usr" and f"salloc: Granted job allocation {job}\n" in done.stderr
    assert slurm.sacct(int(job), "jobname", "state") == ["mine|COMPLETED"]


def test_a_folder_of_logs_that_is_called_after_the_job_is_made(slurm: Slurm) -> None:
    logs = ("-o", "logs/%A_%a/out", "-e", "logs/%j-err/%x")
    array = slurm.sbatch("-a", "3-4", *logs, "-J", "mine", "--wrap", "echo $SLURM_JOB_ID; date >&2")
    for id in (array + 1, array + 2):
        slurm.carmad.ended(id)
    assert slurm.sacct(array) == ["COMPLETED"] * 2
    work = slurm.carmad.work / "logs"
    said = [(work / f"{array}_{at}" / "out").read_text() for at in (3, 4)]
    assert said == [f"{array + 1}\n", f"{array + 2}\n"]
    assert (work / f"{array + 1}-err" / "mine").exists()


def test_submitit_takes_it_for_slurm(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = pytest.importorskip("submitit")
    for name in ("PATH", "CARMA_SOCKET"):
        monkeypatch.setenv(name, slurm.env[name])
    executor = submitit.AutoExecutor(tmp_path / "%j", cluster="slurm")
    executor.update_parameters(timeout_min=5, tasks_per_node=2, slurm_partition="any")
    both = executor.submit(add, 1, b=2)
    assert both.results() == [3, 3]
    executor.update_parameters(tasks_per_node=1)
    jobs = executor.map_array(add, [1, 2], [3, 4])
    assert [job.result() for job in jobs] == [4, 6]
    slurm.carmad.ended(int(both.job_id))
    assert slurm.sacct(int(both.job_id)) == ["COMPLETED"]


def test_sbatch_waits_and_ends_with_the_jobs_code(slurm: Slurm) -> None:
    done = slurm.run("sbatch", "--wait", "--wrap", "exit 7")
    assert done.returncode == 7 and done.stdout.startswith("Submitted batch job ")


# As the conftest that dask-jobqueue's package lacks: its tests need its own settings.
LOOPS = """
import dask_jobqueue.config
import distributed.utils_test
from distributed.utils_test import cleanup, loop, loop_in_thread

distributed.utils_test.reset_config = dask_jobqueue.config.reconfigure

def pytest_configure(config):
    config.addinivalue_line("markers", "env(NAME): only with this scheduler")
"""


@pytest.mark.long
def test_what_dask_asks_of_slurm(slurm: Slurm) -> None:
    """The tests of SLURMCluster that dask-jobqueue's package has; one wants two networks."""
    (slurm.carmad.work / "loops.py").write_text(LOOPS)
    argv = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "loops"]
    argv += ["--pyargs", "dask_jobqueue.tests.test_slurm", "-k", "not different_interfaces"]
    tests = slurm.run(*argv, env={"PYTEST_ADDOPTS": ""})
    assert tests.returncode == 0, tests.stdout + tests.stderr
    passed = set(re.findall(r"^PASSED \S*::test_(\w+)$", tests.stdout, re.M))
    assert passed >= {"basic", "adaptive", "job_script", "worker_name_uses_cluster_name"}


PARSL = """
import parsl
from parsl.tests.configs.slurm_local import fresh_config
from parsl.tests.test_python_apps import test_basic, test_depfail_propagation, test_mapred

with parsl.load(fresh_config()):
    test_basic.test_simple()
    test_basic.test_parallel_for(21)
    test_depfail_propagation.test_depfail_once()
    test_mapred.test_mapred_type1(7)
print("fine")
"""


@pytest.mark.long
def test_what_parsl_asks_of_slurm(slurm: Slurm) -> None:
    """Some of the tests in its package, without pytest: their conftest needs an older one."""
    assert slurm.say(sys.executable, "-c", PARSL).endswith("fine\n")

    def pilots() -> list[str]:
        return re.findall(r"^parsl\S+\|(\w+)", slurm.say("sacct", "-nPo", "jobname,state"), re.M)

    until(lambda: pilots() == ["CANCELLED"], "Parsl's job to be cancelled, as all was done")
