"""Slurm decides where, CARMA decides with whom: jobs of a real Slurm, placed by their node's
carmad."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from carma_slurm.grants import grant_gib
from carma_slurm.login import checks as slurm_checks
from carma_slurm.node import Node, Wanted, changes, goal, node_in
from carma_testing import a_gpu_view, a_view
from carmad.config import Cluster
from carmad.core.gpus.gpu import Drain
from carmad.core.jobs.tasks import JobsById
from carmad.core.scene import Scene
from tests.daemon import CARMA, NO_KERNELS, OVER, Carmad, Json, train, until
from tests.extras.carma_slurm import slurm

URGENT = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=9 State=UP
"""

CGROUPS = os.access(slurm.FREEZER / "cgroup.procs", os.W_OK)

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=f"needs {slurm.missing()}")


def carma_run(*words: str) -> str:
    return shlex.join([*CARMA, "run", *words])


@dataclass
class Site:
    slurm: slurm.Cluster
    node: Carmad

    def run(self, *words: str, by: str = "", gib: int = 10, **env: str) -> int:
        """Submit to Slurm a script that runs these words by `carma run`; `by` "exec", for one."""
        return self.sbatch(f"{by} {carma_run(*words)}", gib, **env)

    def sbatch(self, script: str, gib: int, **env: str) -> int:
        quick = {name: value for name, value in self.node.env.items() if name[:6] != "CARMA_"}
        gres = [f"--gres=gpumem:{gib}"] if gib else []
        return self.slurm.sbatch("--requeue", *gres, f"--wrap={script}", env=quick | env)

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
        with suppress(FileNotFoundError):  # not begun
            return (self.slurm.folder / f"{slurm_job}.out").read_text()
        return ""

    def state(self, slurm_job: int) -> str:
        return self.slurm.jobs()[slurm_job]

    def await_state(self, slurm_job: int, state: str) -> None:
        until(lambda: self.state(slurm_job) == state, f"{slurm_job} to be {state}")

    def no_gpu_is_held(self) -> None:
        until(lambda: not any(gpu["jobs"] for gpu in self.node.gpus()), "free GPUs")


@contextmanager
def a_site(folder: Path, tracks: str = "linuxproc") -> Iterator[Site]:
    with ExitStack() as stack:
        node = "Gres=gpumem:80"
        extra = f"GresTypes=gpumem\n{URGENT}"
        made = stack.enter_context(
            slurm.cluster(folder, nodes=1, node=node, extra=extra, tracks=tracks)
        )
        cluster = {"CARMA_CLUSTER__ENGINE": "slurm", "CARMA_CLUSTER__NODE": "n1"}
        daemon = Carmad(folder / "n1", "2xA100-40GB", **NO_KERNELS, **cluster)
        daemon.env["SLURM_CONF"] = made.env["SLURM_CONF"]
        stack.callback(daemon.clear_away)
        daemon.start()
        yield Site(made, daemon)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with a_site(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_left(site: Site) -> Iterator[None]:
    yield
    site.slurm.run("scancel", "-f", "-u", "root")
    if not site.node.alive:
        site.node.start()
    until(lambda: not site.slurm.run("squeue", "-h"), "the end of Slurm's jobs")
    until(lambda: not site.node.get("/v1/jobs")["jobs"], "the end of CARMA's jobs")


def test_a_slurm_job_runs_where_carma_says_and_stays_slurms(site: Site) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID $CARMA_JOB_ID; echo oops >&2; exit 3"
    number = site.run("--gpu-mem", "9G", "--", "sh", "-c", script)
    site.await_state(number, "FAILED")
    said = site.output(number)
    (gpu, known, id), *_ = (line.split() for line in said.splitlines() if line.startswith("GPU-"))
    assert gpu in {each["id"] for each in site.node.gpus()} and int(known) == number, said
    assert "oops" in said
    job = site.node.job(int(id))
    assert (job["slurm_job"], job["state"], job["exit"]["code"]) == (number, "failed", 3)
    assert str(number) in site.node.carma("show", id)
    assert f"Slurm job {number}" in site.node.carma("logs", id, rc=1)


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
    until(flag.exists, "the first attempt")
    site.node.cancel(beside)
    site.await_state(number, "COMPLETED")
    said = site.output(number)
    assert "is run again" in said and "fits" in said and oom in said, said
    (job,) = site.node.get("/v1/history?states=succeeded&limit=1")["jobs"]
    assert job["slurm_job"] == number and job["attempt"] == 2
    assert job["failures"][0]["cause"] == "gpu_oom"


HELD = ("starting", "running")
HOLDS = ("--exclusive", "--", "sleep", "1000")


@pytest.mark.parametrize(
    "end",
    ["scancel", "requeue", "preempt", pytest.param("time limit", marks=pytest.mark.long)],
)
def test_what_slurm_ends_is_gone_whether_it_waits_or_runs(site: Site, end: str) -> None:
    holds = [site.run(*HOLDS) for _ in range(2)]
    ids = [site.job(number, *HELD)["id"] for number in holds]
    waits = site.run(*HOLDS)
    ids.append(site.job(waits, "queued")["id"])
    if end == "preempt":
        site.slurm.sbatch("--partition=urgent", "--exclusive", "--wrap=sleep 1000")
    else:
        for number in (waits, *holds):
            _end(site, number, end)
    if end in ("requeue", "preempt"):  # Slurm runs them anew, often after two minutes only
        until(lambda: all(site.node.job(id)["state"] in OVER for id in ids), "the end of the old")
        site.slurm.run("scancel", "-f", *map(str, (waits, *holds)))
    until(lambda: not site.node.get("/v1/jobs")["jobs"], f"the end by {end}")
    site.no_gpu_is_held()


def _end(site: Site, number: int, how: str) -> None:
    if how == "scancel":
        site.slurm.run("scancel", str(number))
    elif how == "requeue":
        site.slurm.run("scontrol", "requeue", str(number))
    elif how == "time limit":
        soon = "EndTime=now+1"  # what has passed when slurmctld reads it is refused
        site.slurm.run("scontrol", "update", f"JobId={number}", soon)
    else:
        _kill_run(site, number)


def _kill_run(site: Site, number: int) -> None:
    """`kill -9` of `carma run` alone."""
    (job,) = site.jobs(number)
    os.kill(int(job["stdout"].split("/")[2]), signal.SIGKILL)


def test_a_run_has_no_more_memory_than_slurm_gave(site: Site) -> None:
    more = site.run("--gpu-mem", "6G", "--gpus", "2", "true")
    nothing = site.run("true", gib=0)
    for number, why, hint in ((more, "10 GiB", "12"), (nothing, "0 GiB", "GIB")):
        site.await_state(number, "FAILED")
        assert f"Slurm gave job {number} {why} of GPU memory, and this run" in site.output(number)
        assert f"--gres=gpumem:{hint}" in site.output(number)


def test_the_runs_of_a_slurm_job_share_what_it_was_given(site: Site, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = carma_run("--gpu-mem", "8G", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.1; done")
    known = f"until grep -q 'runs on GPU' {tmp_path}/first; do sleep 0.1; done"
    more = carma_run("--gpu-mem", "5G", "true")
    number = site.sbatch(
        f"{first} 2>{tmp_path}/first & {known}; {more}; touch {go}; wait; {more}", 12
    )
    site.await_state(number, "COMPLETED")
    assert site.output(number).count("its runs here ask for 13") == 1, "the first has ended, then"


def test_without_an_answer_of_slurms_nothing_is_held_to_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert grant_gib(Cluster("slurm"), 1) is None
    assert grant_gib(Cluster(), 1) is None


LISTENS = """\
import signal, sys
heard = {signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
print("up", flush=True)
within_s = 60
while got := signal.sigtimedwait(heard, within_s):
    print(signal.Signals(got.si_signo).name, file=sys.stderr, flush=True)
    within_s = 1
"""


@pytest.mark.parametrize(
    ("by", "words", "signum"),
    [
        ("", [], "SIGTERM"),
        ("exec", ["--signal=USR1", "--batch"], "SIGUSR1"),  # as by `sbatch --signal=B:USR1@60`
        ("srun", ["--signal=USR1"], "SIGUSR1"),
    ],
)
def test_a_command_hears_once_what_slurm_tells_it(
    site: Site, by: str, words: list[str], signum: str
) -> None:
    """Most signals go to all processes, and so to `carma run` as well, which passes signals on."""
    assert _heard(site, by, words) == [signum]


def _heard(site: Site, by: str, words: list[str]) -> list[str]:
    number = site.run("--gpu-mem", "1G", "--", sys.executable, "-c", LISTENS, by=by)
    until(lambda: "up\n" in site.output(number), "the command")
    site.slurm.run("scancel", *words, str(number))
    until(lambda: not site.jobs(number), "the end")
    return [word for word in site.output(number).split() if word in ("SIGTERM", "SIGUSR1")]


@pytest.mark.skipif(not CGROUPS, reason="needs the freezer of cgroup v1")
def test_with_cgroups_too_a_command_hears_each_signal_once(tmp_path: Path) -> None:
    """Slurm tells only the processes that it started itself."""
    with a_site(tmp_path, tracks="cgroup") as site:
        for by, words, signum in (("exec", [], "SIGTERM"), ("srun", ["--signal=USR1"], "SIGUSR1")):
            assert _heard(site, by, words) == [signum]
        number = site.sbatch(f"setsid -f {carma_run('sleep', '1000')}; sleep 1000", 10)
        job = site.job(number, *HELD)  # known by its cgroup: it has left its parents
        site.slurm.run("scancel", str(number))
        assert site.node.ended(job["id"])["state"] == "cancelled"


def test_a_job_that_is_cancelled_in_carma_ends_its_slurm_job(site: Site) -> None:
    holds = [site.run(*HOLDS) for _ in range(2)]
    ids = [site.job(number, *HELD)["id"] for number in holds]
    waits = site.run(*HOLDS)
    ids.append(site.job(waits, "queued")["id"])
    for id in reversed(ids):
        site.node.cancel(id)
    for number in (*holds, waits):
        site.await_state(number, "FAILED")
        assert "cancelled" in site.output(number)
    assert "ExitCode=143:0" in site.slurm.run("scontrol", "show", "job", str(holds[0]))


def test_nothing_is_lost_or_doubled_while_the_daemon_is_gone(site: Site, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo began; while [ ! -e {go} ]; do sleep 0.1; done; echo over"
    runs = [site.run("--exclusive", "--", "sh", "-c", script) for _ in range(2)]
    for number in runs:
        site.job(number, *HELD)
    waits = site.run("--exclusive", "--", "sh", "-c", script)
    site.job(waits, "queued")
    gone = site.run(*HOLDS)
    site.job(gone, "queued")
    before = len(site.node.get("/v1/jobs")["jobs"])
    site.node.kill()
    late = site.run("--exclusive", "--", "sh", "-c", script)
    until(lambda: "still trying to submit" in site.output(late), "a submission without carmad")
    site.slurm.run("scancel", "-f", str(gone))
    site.node.start()
    until(lambda: not site.jobs(gone), "the end of what was cancelled meanwhile")
    site.job(late, "queued")
    assert len(site.node.get("/v1/jobs")["jobs"]) == before
    site.node.kill()
    go.touch()
    until(lambda: all("over" in site.output(number) for number in runs), "the ends of two")
    site.node.start()
    for number in (*runs, waits, late):
        site.await_state(number, "COMPLETED")
        assert site.output(number).count("began") == 1, site.output(number)


def test_a_node_never_has_more_than_slurm_conf_gives_it() -> None:
    node = Node("gpu:2,gpumem:78", 78, False, "")
    assert [*changes(node, Wanted(81_920, 81_920, ""))] == []
    half = {"Gres": "gpu:2,gpumem:39", "Comment": "carma: GPU 1 is lost"}
    assert [*changes(node, Wanted(40_960, 81_920, "GPU 1 is lost"))] == [half]


def test_what_scontrol_prints_of_a_node() -> None:
    said = "NodeName=n1 Gres=gpu:2(S:0-1),gpumem:no_consume:1K State=IDLE+DRAIN Comment=x "
    node = node_in(f"{said} Reason=carma: GPU 0: lost [root@2026-11-23T09:00:00]\n", 1024)
    assert node == Node("gpu:2,gpumem:no_consume:1K", 1024, True, "carma: GPU 0: lost")
    assert [*changes(node, Wanted(81_920, 81_920, ""))] == [
        {"Gres": "gpu:2,gpumem:1024", "Comment": ""},
        {"State": "RESUME"},
    ]


def test_a_reason_is_one_line_whatever_was_typed() -> None:
    gpu = a_gpu_view()
    drains = {gpu.id: Drain(gpu.id, "a fan\nis loud", "root", 0.0)}
    want = goal(Scene(a_view([gpu], []), {gpu.id: gpu.gpu}, JobsById(), {}, (), drains=drains))
    assert want and want.why == "GPU 0 drained by root: a fan?is loud"


def test_slurm_has_no_more_gpu_memory_than_the_gpus_that_take_jobs(site: Site) -> None:
    def says(text: str) -> None:
        until(lambda: text in site.slurm.run("scontrol", "show", "node", "n1"), text)

    says("Gres=gpumem:80")
    site.node.carma("drain", "1", "--reason", "a fan is loud")
    says("Gres=gpumem:40")
    says("Comment=carma: GPU 1 drained by root: a fan is loud")
    site.node.carma("drain", "0", "--reason", "and this one")
    says("Reason=carma: GPU 0 drained by root: and this one; GPU 1")
    assert "drain" in site.slurm.states()["n1"]
    site.node.kill()  # nothing that only it would know
    site.node.start()
    site.node.carma("drain", "--undo", "all")
    says("Gres=gpumem:80")
    until(lambda: site.slurm.states() == {"n1": "idle"}, "a node that takes jobs again")
    site.slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=the roof leaks")
    site.node.carma("drain", "1", "--reason", "once more")
    says("Gres=gpumem:40")
    site.node.carma("drain", "--undo", "1")
    says("Gres=gpumem:80")
    assert "drain" in site.slurm.states()["n1"], "what people drained, people resume"
    site.slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")


def test_the_doctor_says_what_is_missing(site: Site) -> None:
    site.node.env["CARMA_CLUSTER__NODE"] = "n1"
    said = json.loads(site.node.carma("doctor", "--slurm", "--json"))
    checks = {check["name"]: check["ok"] for check in said["checks"]}
    assert checks == {
        "slurmctld": True,
        "GresTypes": True,
        "devices": True,
        "KillWait": None,  # five seconds, in tests
        "socket": True,
        "engine": True,
        "node": True,
    }, said


TOO_MUCH = "gres/gpumem count reported lower than configured (80 < 800)"  # Slurm's own words


@pytest.mark.parametrize(
    ("node", "ok", "hint"),
    [
        (Node("gpumem:80", 80, False, ""), True, ""),
        (Node("gpumem:800", 800, False, ""), False, "Gres=gpumem:80 in slurm.conf"),
        (Node("gpumem:800", 800, True, TOO_MUCH), False, "Gres=gpumem:80 in slurm.conf"),
        (Node("gpumem:80", 80, True, "the roof leaks"), None, "State=RESUME"),
        (Node("gpumem:40", 80, False, ""), None, "Gres=gpumem:80 in slurm.conf"),
        (Node("gpu:2", 0, False, ""), False, "Gres=gpumem:80 in slurm.conf"),
    ],
)
def test_the_doctor_compares_slurms_record_with_the_gpus(
    node: Node, ok: bool | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_checks, "look", lambda _name: node)
    check = slurm_checks.of_node("n1", [{"memory_mib": 40_960}, {"memory_mib": 40_960}])
    assert check["ok"] is ok
    assert hint in check["hint"]
