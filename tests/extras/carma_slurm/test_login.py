"""`carma` on a Slurm cluster's login node, where no carmad runs."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import CARMA, NO_KERNELS, Carmad
from tests.extras.carma_slurm import slurm as real
from tests.extras.carma_slurm.slurm import HOSTILE
from tests.waiting import until

TRAINING = """\
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--width", type=int)
args = parser.parse_args()
net = torch.nn.Linear(args.width, args.width).cuda()
optimizer = torch.optim.SGD(net.parameters(), args.lr)
for _ in range(2):
    optimizer.zero_grad()
    net(torch.zeros(8, args.width, device="cuda")).sum().backward()
    optimizer.step()
"""
# Other users may not look into the folder that has the environment's Python.
SHIM = """\
#!/usr/bin/python3
import sys
sys.path[:0] = {path}
from cli.main import main
main()
"""


@dataclass
class User:
    """At the login node; `carma` is how they start it."""

    folder: Path
    env: dict[str, str]
    command: tuple[str, ...]

    def started(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *words],
            env=self.env | env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def carma(self, *words: str, rc: int = 0, **env: str) -> str:
        ran = self.started(*words, **env)
        said, _ = ran.communicate()
        assert ran.returncode == rc, said
        return said


@dataclass
class Site(User):
    """Root, as the user who has the cluster."""

    slurm: real.Cluster
    node: Carmad

    def submit(self, *words: str) -> str:
        return self.carma("submit", "--parsable", *words).strip()

    def of_user(self, name: str) -> User:
        """Skips the test if others cannot run CARMA here."""
        known = pwd.getpwnam(name)
        folder = self.folder / name
        folder.mkdir()
        os.chown(folder, known.pw_uid, known.pw_gid)
        shim = self.folder / "shim"
        shim.write_text(SHIM.format(path=[word for word in sys.path if word]))
        shim.chmod(0o755)
        ids = (f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups")
        user = User(folder, self.env | {"HOME": str(folder)}, ("setpriv", *ids, str(shim)))
        started = user.started("completion", "--help")
        said, _ = started.communicate()
        if started.returncode:
            pytest.skip(f"other users cannot run CARMA here: {said[-200:]}")
        return user

    def on_node(self, job: str) -> list[Any]:
        assert self.node.alive, self.node.log.read_text()[-4000:]
        return list(self.node.get(f"/v1/jobs?slurm_job={job}&states=starting,running")["jobs"])

    def until_it(self, job: str, *states: str) -> None:
        until(lambda: self.slurm.jobs()[int(job)] in states, f"{job} to be {states}")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if real.missing():
        pytest.skip(f"needs {real.missing()}")
    with ExitStack() as stack:
        # Not pytest's own: other users may not look into that.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="carma-slurm-")))
        folder.chmod(0o755)
        gres = "GresTypes=gpumem\n"
        made = stack.enter_context(real.cluster(folder, nodes=1, node="Gres=gpumem:80", extra=gres))
        daemon = Carmad(folder / "n1", "2xA100-40GB", **NO_KERNELS)
        stack.callback(daemon.clear_away)
        daemon.start()
        kept = {name: value for name, value in made.env.items() if not name.startswith("CARMA_")}
        own = {"CARMA_CLUSTER__ENGINE": "slurm", "XDG_RUNTIME_DIR": str(folder)}
        yield Site(folder, kept | own, (*CARMA,), made, daemon)


def test_a_command_runs_on_a_node_under_slurms_number(site: Site) -> None:
    tell = "import json, os, sys; print(json.dumps([os.environ['X'], *sys.argv[1:]])); sys.exit(5)"
    words = ("--gpu-mem", "9G", "--export", "X=a,b", "--", sys.executable, "-c", tell, *HOSTILE)
    said = site.carma("submit", "--wait", *words, rc=5)
    number = said.split()[-1]
    assert said == f"Submitted batch job {number}\n"
    out = site.carma("logs", number)
    line = next(line for line in out.splitlines() if line.startswith("["))
    assert json.loads(line) == ["a,b", *HOSTILE]
    assert "failed" in site.carma("why", "last") and "5:0" in site.carma("show", number)
    (job,) = site.node.get("/v1/history?limit=1")["jobs"]
    assert job["exit"]["code"] == 5 and job["memory"]["declared_mib"] == 9216


def test_a_running_job_is_asked_about_on_its_node(site: Site) -> None:
    job = site.submit("--gpu-mem", "30G", "--", "sh", "-c", "echo begun; sleep 600")
    until(lambda: site.on_node(job), "the job")
    site.carma("logs", job)
    assert "Slurm job" in site.carma("show", job) and "on n1" in site.carma("show", job)
    shown = json.loads(site.carma("why", job, "--json"))
    assert shown["state"] == "running" and shown["carma"]["job"]["slurm_job"] == int(job)
    assert "30G/80G" in site.carma("status")

    waiting = site.submit("--gpu-mem", "70G", "--hold", "true")
    assert "you hold it" in site.carma("why", waiting)
    assert "no output yet" in site.carma("logs", waiting, rc=1)
    assert "released" in site.carma("release", waiting)
    site.carma("submit", "-Q", "--after", "last", "--gpu-mem", "1G", "true")
    until(lambda: "has the GPU memory" in site.carma("why", waiting), "the reason")
    listed = json.loads(site.carma("queue", "--json", "-t", "PD"))["jobs"]
    assert (listed[0]["label"], listed[0]["gpumem_gib"]) == (waiting, 70)

    assert "cancelled" in site.carma("cancel", "all")
    site.until_it(job, "CANCELLED")
    until(lambda: not site.node.get("/v1/jobs")["jobs"], "the end on the node")
    assert "ended already" in site.carma("cancel", job, rc=1)


def test_a_job_script_is_copied_with_its_lines(site: Site) -> None:
    script = site.slurm.folder / "train.sh"
    lines = "#!/bin/sh\n#SBATCH --partition=gpu --comment='a b'\n#CARMA --gpu-mem 2G -J named\n"
    script.write_text(f"{lines}echo $SLURM_JOB_NAME $SLURM_ARRAY_TASK_ID $1\n")
    job = site.submit("--hold", "--array", "3,5", str(script), "it's")
    script.write_text(f"{lines}echo edited\n")
    site.carma("release", job)
    assert site.carma("wait", job) == f"job {job}: succeeded\n"
    assert "named 5 it's" in (site.slurm.folder / f"carma-{job}_5.out").read_text()


def test_what_means_nothing_in_a_cluster_is_refused(site: Site) -> None:
    assert "--qos" in site.carma("submit", "--urgent", "true", rc=2)
    assert "carma status" in site.carma("gpus", rc=2)
    assert "srun" in site.carma("run", "true", rc=2)
    checks = site.started("doctor", "--json").communicate()[0]  # its code depends on the machine
    assert "answers: Slurm" in checks and "daemon start" not in checks
    assert "does not know job 999" in site.carma("show", "999", rc=1)
    assert "so much" in site.carma("submit", "--gpu-mem", "81G", "true", rc=1)


def test_a_job_without_an_estimate_asks_for_a_whole_gpu_or_for_a_number(site: Site) -> None:
    assert "--gpu-mem" in site.carma("submit", "true", rc=1)
    said = site.carma("submit", "--dry-run", "--json", "true", CARMA_CLUSTER__GPU_GIB="40")
    found = json.loads(said.splitlines()[-1])
    assert found["gres"] == "gpumem:40" and "no estimate" in said
    assert found["argv"][0] == "sbatch" and "--gpu-mem" not in found["script"]


@pytest.mark.long
def test_a_traced_sweep_asks_for_what_its_largest_task_needs(site: Site) -> None:
    if find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    (site.slurm.folder / "tiny.py").write_text(TRAINING)
    sweep = ("--param", "lr=1e-3,1e-2", "--param", "width=1024,16384")
    said = site.carma("submit", "--hold", *sweep, "--", sys.executable, "tiny.py")
    # A layer of 2^28 weights in float32, and their gradients: 2 GiB.
    assert "G per GPU, estimated by trace" in said
    job = said.split()[-1]
    (asked,) = {row["gpumem_gib"] for row in json.loads(site.carma("queue", "--json"))["jobs"]}
    assert f"gres:gpumem:{asked}" in site.slurm.run("scontrol", "show", "job", job).split("=")
    assert 2 < asked < 5
    site.carma("cancel", job)
    broken = (sys.executable, "tiny.py", "--lr", "high")
    refused = site.carma("submit", "--", *broken, rc=1)
    assert "invalid float value: 'high'" in refused and "nothing was submitted" in refused


def test_an_array_is_cancelled_while_one_of_its_tasks_runs(site: Site) -> None:
    one_fails = "[ $SLURM_ARRAY_TASK_ID = 0 ] && exec sleep 600; exit 3"
    job = site.submit("--gpu-mem", "1G", "--array", "0,1", "--", "sh", "-c", one_fails)
    until(lambda: "failed" in site.carma("why", f"{job}_1"), "the end of a task")
    assert "runs on n1" in site.carma("why", job)
    assert json.loads(site.carma("wait", "--json", f"{job}_1", rc=3))["jobs"][0]["exit_code"] == 3
    assert "cancelled" in site.carma("cancel", job)
    assert "failed\n" in site.carma("wait", job, rc=143).replace("cancelled", "failed")


def test_a_directory_that_the_node_lacks_ends_the_job(site: Site) -> None:
    there = site.slurm.folder / "removed"
    there.mkdir()
    words = ("--hold", "--gpu-mem", "1G", "-D", str(there))
    kept = site.slurm.folder / "kept.out"
    told, lost = site.submit(*words, "-o", str(kept), "pwd"), site.submit(*words, "pwd")
    there.rmdir()
    site.carma("release", told)
    site.carma("wait", "--any", f"{told},{lost}", rc=1)
    site.carma("release", lost)
    site.until_it(told, "FAILED")
    said = site.carma("logs", told)
    assert "n1 does not have the job's directory" in said and "/tmp\n" not in said
    site.until_it(lost, "FAILED")
    assert "could not be written on the node" in site.carma("why", lost)


def test_sbatch_is_found_whatever_the_job_has_as_path(site: Site) -> None:
    words = ("--gpu-mem", "1G", "--export", "PATH=/nonexistent", "-J", 'a\nb "c"', "--hold")
    job = site.submit(*words, "/bin/true")
    assert 'a?b "c"' in site.carma("show", job)
    site.carma("cancel", job)


@pytest.mark.long
def test_what_was_written_before_a_requeue_stays_and_is_followed(site: Site) -> None:
    """Meanwhile the controller is restarted."""
    again = 'echo began ${SLURM_RESTART_COUNT:-0}; [ "$SLURM_RESTART_COUNT" ] || exec sleep 600'
    words = ("--gpu-mem", "1G", "--", "sh", "-c", again)
    with ExitStack() as stack:
        waits = stack.enter_context(site.started("submit", "--wait", *words))
        assert waits.stdout
        job = waits.stdout.readline().split()[-1]
        until(lambda: site.on_node(job), "the job")
        assert "runs already" in site.carma("hold", job, rc=1)
        follows = stack.enter_context(site.started("logs", "-f", job))
        assert follows.stdout
        said = ""
        while "began 0" not in said:
            line = follows.stdout.readline()
            assert line, said
            said += line

        site.slurm.stop_controller()
        assert "controller does not answer" in site.carma("queue", rc=3)
        refused = site.carma("submit", "--gpu-mem", "1G", "true", rc=3)
        assert "controller does not answer" in refused
        site.slurm.start_controller()
        until(lambda: site.slurm.states().get("n1") == "mixed", "the node")
        assert max(site.slurm.jobs()) == int(job), "nothing was submitted"

        site.carma("requeue", job)
        until(lambda: site.slurm.jobs()[int(job)] == "PENDING", "the job in line")
        assert "the time to begin, or to try again" in site.carma("why", job)
        time.sleep(1.1)  # Slurm's credentials count seconds: one of this second is void
        site.slurm.hurry(int(job))
        said += follows.communicate()[0]
        assert waits.wait() == follows.returncode == 0, said
    begun = [line for line in said.splitlines() if line.startswith("began")]
    assert begun == ["began 0", "began 1"], said
    assert site.carma("logs", job) == said


def test_users_have_their_own_jobs_only(site: Site) -> None:
    games, nobody = site.of_user("games"), site.of_user("nobody")
    private = "umask 077; id -u; echo $$ > pid; exec sleep 600"
    words = ("submit", "--parsable", "--gpu-mem", "1G", "-o", "log", "--", "sh", "-c", private)
    job, other = games.carma(*words).strip(), nobody.carma(*words).strip()
    until(lambda: site.on_node(job) and site.on_node(other), "two jobs")
    assert [site.on_node(one)[0]["user"] for one in (job, other)] == ["games", "nobody"]
    until((games.folder / "pid").exists, "the program")
    assert games.carma("logs", job).splitlines()[-1] == str(pwd.getpwnam("games").pw_uid)
    assert "on n1" in games.carma("show", job)

    (games.folder / "log").chmod(0o600)
    assert "cannot read" in nobody.carma("logs", job, rc=1)
    for verb in ("cancel", "requeue"):
        assert "ccess/permission denied" in nobody.carma(verb, job, rc=1)
    seen = nobody.carma("why", job)
    assert "runs on n1" in seen and "nothing from n1" in seen and "denied" in seen
    assert json.loads(nobody.carma("show", "--json", job))["carma"] is None
    assert "is games's, not root's" in site.carma("cancel", "-u", "root", job, rc=1)
    assert nobody.carma("cancel", "all") == f"job {other}: cancelled\n"
    site.until_it(other, "CANCELLED")
    assert site.slurm.jobs()[int(job)] == "RUNNING"
    assert site.carma("cancel", "-u", "games", "all") == f"job {job}: cancelled\n"
    site.until_it(job, "CANCELLED")


# who has no cluster


def test_one_server_imports_nothing_of_it(tmp_path: Path) -> None:
    code = "import sys, cli.main; cli.main.run(['queue']); print(*sys.modules)"
    env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path)}
    config = tmp_path / "carma.toml"

    def loaded(**more: str) -> set[str]:
        ran = subprocess.run(
            [sys.executable, "-c", code], env=env | more, capture_output=True, text=True, check=True
        )
        return set(ran.stdout.split())

    served = loaded(CARMA_SOCKET=str(tmp_path / "sock"))
    assert not [name for name in served if name.startswith(("carma_slurm.login", "tomllib"))]
    assert not {"carma_slurm.login.look", "tomllib"} & loaded(CARMA_CONFIG=str(config))
    config.write_text('[cluster]\nengine = "slurm"\n')
    assert "carma_slurm.login.look" in loaded(CARMA_CONFIG=str(config))
