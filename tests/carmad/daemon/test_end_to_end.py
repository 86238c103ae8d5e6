"""The daemon, its jobs and the command line together, on emulated GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from carmad.attempt.environment import SHIMS, job_environment
from tests import out_of_memory
from tests.api_server import as_uid
from tests.attempts import make_job
from tests.daemon import (
    CARMA,
    NO_KERNELS,
    PATIENCE_S,
    QUICK,
    Carmad,
    Json,
    clean_environment,
    running,
    train,
    until,
)

ROOT = Path(__file__).resolve().parents[3]
WINDOW_S = float(QUICK["CARMA_MONITOR__WINDOW_S"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, "1xA100-40GB") as carmad:
        yield carmad


def refusals(daemon: Carmad, job: int) -> dict[str, str]:
    """All that kept a job off any GPU, by the last decision and those before: the details, by
    their codes."""
    why = daemon.why(job)
    decisions = [why, *why["past"]]
    verdicts = [verdict for decision in decisions for verdict in decision["verdicts"]]
    refused = [reason for verdict in verdicts for reason in verdict["refused"]]
    return {reason["code"]: reason["detail"] for reason in refused}


def until_told(words: list[str]) -> str:
    """A shell's words: they run until there is a file `go`, and that is a success; but for a second
    at least: brief runs teach nothing."""
    return f"{shlex.join(words)} & sleep 1; until [ -e go ]; do sleep 0.05; done; kill $!"


def told(daemon: Carmad, job: int, peak_mib: int) -> Json:
    """Lets such a job end once carmad has seen it at its peak."""
    until(lambda: (daemon.job(job)["memory"]["peak_mib"] or 0) >= peak_mib, "its peak")
    (daemon.work / "go").touch()
    ended = daemon.ended(job)
    (daemon.work / "go").unlink()
    return ended


# -- memory


def test_a_job_that_runs_out_of_memory_beside_another_runs_again_alone(one_gpu: Carmad) -> None:
    first = one_gpu.sh(until_told(train(memory_mib=25_000, sm=0.3, seconds=1000, warmup=0.1)))
    one_gpu.await_state(first, "running")
    second = one_gpu.submit(*train(memory_mib=30_000, sm=0.3, seconds=0.5, warmup=0.1))
    until(lambda: one_gpu.job(second)["failures"], "the out-of-memory")

    assert one_gpu.await_state(second, "queued")["code"] == "RQ"
    until(lambda: "busy" in refusals(one_gpu, second), "it to be refused")
    neighbour = told(one_gpu, first, 25_000)
    job = one_gpu.ended(second)
    assert (job["state"], job["attempt"], job["mode"]) == ("succeeded", 2, "exclusive")
    (failure,) = job["failures"]
    assert failure["cause"] == "gpu_oom"
    assert failure["evidence"].startswith("torch.OutOfMemoryError: CUDA out of memory. Tried")
    assert failure["tried_mib"] > failure["free_mib"]
    assert any(f"job {first} held" in neighbour for neighbour in failure["neighbours"])
    assert "of which" in one_gpu.output(second)
    assert (neighbour["state"], neighbour["attempt"]) == ("succeeded", 1)
    assert job["started_at"] >= neighbour["ended_at"]
    assert "out of memory" in one_gpu.carma("show", str(second))


def test_what_a_program_prints_decides_whether_it_runs_again(tmp_path: Path) -> None:
    again, ended = ("RQ", "gpu_oom"), ("F", "failure")
    said = {
        out_of_memory.GPU["llama.cpp"][0]: again,
        out_of_memory.GPU["vLLM, at start"][0]: again,
        out_of_memory.GPU["PyTorch, cudaMallocAsync"][0]: again,
        out_of_memory.AFTER["torchrun"]: again,
        out_of_memory.NOT["one that was caught, then wandb"]: ended,
        out_of_memory.HOST["Python"][0]: ended,
    }

    def first_end(job: int) -> tuple[str, str]:
        until(lambda: daemon.job(job)["failures"] or daemon.job(job)["exit"], "its end")
        found = daemon.job(job)
        return found["code"], (found["failures"] or [found["exit"]])[0]["cause"]

    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as daemon:
        beside = daemon.submit(*train(memory_mib=5000, sm=0.1, seconds=1000, warmup=0))
        daemon.await_state(beside, "running")
        for text, wanted in said.items():
            deleted = f"rm *.out; printf '%s\n' {shlex.quote(text)} >&2; exit 1"
            job = daemon.sh(deleted, memory_mib=2000)
            assert first_end(job) == wanted, text
            if wanted is again:
                daemon.cancel(job)


def test_a_job_larger_than_the_card_ends_out_of_memory_with_evidence(one_gpu: Carmad) -> None:
    id = one_gpu.submit(*train(memory_mib=50_000, warmup=0))
    job = one_gpu.ended(id)
    assert (job["state"], job["attempt"], job["failures"]) == ("out_of_memory", 1, [])
    assert (job["exit"]["cause"], job["exit"]["code"]) == ("gpu_oom", 1)
    assert "CUDA out of memory" in job["exit"]["evidence"]
    assert "CUDA out of memory" in one_gpu.carma("why", str(id))


def test_what_a_job_used_is_known_when_it_comes_again(tmp_path: Path) -> None:
    """Known to the daemon that watched it, and to the next."""
    with running(tmp_path, "1xA100-40GB", CARMA_ESTIMATOR="history") as daemon:
        script = until_told(train(memory_mib=7_000, seconds=1000, warmup=0.1))
        first = told(daemon, daemon.sh(script), 7_000)
        (note,) = first["notes"]
        assert note.startswith("has no memory estimate: no earlier run")
        second = daemon.sh(script, stdout="second.out", nice=1)
        assert told(daemon, second, 7_000)["memory"]["estimate_source"] == "history"
        daemon.stop()
        daemon.start()
        id = daemon.sh(script, held=True)
        memory = daemon.await_state(id, "queued")["memory"]
        assert 6_900 <= memory["estimate_mib"] <= memory["estimate_high"] < 12_000
        shown = daemon.carma("why", str(id))
        assert "(history n=2) per GPU" in shown
        row = next(
            line
            for line in daemon.carma("doctor", "--estimators").splitlines()
            if line.startswith("history")
        )
        assert row.split()[:2] == ["history", "1"], "it was there to judge the second run only"


def test_a_command_that_is_no_training_script_is_queued_without_an_estimate(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_ESTIMATOR="auto") as daemon:
        id = daemon.sh("exit 0", held=True)
        job = daemon.await_state(id, "queued")
        assert job["memory"]["estimate_mib"] is None
        (note,) = job["notes"]
        assert note.startswith("has no memory estimate: ") and "no --gpu-mem was given" in note
        assert note in daemon.carma("why", str(id))


def test_a_daemon_that_stops_leaves_the_look_at_a_script_to_the_next(tmp_path: Path) -> None:
    endless = {"CARMA_ESTIMATOR": "auto", "CARMA_ESTIMATION__WITHIN_S": "3600"}
    with running(tmp_path, "1xA100-40GB", **endless) as daemon:
        (daemon.work / "train.py").write_text("while True: pass")
        id = daemon.submit(sys.executable, "train.py", held=True)
        until(lambda: at_work_in(daemon.work), "the script to be tried")
        daemon.stop()
        until(lambda: not at_work_in(daemon.work), "the trial to be ended")
        daemon.start()
        assert daemon.job(id)["state"] == "pending"
        until(lambda: at_work_in(daemon.work), "the script to be tried again")
        daemon.kill()
        until(lambda: not at_work_in(daemon.work), "the trial to end without its daemon")


def at_work_in(folder: Path) -> list[int]:
    """The processes with this working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == folder:
                    found.append(int(entry.name))
    return found


TRAINING = """
import torch
model = torch.nn.Linear(4096, 4096).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(1000):
    optimizer.zero_grad()
    model(torch.randn(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
open("left-behind", "w").write("done")
"""


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
PATIENT = {"CARMA_ESTIMATOR": "auto", "CARMA_ESTIMATION__WITHIN_S": "50"}


@needs_torch
def test_a_training_script_is_traced_before_it_is_queued(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **PATIENT) as daemon:
        (daemon.work / "train.py").write_text(TRAINING)
        id = daemon.submit(sys.executable, "train.py", held=True)
        until(lambda: daemon.job(id)["state"] == "queued", "its estimate")
        job = daemon.job(id)
        assert (job["memory"]["estimate_source"], job["notes"]) == ("trace", [])
        parts = job["estimate"]["parts"]
        assert sum(parts.values()) == job["memory"]["estimate_mib"]
        copies = parts["optimizer"] / parts["parameters"]
        assert 2.9 < copies < 3.1, "Adam's state, and a copy in its step"
        assert "history: no earlier run" in daemon.carma("why", str(id))
        assert [path.name for path in daemon.work.iterdir()] == ["train.py"]


@needs_torch
def test_an_estimate_is_explained(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", **PATIENT) as daemon:
        (daemon.work / "train.py").write_text(TRAINING.replace("(64,", "(65536,"))
        shown = daemon.carma("estimate", "--explain", "--plot", "-", sys.executable, "train.py")
        assert "trace *" in shown and "half the batch" in shown
        assert "\nby line" in shown and "train.py:7" in shown
        assert "↑ an optimizer step ended" in shown


# Traced, it is a small model; as a job, it takes more than a context may.
WRONG = """
import os, sys
if "carma_tracer" in sys.modules:
    exec(open("train.py").read())
os.execv("/bin/sh", ["sh", "-c", WORDS])
"""


@pytest.mark.long
@needs_torch
def test_what_jobs_used_corrects_the_next_estimate(tmp_path: Path) -> None:
    """Of other batches: the same one would be known by history."""
    with running(tmp_path, "1xA100-40GB", **PATIENT) as daemon:
        (daemon.work / "train.py").write_text(TRAINING)
        words = until_told(train(memory_mib=3_600, seconds=1000, warmup=0.1))
        (daemon.work / "wrong.py").write_text(WRONG.replace("WORDS", repr(words)))
        errors = []
        for batch in range(4):
            id = daemon.submit(sys.executable, "wrong.py", "--batch-size", str(batch))
            until(lambda id=id: daemon.job(id)["memory"]["estimate_mib"], "its estimate")
            memory = told(daemon, id, 3_600)["memory"]
            errors.append(memory["peak_mib"] - memory["estimate_mib"])
            assert memory["estimate_source"] == "trace"
        assert errors[3] < errors[2] == errors[1] == errors[0]
        shown = daemon.get("/v1/estimators")["estimators"]
        (trace,) = [one for one in shown if one["name"] == "trace"]
        assert trace["jobs"] == 4
        assert trace["early_p50_mib"] == errors[0] > errors[3] == trace["recent_p50_mib"]
        head, *rows = daemon.carma("doctor", "--estimators").splitlines()[1:]
        assert head.split()[5:7] == ["THEN", "NOW"]
        assert any(row.startswith("trace ") for row in rows)


def test_a_gpu_takes_no_second_job_before_the_first_has_warmed_up(one_gpu: Carmad) -> None:
    kernel = shlex.join(train(sm=0.2, seconds=1000, warmup=0))
    loads_data = "while [ ! -e loaded ]; do sleep 0.05; done"
    first = one_gpu.sh(f"{loads_data}; exec {kernel}", memory_mib=4000)
    one_gpu.await_state(first, "starting")
    second = one_gpu.submit(*train(sm=0.2, seconds=0.2, warmup=0), memory_mib=4000)
    until(lambda: "first_kernel" in refusals(one_gpu, second), "the second to wait for a kernel")
    (one_gpu.work / "loaded").touch()
    assert one_gpu.ended(second)["state"] == "succeeded"
    assert one_gpu.job(first)["state"] == "running", "they did share the GPU"
    kernel_at = moment(one_gpu, first, "running")
    assert moment(one_gpu, second, "starting") > kernel_at + WINDOW_S - 0.002
    assert refusals(one_gpu, second)["first_kernel"] == f"job {first}"


def moment(daemon: Carmad, job: int, state: str) -> float:
    """When it first entered a state, to the millisecond."""
    moves = daemon.job(job)["history"]
    first = next(move["at"] for move in moves if move["after"] == state)
    return datetime.fromisoformat(first).timestamp()


# -- time


def test_a_job_is_warned_before_its_time_is_up_and_then_stopped(one_gpu: Carmad) -> None:
    """Half of its time first, in which its program learns to catch the signal."""
    words = ["submit", "--parsable", "--time", "0:14", "--signal", "USR2@8", "--"]
    id = int(one_gpu.carma(*words, *train(seconds=1000, warmup=0.1)))
    job = one_gpu.ended(id)
    assert (job["state"], job["exit"]["cause"]) == ("timed_out", "time_limit")
    assert job["exit"]["signal"] == 15
    assert one_gpu.output(id).count("checkpoint") == 1
    assert "it reached its own time limit, --time " in one_gpu.carma("why", str(id))


def test_a_program_may_take_its_gpus_for_numbers(tmp_path: Path) -> None:
    """As vLLM and DeepSpeed's launcher do. The numbers mean the same GPUs as the UUIDs."""
    program = """
import os
from carmad.gpu.emulated_job import visible_cards
names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
print([int(name) for name in names], [card.uuid for card in visible_cards()])
"""
    with running(tmp_path) as daemon:
        id = daemon.submit(sys.executable, "-c", program, gpus=2, env={"PYTHONPATH": str(ROOT)})
        job = daemon.ended(id)
        cards = [gpu["id"] for gpu in job["gpus"]]
        numbers = [gpu["index"] for gpu in job["gpus"]]
        assert daemon.output(id).strip() == f"{numbers} {cards}"


def test_why_explains_a_program_that_takes_uuids_for_numbers(tmp_path: Path) -> None:
    with running(tmp_path, CARMA_COLLOCATION__VISIBLE_DEVICES="uuid") as daemon:
        program = "import os; int(os.environ['CUDA_VISIBLE_DEVICES'])"
        id = daemon.submit(sys.executable, "-c", program)
        assert daemon.ended(id)["state"] == "failed"
        said = daemon.carma("why", str(id))
        assert "invalid literal for int()" in said
        assert "takes the UUIDs in CUDA_VISIBLE_DEVICES for numbers" in said
        assert "visible_devices" in said


def test_why_shows_the_last_lines_of_a_job_that_failed(one_gpu: Carmad) -> None:
    id = one_gpu.sh("for i in $(seq 30); do echo line $i; done; echo 'no \033[2J data' >&2; exit 3")
    one_gpu.ended(id)
    told = one_gpu.carma("why", str(id))
    assert "failed with exit code 3" in told
    assert f"its log: {one_gpu.work}/carma-{id}.out" in told.replace("\n", "")
    assert "line 30" in told and "line 19\n" not in told and "\x1b" not in told


def test_a_job_that_ignores_sigterm_keeps_its_gpu_until_it_is_killed(one_gpu: Carmad) -> None:
    stubborn = one_gpu.sh("trap '' TERM; echo up; while :; do sleep 0.05; done", exclusive=True)
    one_gpu.await_output(stubborn, "up")
    waits = one_gpu.sh("exit 0", exclusive=True)
    one_gpu.cancel(stubborn)
    job, after = one_gpu.ended(stubborn), one_gpu.ended(waits)
    assert (job["state"], job["exit"]["signal"]) == ("cancelled", 9)
    assert moment(one_gpu, stubborn, "stopping")
    assert after["started_at"] >= job["ended_at"]
    assert after["state"] == "succeeded"


# -- what cannot start


def test_what_cannot_start_says_why_and_what_to_do(daemon: Carmad) -> None:
    gone = daemon.folder / "gone"
    gone.mkdir()
    (daemon.work / "data.txt").touch()
    cases = {
        daemon.submit("true", cwd=str(gone), held=True): ("working directory", "submit from"),
        daemon.submit("no-such-program"): ("no-such-program: command not found", "PATH"),
        daemon.submit("./data.txt"): ("Permission denied", "chmod +x"),
        daemon.submit("true", stdout="none/such/log"): ("log file", "-o, -e"),
        daemon.submit("true", conda_env="base", export={"CONDA_EXE": "/no/conda"}): (
            "conda was not found",
            "CONDA_EXE",
        ),
        daemon.submit("true", conda_env="nowhere", export={"CONDA_EXE": str(a_conda(daemon))}): (
            "cannot activate the conda environment nowhere",
            "conda env list",
        ),
    }
    gone.rmdir()
    daemon.post("/v1/release", {"select": "1"})
    for id, (evidence, hint) in cases.items():
        job = daemon.ended(id)
        assert (job["state"], job["exit"]["cause"]) == ("failed", "launch_failed"), job
        assert evidence in job["exit"]["evidence"]
        assert hint in job["exit"]["evidence"]
        assert evidence in daemon.why(id)["headline"]


def a_conda(daemon: Carmad) -> Path:
    """A conda without environments."""
    conda = daemon.folder / "conda"
    conda.write_text("#!/bin/sh\necho 'conda() { echo EnvironmentNameNotFound >&2; return 1; }'\n")
    conda.chmod(0o755)
    return conda


# -- users


@pytest.fixture
def system_wide() -> Iterator[Carmad]:
    if os.geteuid() != 0:
        pytest.skip("only root can run jobs of several users")
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    try:
        with running(folder, **NO_KERNELS) as carmad:
            yield carmad
    finally:
        shutil.rmtree(folder)


class User:
    """A user with a working directory."""

    def __init__(self, daemon: Carmad, name: str) -> None:
        self.entry = pwd.getpwnam(name)
        self.daemon = daemon
        self.home = daemon.folder / name
        self.home.mkdir(mode=0o700)
        os.chown(self.home, self.entry.pw_uid, self.entry.pw_gid)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        answer: tuple[int, Json] = as_uid(self.entry.pw_uid, self.daemon.socket, method, path, body)
        return answer

    def sh(self, script: str, **fields: object) -> int:
        body = self.daemon.submission("/bin/sh", "-c", script, **{"cwd": str(self.home), **fields})
        status, out = self.call("POST", "/v1/jobs", body)
        assert status == 201, out
        return int(out["id"])


def test_jobs_run_as_their_users_who_see_and_touch_only_their_own(system_wide: Carmad) -> None:
    users = [User(system_wide, "nobody"), User(system_wide, "daemon")]
    jobs = [user.sh("id -u; id -g; id -G; umask; exec sleep 1000", name="mine") for user in users]
    for user, id in zip(users, jobs, strict=True):
        log = user.home / f"carma-{id}.out"
        until(lambda log=log: log.exists() and log.read_text().count("\n") == 4, "its output")
        uid, gid, groups, umask = log.read_text().splitlines()
        entry = user.entry
        assert (int(uid), int(gid)) == (entry.pw_uid, entry.pw_gid)
        mine = os.getgrouplist(entry.pw_name, entry.pw_gid)
        assert {int(group) for group in groups.split()} == set(mine)
        assert umask == "0022"
        assert (log.stat().st_uid, log.stat().st_gid) == (entry.pw_uid, entry.pw_gid)

    for user, own, other in zip(users, jobs, reversed(jobs), strict=True):
        assert user.call("GET", f"/v1/jobs/{own}")[0] == 200
        assert user.call("GET", f"/v1/jobs/{other}")[0] == 403
        assert user.call("GET", f"/v1/jobs/{other}/why")[0] == 403
        listed = {job["id"]: job for job in user.call("GET", "/v1/jobs")[1]["jobs"]}
        assert (listed[own]["name"], listed[other]["name"]) == ("mine", "-")
        assert "argv" not in listed[other]
        assert user.call("POST", "/v1/cancel", {"select": str(other)})[0] == 403
        assert user.call("POST", "/v1/gpus/0/drain", {"reason": "mine"})[0] == 403
        wish = {"gpus": 1, "starts_at": "2099-01-01T00:00:00Z", "lasts_s": 60}
        assert user.call("POST", "/v1/reservations", wish)[0] == 403
        assert user.call("POST", "/v1/reservations", wish | {"book": True})[0] == 403
        assert user.call("POST", "/v1/reservations/1/cancel", {})[0] == 404
        assert user.call("GET", "/v1/reservations")[0] == 200
    assert {system_wide.job(id)["state"] for id in jobs} == {"starting"}

    status, out = users[0].call("POST", "/v1/cancel", {"select": "all"})
    assert (status, [result["id"] for result in out["results"]]) == (200, [jobs[0]])
    assert system_wide.ended(jobs[0])["state"] == "cancelled"
    assert system_wide.job(jobs[1])["state"] == "starting"


def test_a_user_gets_nowhere_with_roots_rights(system_wide: Carmad) -> None:
    """Not into a directory, not into a log file; and the state directory stays closed."""
    nobody, other = User(system_wide, "nobody"), User(system_wide, "daemon")
    locked = nobody.sh("true", cwd=str(other.home))
    assert "cannot enter the working directory" in system_wide.ended(locked)["exit"]["evidence"]
    target = other.home / "precious"
    target.write_text("keep")
    target.chmod(0o600)
    writes = nobody.sh("echo spoilt", stdout=str(target))
    assert "cannot open the log file" in system_wide.ended(writes)["exit"]["evidence"]
    assert target.read_text() == "keep"
    reads = nobody.sh(f"cat {system_wide.state}/carma.db || exit 9")
    assert system_wide.ended(reads)["exit"]["code"] == 9


# -- the command line


def test_submit_and_wait_answers_with_the_jobs_exit_code(daemon: Carmad) -> None:
    assert daemon.carma("submit", "--wait", "true").startswith("Submitted batch job 1")
    daemon.carma("submit", "--wait", "--wrap", "exit 5", rc=5)
    daemon.carma("submit", "--wait", "--wrap", "kill -9 $$", rc=137)
    daemon.carma("submit", "--wait", "--anyway", "--output", "no/such/log", "true", rc=1)
    id = daemon.carma("submit", "--parsable", "--wrap", "sleep 0.3; exit 3").strip()
    daemon.carma("wait", id, rc=3)


def test_a_job_makes_its_files_as_its_submitters_umask_says(daemon: Carmad) -> None:
    """That includes its log."""
    run = ["--wait", "--gpu-mem", "1G", "--wrap", "umask; touch checkpoint"]
    daemon.carma("submit", *run, umask=0o077)
    made = [daemon.work / "carma-1.out", daemon.work / "checkpoint"]
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o600", "0o600"]
    assert daemon.output(1) == "0077\n"
    assert json.loads(daemon.carma("show", "--json", "1"))["umask"] == "0077"
    untold = daemon.sh("umask")
    daemon.ended(untold)
    assert daemon.output(untold) == "0022\n"


def test_a_job_has_the_limits_of_its_submitters_shell(daemon: Carmad) -> None:
    """As far as its own hard limits allow; what nobody has changed is the daemon's."""
    see = "ulimit -Sn; ulimit -Ss; ulimit -Sc; ulimit -Hn"
    words = shlex.join([*CARMA, "submit", "--wait", "--gpus", "0", "--wrap", see])
    shell = f"ulimit -Sn 3456; ulimit -Ss 65536; ulimit -Sc 0; {words}"
    env = daemon.env | {"CARMA_SOCKET": daemon.socket}
    subprocess.run(["bash", "-c", shell], env=env, cwd=daemon.work, check=True, timeout=PATIENCE_S)
    files, stack, _, hard = daemon.output(1).split()
    assert (files, stack) == ("3456", "65536")

    most = daemon.sh(see, gpus=0, limits={"nofile": -1, "core": (1 << 63) - 1})
    assert daemon.ended(most)["state"] == "succeeded"
    files, _, _, its_hard = daemon.output(most).split()
    assert files == its_hard == hard, "never above the hard limit"


TAKEN = ("cli", "policies", "estimators", "recovery")  # names of ours that others have, too
SHADOWS = ("types", "logging", "json", "socket", "re", "typing", "asyncio", "starlette", "yaml")


def test_what_the_user_has_on_pythons_path_is_the_users_own(tmp_path: Path) -> None:
    """The commands, the daemon and what these start run without it; a job gets it."""
    project = tmp_path / "project"
    for name in TAKEN[1:]:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    for name in (TAKEN[0], *SHADOWS):
        (project / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    words = ["--gpus", "0", "--wait", "--wrap", "echo path=$PYTHONPATH"]
    socket, state = tmp_path / "sock", tmp_path / "state"
    env = clean_environment() | QUICK | {"CARMA_SOCKET": str(socket), "CARMA_ESTIMATOR": "auto"}
    env["PATH"] = f"{Path(CARMA[0]).parent}:{env['PATH']}"

    def carma(*words: str, path: str = ".") -> str:
        ran = subprocess.run(
            [CARMA[0], *words],
            env=env | {"PYTHONPATH": path},
            cwd=project,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0 or words[0] in ("doctor", "estimate"), (words, ran)
        assert not any(odd in ran.stdout + ran.stderr for odd in ("the wrong one", "Traceback"))
        return ran.stdout

    start = ["--state-dir", str(state), "--socket", str(socket)]
    carma("daemon", "start", "--emulated", "1xA100-40GB", *start)
    try:
        carma("submit", *words)
        assert (project / "carma-1.out").read_text() == "path=.\n"
        for more in (["why", "1"], ["queue"], ["doctor", "--json"], ["config", "show"]):
            carma(*more)
        carma("estimate", "--json", "true")
        assert "carma" in carma("--version", path=f"{project}:{ROOT}")
        assert "carma" in carma("--version", path=f"{ROOT}:{project}")
    finally:
        carma("daemon", "stop")


def test_an_array_runs_as_many_at_once_as_it_may(daemon: Carmad) -> None:
    script = "mkdir running || exit 9; echo $CARMA_ARRAY_TASK_ID; sleep 0.1; rmdir running"
    daemon.carma("submit", "--wait", "--array", "3-9:3%1", "--wrap", script)
    outputs = sorted(path.name for path in daemon.work.glob("carma-*.out"))
    assert outputs == ["carma-1_3.out", "carma-1_6.out", "carma-1_9.out"]
    assert [(daemon.work / name).read_text() for name in outputs] == ["3\n", "6\n", "9\n"]


def test_a_job_finds_its_daemon_and_tells_of_its_stages(daemon: Carmad) -> None:
    carma = f"{shlex.quote(sys.executable)} -c 'from cli.main import main; main()'"
    stages = "--stages 'load=10ms forward=40ms backward=90ms'"
    told = f"cd {shlex.quote(str(ROOT))} && {carma} report --step 0.2 {stages}"
    id = daemon.sh(told)
    assert daemon.ended(id)["exit"]["code"] == 0
    (times,) = daemon.job(id)["stage_times"]
    assert (times["forward_s"], times["gpu"]) == (0.04, "Emulated A100-SXM4-40GB")


def test_a_chain_of_dependencies(daemon: Carmad) -> None:
    def submit(*words: str) -> str:
        return daemon.carma("submit", "--parsable", *words).strip()

    gate = submit("--wrap", "while [ ! -e go ]; do sleep 0.05; done; echo 1 >> order")
    after = submit("--after", gate, "--wrap", "echo 2 >> order; exit 1")
    good = submit("--after", "last", "--wrap", "echo never >> order")
    last = submit("-d", f"afterany:{after}:{good}", "--wrap", "echo 3 >> order")
    bad = submit("-d", f"afternotok:{after}", "--hold", "true")
    assert [reason["code"] for reason in daemon.why(int(after))["reasons"]] == ["dependency"]
    assert f"job {gate}" in daemon.carma("why", after)
    (daemon.work / "go").touch()
    daemon.carma("wait", last)
    assert (daemon.work / "order").read_text().split() == ["1", "2", "3"]
    job = daemon.job(int(good))
    assert (job["state"], job["exit"]["cause"]) == ("cancelled", "dependency")
    assert f"job {after}" in job["exit"]["evidence"]
    job = daemon.job(int(bad))
    assert (job["state"], job["held"]) == ("queued", True)


def test_jobs_are_held_released_cancelled_and_run_again(daemon: Carmad) -> None:
    id = daemon.carma(
        "submit", "--parsable", "--hold", "--wrap", "echo up; exec sleep 1000"
    ).strip()
    daemon.await_state(int(id), "queued")  # its memory has been estimated
    assert f"carma release {id}" in daemon.carma("why", id)
    daemon.carma("release", id)
    daemon.await_output(int(id), "up")
    daemon.carma("cancel", id)
    assert daemon.ended(int(id))["state"] == "cancelled"
    daemon.carma("cancel", id, rc=1)
    daemon.carma("requeue", id)
    until(lambda: daemon.output(int(id)).count("up") == 2, "its second attempt")
    assert daemon.job(int(id))["attempt"] == 2
    daemon.carma("cancel", "all")
    assert daemon.ended(int(id))["state"] == "cancelled"


def test_options_of_a_waiting_job_are_changed(daemon: Carmad) -> None:
    first = daemon.sh("exit 0", held=True)
    id = int(daemon.carma("submit", "--parsable", "--hold", "--", "/bin/sh", "-c", "sleep 100"))
    words = ["--time", "0:01", "--name", "brief", "--gpu-mem", "2G", "-d", f"afterok:{first}"]
    told = daemon.carma("update", str(id), *words)
    assert told == f"job {id}: updated: --gpu-mem, --time, --dependency, --job-name\n"
    daemon.kill()
    daemon.start()
    until(lambda: daemon.job(id)["memory"]["estimate_mib"] == 2048, "its new estimate")
    assert (daemon.job(id)["name"], daemon.job(id)["time_limit_s"]) == ("brief", 1.0)
    daemon.post("/v1/release", {"select": f"{first},{id}"})
    assert daemon.ended(id)["state"] == "timed_out"
    assert daemon.ended(first)["state"] == "succeeded"


def test_logs_are_followed_to_the_end(daemon: Carmad) -> None:
    script = "echo one; sleep 0.5; echo two; echo oops >&2; exit 2"
    id = daemon.carma("submit", "--parsable", "--error", "%j.err", "--wrap", script).strip()
    assert daemon.carma("logs", "-f", id).splitlines()[-2:] == ["one", "two"]
    assert daemon.carma("logs", "--stderr", "last") == "oops\n"


def test_what_python_prints_is_seen_at_once_and_after_a_cancel(daemon: Carmad) -> None:
    code = "import time; print('step 1'); time.sleep(1000)"
    id = daemon.carma("submit", "--parsable", "--gpus", "0", "--", sys.executable, "-c", code)
    daemon.await_output(int(id), "step 1")
    assert "step 1" in daemon.carma("logs", id.strip())
    daemon.carma("cancel", id.strip())
    daemon.ended(int(id))
    assert "step 1" in daemon.carma("logs", id.strip())


def test_a_job_of_a_job_has_its_own_settings(tmp_path: Path) -> None:
    """By each way in: `carma submit` and `carma run`."""
    mine = "OMP_NUM_THREADS XLA_PYTHON_CLIENT_PREALLOCATE TF_FORCE_GPU_ALLOW_GROWTH MASTER_PORT"
    show = f"for each in {mine}; do printenv $each || echo none; done; echo $PATH"
    outer = """
        : srun
        carma submit --wait -o alone.out --exclusive --cpus 2 sh inner.sh
        carma run --quiet --exclusive --cpus 3 sh inner.sh >run.out 2>&1
        echo $PATH
    """
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with running(tmp_path, CARMA_HOST__CPUS="8", **NO_KERNELS) as daemon:
        (daemon.work / "inner.sh").write_text(f"#!/bin/sh\n{show}\n")
        id = daemon.sh(outer, env=env, gpus=1, cpus=1, memory_mib=1000)
        job = daemon.ended(id)
        assert job["state"] == "succeeded", daemon.output(id)
        assert daemon.output(id).splitlines()[-1] == f"{env['PATH']}:{SHIMS}"
        port = job_port(id)
        for name, cpus in (("alone", "2"), ("run", "3")):
            *settings, path = (daemon.work / f"{name}.out").read_text().splitlines()[-5:]
            assert settings[:3] == [cpus, "none", "none"], name
            assert settings[3] != port and path == env["PATH"], name


def job_port(id: int) -> str:
    return job_environment(make_job(Path("/"), "true", id=id), ())["MASTER_PORT"]


def test_a_port_that_is_taken_is_explained(daemon: Carmad) -> None:
    code = "import socket; s = socket.create_server(('', 0)); socket.create_server(s.getsockname())"
    id = daemon.submit(sys.executable, "-c", code, gpus=0)
    assert daemon.ended(id)["state"] == "failed"
    assert "$MASTER_PORT" in daemon.carma("why", str(id))


def test_a_job_runs_again_after_an_exit_code_that_its_owner_names(daemon: Carmad) -> None:
    id = daemon.sh("[ $CARMA_RESTART_COUNT = 2 ] || exit 75", gpus=0, retry_on="75")
    job = daemon.ended(id)
    assert (job["state"], job["attempt"]) == ("succeeded", 3)
    assert [each["code"] for each in job["failures"]] == [75, 75]
    hopeless = daemon.ended(daemon.sh("exit 75", gpus=0, retry_on="3,75"))
    assert (hopeless["state"], hopeless["attempt"]) == ("failed", 3)


def test_work_that_a_script_leaves_in_the_background_is_named(daemon: Carmad) -> None:
    id = daemon.sh("sleep 600 & sleep 600 &", gpus=0)
    assert daemon.ended(id)["state"] == "succeeded"
    for verb in ("why", "show"):
        assert "it left 2 processes in the background" in daemon.carma(verb, str(id))
    assert "background" not in daemon.carma("why", str(daemon.sh("sleep 0 & wait", gpus=0)))
    for crash in ("kill -9 $$", "exit 139"):  # a loader's workers, for instance, outlive that
        id = daemon.sh(f"sleep 600 & {crash}", gpus=0)
        assert daemon.ended(id)["state"] == "failed"
        assert "background" not in daemon.carma("why", str(id))


def test_logs_show_one_job_and_old_text_decides_nothing(daemon: Carmad) -> None:
    """The first of two jobs with the same log ran out of memory."""
    oom = daemon.sh("echo torch.OutOfMemoryError: CUDA out of memory. >&2; exit 1", stdout="log")
    assert daemon.ended(oom)["exit"]["cause"] == "gpu_oom"
    id = daemon.sh("echo ModuleNotFoundError; exit 1", stdout="log")
    assert daemon.ended(id)["exit"]["cause"] == "failure"
    title, said = daemon.carma("logs", str(id)).splitlines()
    assert title.startswith(f"=== carma job {id}, attempt 1, ")
    assert said == daemon.job(id)["exit"]["evidence"] == "ModuleNotFoundError"
    assert "OutOfMemory" in daemon.carma("logs", str(oom))
    assert "ModuleNotFound" not in daemon.carma("logs", str(oom))


def test_gpus_are_drained_and_resumed_across_restarts(daemon: Carmad) -> None:
    daemon.carma("drain", "0", "--reason", "new fan")
    assert "new fan" in daemon.carma("gpus")
    daemon.kill()
    daemon.start()
    id = daemon.submit("true", gpus=3)
    until(lambda: "drained" in refusals(daemon, id), "the job to wait")
    assert "new fan" in daemon.carma("why", str(id))
    daemon.carma("drain", "--undo", "0")
    assert daemon.ended(id)["state"] == "succeeded"


def test_what_has_been_is_listed_and_summed_up(daemon: Carmad) -> None:
    for script in ("exit 0", "exit 1", "exit 0"):
        daemon.ended(daemon.sh(script, name="past"))
    listed: dict[str, Any] = json.loads(daemon.carma("history", "--json"))
    assert [(job["id"], job["state"]) for job in listed["jobs"]] == [
        (3, "succeeded"),
        (2, "failed"),
        (1, "succeeded"),
    ]
    total = json.loads(daemon.carma("stats", "--json"))["total"]
    assert (total["jobs"], total["succeeded"], total["failed"]) == (3, 2, 1)
    assert total["gpu_hours"] >= 0
    assert "past" in daemon.carma("history")
    assert daemon.carma("stats")
    month = f"{datetime.now():%Y-%m}"
    head, row = daemon.carma("stats", "--by", "month", "--csv").splitlines()
    assert head.startswith("month,jobs,succeeded,failed,oom,gpu_hours,energy_kwh,")
    assert row.startswith(f"{month},3,2,1,0,")
    assert daemon.carma("stats", "--until", "2001-01-01", "--csv").count("\n") == 1
    ended = [line.split(",")[0] for line in daemon.carma("history", "--csv").splitlines()]
    assert ended == ["label", "3", "2", "1"]


def test_stats_say_what_sharing_gave_though_no_job_reports_steps(tmp_path: Path) -> None:
    """The emulated GPU slows two jobs of SMACT 0.6 by 1.26: together it is 0.95."""
    with running(tmp_path, "1xA100-40GB", CARMA_PROFILING__RUN_S="0.3") as daemon:
        words = train(memory_mib=4_000, sm=0.6, dram=0.1, seconds=1000, warmup=0.1)
        first = daemon.submit(*words)
        until(lambda: daemon.job(first)["profile"], "its profile")
        assert "sharing in 7 days: No two jobs shared a GPU." in daemon.carma("stats")
        daemon.await_state(daemon.submit(*words), "running")
        until(lambda: "SM activity together and alone (2 jobs)" in daemon.carma("stats"), "news")
        found = json.loads(daemon.carma("stats", "--report", "week", "--since", "1h", "--json"))
    its = found["sharing"]
    assert its["sources"] == {"activity": 2}
    assert its["slowdown"] == pytest.approx(1.26, abs=0.1)


# -- doing nothing


def test_an_idle_daemon_writes_nothing(daemon: Carmad) -> None:
    """With ended jobs and a waiting one, time passes without any file changing."""
    jobs = daemon.post("/v1/jobs", daemon.submission("true", array={"indices": list(range(30))}))
    waits = daemon.submit("true", held=True)
    for id in jobs["ids"]:
        daemon.ended(id)
    files = [daemon.state / "carma.db", daemon.state / "carma.db-wal"]
    until(lambda: not list((daemon.state / "jobs").iterdir()), "the attempts to be cleared away")
    before = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    readings: set[float] = set()
    until(lambda: readings.add(daemon.gpus()[0]["energy_j"]) or len(readings) > 20, "readings")
    assert [(file.stat().st_size, file.stat().st_mtime_ns) for file in files] == before
    assert [job["id"] for job in daemon.get("/v1/jobs")["jobs"]] == [waits]


def test_gpus_are_chosen_on_a_mixed_server(tmp_path: Path) -> None:
    hold = ("--gpu-mem", "1G", "--", "sleep", "600")
    with running(tmp_path, "2xA100-40GB,1xV100-16GB", **NO_KERNELS) as carmad:

        def submit(*words: str) -> int:
            return int(carmad.carma("submit", "--parsable", *words, *hold))

        def gpus(job: int) -> list[int]:
            return [gpu["index"] for gpu in carmad.await_state(job, "starting", "running")["gpus"]]

        assert gpus(submit("--gpus", "v100:1", "--exclusive")) == [2]
        assert gpus(submit("--gres=gpu:a100:2", "--exclusive", "--not-on", "2")) == [0, 1]
        refused = carmad.carma("submit", "--gpus", "h100:1", *hold, rc=None)
        assert "wants a GPU with h100, and this server has none" in refused
        assert "2 × " in refused and "1 × " in refused
        waits = submit("--on", "2")
        until(lambda: "choice" in refusals(carmad, waits), "the other GPUs to be refused")
        carmad.carma("update", str(waits), "--on", "0")
        assert carmad.job(waits)["on"] == "0"
