"""What `carma submit` gives to sbatch, and what Slurm's words mean: without Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carma_slurm import login
from carma_slurm.login import LOCAL, MODULES, jobs, request, slurm
from carma_slurm.login import submit as login_submit
from carma_slurm.login.request import step_words
from carma_slurm.login.slurm import state_of, why_of
from carma_slurm.login.submit import environment
from carmad.errors import CarmaError
from carmad.options import OPTIONS
from carmad.readable import gpumem_count
from cli import hot
from cli.commands.run import ELSEWHERE
from cli.problems import Unknown, Unreachable, Usage, report
from cli.script import read_script
from cli.submission import build_parser, read
from cli.verbs import OWN, leaves
from tests.extras.carma_slurm.slurm import HOSTILE


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
    assert words[:4] == ["sbatch", "--parsable", "--export=ALL", "--open-mode=append"]
    assert set(words[5:]) == {
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
        *("--deadline", "2030-01-01T08:00", "--cold-start", "90s", "--watch-stages"),
        *("-t", "2h", "--signal", "USR1@30", "-c", "4", "--layout", "2x forward=1ms in=1M"),
        *("--stages", STAGES, "true"),
    )
    words = request.step_words(body)
    assert words[:2] == ["--gpus=2", "--gpu-mem=3072M"]
    assert not [word for word in words if "cpus" in word]
    again = read([*words, "true"])[1]
    told = ("exclusive", "amp", "batch_size", "expected_s", "time_limit_s", "warn", "stage_times")
    for name in (*told, "layout", "deadline_at", "cold_start_s", "watch_stages"):
        assert again[name] == body[name], name


def test_every_option_is_slurms_or_the_nodes() -> None:
    """Whichever `carma run` refuses must have a form for sbatch, or the script does it. A
    container is refused, and so is --unless-running."""
    at_a_terminal_only = {"conda_env", "container", "unless_running"}
    left = {name for name in OPTIONS if name in ELSEWHERE and name not in request.SBATCH}
    assert left == at_a_terminal_only


@pytest.mark.parametrize("words", [["-N", "2"], ["--ntasks=4"], ["-n", "2"]])
def test_a_job_across_nodes_is_refused(words: list[str]) -> None:
    options, body = read([*words, "true"])
    with pytest.raises(Exception, match="one node") as refused:
        request.sbatch_words(body, 1024, options.ignored)
    assert "srun" in refused.value.hint  # type: ignore[attr-defined]


def test_options_of_sbatch_that_mean_nothing_on_one_server_reach_it() -> None:
    options, body = read(["-p", "gpu", "--account=me", "-N", "1", "true"])
    words = request.sbatch_words(body, 1, options.ignored)
    assert words[-3:] == ["--account=me", "--nodes=1", "--partition=gpu"]


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


STAGES = "forward=3ms backward=4ms communication=1ms sync=backward"
SAMPLES = {  # of each option, as it must change what is submitted
    "--gpus": "2",
    "--gpu-mem": "2G",
    "--batch-size": "8",
    "--cpus": "3",
    "--mem": "4G",
    "--time": "1h",
    "--signal": "USR1@30",
    "--expect": "1h",
    "--deadline": "8h",
    "--cold-start": "1m",
    "--layout": "2x forward=1ms in=1M",
    "--stages": STAGES,
    "--array": "0-3",
    "--dependency": "afterok:1",
    "--begin": "2030-01-01T08:00",
    "--nice": "5",
    "--job-name": "x",
    "--output": "x",
    "--error": "x",
    "--conda": "x",
    "--notify": "end",
    "--gres": "gpu:3",
    "--constraint": "a100",
    "--on": "0",
    "--not-on": "1",
    "--param": "lr=1,2",
    "--after": "1",
    "--chdir": "/",
    "--mail-type": "END",
    "--mail-user": "me@x",
    "--idle-ok": "robot",
    "--comment": "x",
    "--retry-on": "75",
    "--wrap": "true",
    "--container": "image",
    "--unless-running": "nightly",
}
HERE = {  # they change nothing in the job
    *("--help", "--wait", "--anyway", "--parsable", "--quiet", "--json", "--dry-run"),
    *("--export", "--params", "--zip", "--allreduce"),  # tested elsewhere, or part of another's
}


def submit(words: list[str]) -> int:
    """On a login node."""
    try:
        return login_submit.submit(hot.read(build_parser(), words))
    except CarmaError as error:
        return report(error, as_json=False)


def test_no_option_is_dropped(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("CARMA_CLUSTER__ENGINE", "slurm")
    monkeypatch.chdir(tmp_path)

    def submitted(*words: str, command: tuple[str, ...] = ("true",)) -> tuple[int, str]:
        code = submit(["--dry-run", "-Q", "--gpu-mem", "1G", *words, *command])
        out, err = capsys.readouterr()
        return code, out if code == 0 else err

    plain = submitted()
    assert plain[0] == 0
    for action in build_parser()._actions:
        flag = next(name for name in action.option_strings if name.startswith("--"))
        if flag in HERE:
            continue
        if action.dest.startswith("slurm_"):
            words = (f"{flag}={'1' if flag in request.ONE_NODE else 'x'}",)
        elif action.nargs == 0:
            words = ("--no-requeue",) if flag == "--requeue" else (flag,)
        else:
            words = (f"{flag}={SAMPLES[flag]}",)
        code, said = submitted(*words, command=() if flag == "--wrap" else ("true",))
        if code:
            assert f"{flag} is not for a cluster" in said and "hint: " in said, said
        else:
            assert said != plain[1], f"{flag} is dropped"


def test_every_verb_works_or_says_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_CLUSTER__ENGINE", "slurm")
    refused = {}
    for verb in leaves():
        if verb.name.partition(" ")[0] in LOCAL:
            assert login.verb(verb) is verb
        elif verb.name in MODULES:
            assert callable(login.verb(verb).function())
        else:
            with pytest.raises(Usage, match="is for a node") as said:
                login.verb(verb)
            refused[verb.name] = said.value.hint
    assert all(refused.values()) and "agents" in refused["mcp"]
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    run = next(verb for verb in leaves() if verb.name == "run")
    assert login.verb(run) is run, "in a job, whose carmad is away, it waits"


def test_lines_of_sbatch_reach_it_word_by_word(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --wckey 'a b' -v -M east --licenses=x\ntrue\n")
    foreign: list[str] = []
    _, body = read([str(script)], foreign=foreign)
    words = request.sbatch_words(body, 1, foreign)
    assert words[-6:] == ["--wckey", "a b", "-v", "-M", "east", "--licenses=x"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'-o "/some\ data/x y.log"', ["-o", "/some data/x y.log"]),
        (r"--comment 'it\'s' -v", ["--comment", "it's", "-v"]),
        (r"-J a\ b --mem=1G#x -v", ["-J", "a b", "--mem=1G"]),
        (r"-J \#1 '' # -v", ["-J", "#1", ""]),
        ("-J a \\", ["-J", "a"]),  # as if the line went on
    ],
)
def test_lines_of_sbatch_are_split_as_sbatch_does(line: str, words: list[str]) -> None:
    text = f"#!/bin/sh\n#SBATCH {line}\ntrue\n"
    assert [each for *_, each in read_script("job.sh", text.encode()).directives] == [words]


@pytest.mark.parametrize("line", ["-J 'a", '-J a\\"b"'])
def test_a_quote_in_a_line_of_sbatch_has_an_end(line: str) -> None:
    with pytest.raises(Usage, match="No closing quotation"):
        read_script("job.sh", f"#!/bin/sh\n#SBATCH {line}\n".encode())


def test_a_script_on_standard_input_is_refused(capsys: Any) -> None:
    assert submit(["--dry-run", "--gpu-mem", "1G", "-"]) == 2
    assert "not read from standard input" in capsys.readouterr().err


def test_only_what_the_job_is_told_to_have_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"A_TOKEN": "t", "B_TOKEN": "t", "X": "1", "SBATCH_QOS": "q"}.items():
        monkeypatch.setenv(name, value)
    env = environment(body_of("--export", "A_TOKEN,Y=a b\nc", "true"))
    assert (env["A_TOKEN"], env["Y"], env["X"], env["SBATCH_QOS"]) == ("t", "a b\nc", "1", "q")
    assert env["B_TOKEN"] == "t", "as from a daemon"
    assert "X" not in environment(body_of("--export", "NONE", "true"))


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
    died = "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received"
    assert slurm.problem(["sbatch"], died).code == "unknown"
    assert slurm.problem(["squeue"], died).code == "unreachable"
    # All of Slurm 22.05.8 whose controller is killed, or stops, in the middle.
    for command, said in {
        "sbatch": "sbatch: error: Batch job submission failed: Connection reset by peer",
        "scancel": "scancel: error: Kill job error on job id 17: Connection reset by peer",
        "scontrol": "Unexpected message received for job 18",
    }.items():
        assert slurm.problem([command], said).code == "unknown", said
    half = "sbatch: error: Unable to contact slurm controller (receive failure)"
    assert slurm.problem(["sbatch"], half).code == "unknown"
    unsigned = (
        "sbatch: error: If munged is up, restart with --num-threads=10\n"
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"'
    )
    said = slurm.problem(["sbatch"], unsigned)
    assert said.code == "unreachable" and "munged" in said.message
    bare = "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host"
    assert "SLURM_CONF" in slurm.problem(["squeue"], bare).hint
    assert slurm.problem(["scancel"], "Access/permission denied").exit_code == 4


def test_counted_memory_is_found_among_other_resources() -> None:
    found = map(gpumem_count, ("gpu:a100:2,gpumem:80(S:0)", "gres:gpumem:7", "gpu:2", "N/A"))
    assert [*found] == [80, 7, None, None]


def a_row(label: str, state: str, **other: Any) -> slurm.Row:
    facts = dict.fromkeys(slurm.Row._fields, "") | {"id": 7, "label": label} | other
    return slurm.Row(**facts | {"state": state_of(state, ""), "why": why_of("")})


def test_a_job_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [a_row("42_[3-9%2]", "PENDING"), a_row("41+1", "RUNNING"), a_row("40_12", "RUNNING")]
    assert [(row.number, row.task) for row in mine] == [(42, 3), (41, 1), (40, 12)]
    monkeypatch.setattr(slurm, "rows", lambda *which: mine)
    assert jobs.resolve("last") == "42"
    assert [*jobs.select(["all"])] == ["42", "41", "40"]
    for word in ("slurm:42", "1,2", "-x", "abc", ""):
        with pytest.raises(Usage):
            jobs.resolve(word)


def without_accounts(label: str) -> list[jobs.Record]:
    raise slurm.Gone(f"Slurm does not know job {label}")


def test_waiting_outlives_the_controller_and_its_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Slurm forgets a task that failed while others of its array still run."""
    looks = iter(
        [
            [a_row("5_0", "FAILED", id=6), a_row("5_1", "RUNNING")],
            Unreachable("Slurm's controller does not answer"),
            [a_row("5_1", "COMPLETED")],
        ]
    )

    def look(*_: str) -> list[slurm.Row]:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(slurm, "rows", look)
    monkeypatch.setattr(jobs, "end_records", without_accounts)
    monkeypatch.setattr(slurm, "details", lambda _: {"ExitCode": "3:0"})
    monkeypatch.setattr(jobs.time, "sleep", lambda _: None)
    assert [*jobs.ends(["5"])] == [("5", "failed", 3)]
    assert capsys.readouterr().err.count("still waiting") == 1
    with pytest.raises(StopIteration):
        next(looks)


# the user's surroundings


def test_the_job_goes_to_the_cluster_that_the_other_verbs_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    def submitted(*words: str) -> str:
        code = submit(["--dry-run", "--gpu-mem", "1G", *(words or ["true"])])
        out, err = capsys.readouterr()
        return str(out if code == 0 else err)

    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -M east\ntrue\n")
    assert "--clusters" not in submitted()
    assert "go to east" in submitted(str(script))
    monkeypatch.setenv("SLURM_CLUSTERS", "east")
    assert "--clusters=east" in submitted() and "--clusters=east" in submitted(str(script))
    monkeypatch.setenv("SBATCH_CLUSTERS", "west")
    assert "would go to west, but carma asks east" in submitted()
    for several in ("east,west", "all"):
        monkeypatch.setenv("SLURM_CLUSTERS", several)
        assert "one cluster at a time" in submitted()
        with pytest.raises(Usage, match="one cluster at a time"):
            slurm.ask("true")


def test_a_users_habits_hide_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SQUEUE_STATES, say, waiting jobs would be unknown; with SCANCEL_USER, scancel does
    nothing, and says so to nobody."""
    habits = ("SQUEUE_STATES", "SCANCEL_USER", "SINFO_PARTITION", "SACCT_FORMAT")
    for name in (*habits, "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "kept")
    said = slurm.ask("env").splitlines()
    assert "SLURM_CONF=kept" in said
    assert not [line for line in said if line.startswith((*habits, "SLURM_TIME_FORMAT"))]


def test_a_killed_sbatch_may_have_submitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\nkill -9 $$\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Unknown, match="killed by signal 9"):
        slurm.ask("sbatch")


def test_who_interrupts_a_request_is_told_that_it_may_have_been_done(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm.subprocess, "run", interrupted)
    for words in (["squeue"], ["scontrol", "show", "job", "1"]):
        with pytest.raises(KeyboardInterrupt):
            slurm.ask(*words)
        assert not capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        slurm.ask("sbatch")
    assert "interrupted while sbatch ran: nobody knows" in capsys.readouterr().err


def test_a_login_node_refuses_containers() -> None:
    with pytest.raises(Usage, match="not for a cluster"):
        step_words({"container": "torch"})


def test_the_verbs_of_a_login_node_say_what_differs() -> None:
    others = login.SUMMARIES
    assert others.keys() <= login.MODULES.keys()
    assert not [name for name, line in others.items() if line == OWN[name].summary]
