"""`carma` on a Slurm cluster's login node, where no carmad runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from carmad.options import OPTIONS
from carmad.readable import counted
from cli.cluster import request, slurm
from cli.cluster.states import state_of, why_of
from cli.commands.run import ELSEWHERE, parser_of
from cli.commands.submit import read
from tests import slurm as real
from tests.daemon import CARMA, NO_KERNELS, Carmad
from tests.waiting import PATIENCE_S, until

HOSTILE = [
    "it's",
    'a "b"',
    "$HOME `id`",
    "two\nlines",
    "cr\r\nlf",
    "",
    "-x",
    "#SBATCH -n 9",
    "é%j\\",
]


def body_of(*words: str) -> dict[str, Any]:
    return read(list(words))[1]


def sbatch(*words: str) -> list[str]:
    return request.sbatch_words(body_of(*words), 10_000)


# requests


def test_the_request_is_filled_from_the_options() -> None:
    words = sbatch(
        *("-G", "2", "-c", "4", "--mem", "8G", "-t", "90", "-J", "a b", "-o", "x-%j", "-H"),
        *("-d", "afterok:1:2,afterany:3", "--nice", "7", "--array", "0-3,9%2", "--no-requeue"),
        *("--notify", "fail,oom,limit80", "true"),
    )
    assert words[:3] == ["sbatch", "--parsable", "--export=ALL"]
    assert set(words[4:]) == {
        *("--gres=gpumem:20", "--cpus-per-task=4", "--mem=8192M", "--time=0-01:30:00"),
        *("--job-name=a b", "--output=x-%j", "--hold", "--nice=7", "--array=0-3,9%2"),
        *("--dependency=afterok:1,afterok:2,afterany:3", "--no-requeue"),
        "--mail-type=FAIL,TIME_LIMIT_80",
    }


def test_memory_is_whole_gib_over_all_gpus() -> None:
    assert [request.gres(1, 1), request.gres(1, 1025), request.gres(3, 2048)] == [
        *("gpumem:1", "gpumem:2", "gpumem:6")
    ]
    assert not [word for word in sbatch("-G", "0", "true") if "gres" in word]


def test_the_node_is_told_what_slurm_does_not_know() -> None:
    body = body_of(
        *("--gpu-mem", "3G", "--exclusive", "--amp", "--batch-size", "32", "--expect", "1h"),
        *("-t", "2h", "--signal", "USR1@30", "-c", "4", "--layout", "2x forward=1ms in=1M"),
        *("--stages", "forward=3ms backward=4ms communication=1ms sync=backward", "true"),
    )
    words = request.step_words(body)
    assert words[:2] == ["--gpus=2", "--gpu-mem=3072M"]
    assert not [word for word in words if "cpus" in word]
    again = read([*words, "true"], parser_of("run"))[1]
    told = ("exclusive", "amp", "batch_size", "expected_s", "time_limit_s", "warn", "stage_times")
    for name in (*told, "layout"):
        assert again[name] == body[name], name


def test_every_option_is_slurms_or_the_nodes() -> None:
    """Whichever `carma run` refuses must have a form for sbatch, or the script does it. A
    container is refused."""
    at_a_terminal_only = {"conda_env", "container"}
    left = {name for name in OPTIONS if name in ELSEWHERE and not OPTIONS[name].slurm}
    assert left == at_a_terminal_only


@pytest.mark.parametrize("words", [["-N", "2"], ["--ntasks=4"], ["-n", "2"]])
def test_a_job_across_nodes_is_refused(words: list[str]) -> None:
    options, body = read([*words, "true"])
    with pytest.raises(Exception, match="one node") as refused:
        request.sbatch_words(body, 1024, options.ignored)
    assert "srun" in refused.value.hint  # type: ignore[attr-defined]


def test_options_of_sbatch_that_mean_nothing_on_one_server_reach_it() -> None:
    options, body = read(["-p", "gpu", "--account=me", "-N", "1", "true"])
    assert request.sbatch_words(body, 1, options.ignored)[-5:] == [
        *("-p", "gpu", "--account=me", "-N", "1")
    ]


def test_no_word_is_more_than_a_word_in_the_script(tmp_path: Path) -> None:
    carma = tmp_path / "carma"
    carma.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    carma.chmod(0o755)
    tell = "import json, sys; print(json.dumps(sys.argv[1:]))"
    body = body_of("--", sys.executable, "-c", tell, *HOSTILE)
    text = request.script(body, str(carma))
    assert "\r" not in text, "sbatch refuses it"
    assert json.loads(shell(text)) == HOSTILE
    swept = body_of("--param", "lr=1,$(id)", sys.executable, "-c", tell, "{lr}", *HOSTILE)
    assert json.loads(shell(request.script(swept, str(carma)), "1")) == ["$(id)", *HOSTILE]


def test_a_copied_script_is_run_under_its_name_and_removed(tmp_path: Path) -> None:
    (tmp_path / "my job.sh").write_text('#!/bin/sh\n#CARMA -G 1\necho "$0" "$1"; exit 3\n')
    body = body_of(str(tmp_path / "my job.sh"), "it's")
    text = request.script(body, "/nonexistent/carma").replace("carma=carma", "carma=false_carma")
    stub = 'false_carma() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }\n'
    ran = subprocess.run(["sh"], input=stub + text, capture_output=True, text=True, check=False)
    path, name, word = ran.stdout.split()
    assert (f"{path} {name}".rpartition("/")[2], word, ran.returncode) == ("my job.sh", "it's", 3)
    assert not os.path.exists(os.path.dirname(path))  # noqa: PTH110, PTH120


def shell(text: str, task: str = "") -> str:
    env = os.environ | {"SLURM_ARRAY_TASK_ID": task}
    return subprocess.run(
        ["sh"], input=text, env=env, capture_output=True, text=True, check=True
    ).stdout


# what Slurm says


def test_states_and_reasons_have_carmas_words() -> None:
    assert state_of("PENDING", "JobHeldUser").code == "H"
    assert state_of("NODE_FAIL", "None").name == "failed"
    assert "carma release" in why_of("JobHeldUser").text
    assert "limit of your account" in why_of("QOSMaxGRESPerUser").text
    assert why_of("(ReqNodeNotAvail, UnavailableNodes:n2)").text.startswith("nodes that it could")


def test_problems_say_what_to_do() -> None:
    down = slurm.problem(["squeue"], "slurm_load_jobs error: Unable to contact slurm controller")
    assert (down.exit_code, down.code) == (3, "unreachable") and "scontrol ping" in down.hint
    lost = slurm.problem(["sbatch"], "sbatch: error: Socket timed out on send/recv operation")
    assert lost.code == "unknown" and "before you repeat" in lost.hint
    assert slurm.problem(["scancel"], "Access/permission denied").exit_code == 4


def test_counted_memory_is_found_among_other_resources() -> None:
    found = map(counted, ("gpu:a100:2,gpumem:80(S:0)", "gres:gpumem:7", "gpu:2", "N/A"))
    assert [*found] == [80, 7, None, None]


# a real cluster


@dataclass
class Site:
    slurm: real.Cluster
    node: Carmad
    env: dict[str, str]

    def carma(self, *words: str, rc: int = 0, **env: str) -> str:
        ran = subprocess.run(
            [*CARMA, *words],
            env=self.env | env,
            cwd=self.slurm.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == rc, ran.stdout
        return ran.stdout

    def submit(self, *words: str) -> str:
        return self.carma("submit", "--parsable", *words).strip()

    def on_node(self, job: str) -> list[Any]:
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
        yield Site(made, daemon, kept | own)


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

    nobody = ["setpriv", "--reuid=65534", "--clear-groups", *CARMA, "cancel", job]
    denied = subprocess.run(nobody, env=site.env, capture_output=True, text=True, check=False)
    assert (denied.returncode, "permission denied" in denied.stderr) == (1, True), denied
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
    assert "does not know job 999" in site.carma("show", "999", rc=1)
    assert "so much" in site.carma("submit", "--gpu-mem", "81G", "true", rc=1)


def test_a_job_without_an_estimate_asks_for_a_whole_gpu_or_for_a_number(site: Site) -> None:
    assert "--gpu-mem" in site.carma("submit", "true", rc=1)
    said = site.carma("submit", "--dry-run", "--json", "true", CARMA_CLUSTER__GPU_GIB="40")
    found = json.loads(said.splitlines()[-1])
    assert found["gres"] == "gpumem:40" and "no estimate" in said
    assert found["argv"][0] == "sbatch" and "--gpu-mem" not in found["script"]


def test_a_training_script_is_estimated_and_slurm_counts_that(site: Site) -> None:
    script = site.slurm.folder / "train.py"
    script.write_text(TRAINS)
    said = site.carma("submit", "--json", "--hold", sys.executable, str(script))
    found = json.loads(said.splitlines()[-1])
    assert found["memory_source"] == "trace" and found["memory_mib"] > 300, said
    assert found["gres"] == f"gpumem:{math.ceil(found['memory_mib'] / 1024)}"
    (listed,) = json.loads(site.carma("queue", "--json"))["jobs"]
    assert f"gpumem:{listed['gpumem_gib']}" == found["gres"]
    site.carma("cancel", found["label"])


TRAINS = """\
import torch
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(64, 4096, device="cuda")).mean().backward()
    optimizer.step()
"""


def test_a_job_is_held_and_run_again_and_its_output_followed(site: Site) -> None:
    go = site.slurm.folder / "go"
    script = f"echo run $SLURM_RESTART_COUNT; while [ ! -e {go} ]; do sleep 0.1; done; echo over"
    job = site.submit("--gpu-mem", "1G", "--", "sh", "-c", script)
    out = site.slurm.folder / f"carma-{job}.out"
    until(lambda: out.exists() and "run" in out.read_text().split(), "its output")
    assert "queued again" in site.carma("requeue", job)
    site.until_it(job, "PENDING")
    assert "held" in site.carma("hold", job)
    assert "an administrator holds it" in site.carma("why", job), "root is one"
    site.carma("release", job)

    def runs_again() -> bool:
        site.slurm.hurry(int(job))
        return "run 1" in out.read_text()

    until(runs_again, "its second run")
    with following(site, "logs", "-f", job) as follows, following(site, "wait", job) as waits:
        assert follows.stdout and waits.stdout
        assert "GPU" in follows.stdout.readline()
        site.slurm.stop_controller()
        assert "still waiting" in waits.stdout.readline()
        for words in (["queue"], ["submit", "--gpu-mem", "1G", "true"]):
            assert "controller does not answer" in site.carma(*words, rc=3)
        site.slurm.start_controller()
        until(site.slurm.states, "the controller")
        go.touch()
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in (waits, follows)]
        assert said[0] == f"job {job}: succeeded\n" and said[1].endswith("over\n")
        assert waits.returncode == follows.returncode == 0
    assert site.slurm.jobs()[int(job)] == "COMPLETED" and max(site.slurm.jobs()) == int(job)


@contextmanager
def following(site: Site, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*CARMA, *words],
        env=site.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


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
    assert not [name for name in served if name.startswith(("cli.cluster", "tomllib"))]
    assert not {"cli.cluster.verbs", "tomllib"} & loaded(CARMA_CONFIG=str(config))
    config.write_text('[cluster]\nengine = "slurm"\n')
    assert "cli.cluster.look" in loaded(CARMA_CONFIG=str(config))
