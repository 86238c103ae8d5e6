"""Slurm's commands as CARMA does them: what they print, of a daemon whose answers are canned."""

from __future__ import annotations

import getpass
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_slurm import VERSION, WORDS
from carma_slurm import words as slurm_words
from carma_slurm.links import slurm_commands_install, slurm_commands_remove
from carma_slurm.words import run
from carma_slurm.words.fields import FIELDS, HOST, LETTERS, NAMES, TITLES
from carma_slurm.words.formats import parse_names, parse_percent, parse_titles
from carma_slurm.words.request import MAX_AFTER, read_variables
from carma_slurm.words.sacct import moment
from carma_slurm.words.scontrol import expand
from carma_slurm.words.states import CODES, STATES, exit_code, parse_states, reason_of, state_of
from carma_slurm.words.step import file_name
from cli import client
from cli.problems import Problem, Refused, Usage
from tests.fake_daemon import FakeDaemon, ended, job, private, serving, waiting
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
HOSTILE = "a|b\nc\x1b[2J"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    with serving(tmp_path / "sock") as daemon:
        monkeypatch.setenv("CARMA_SOCKET", str(daemon.path))
        yield daemon


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a user's own habits."""
    ours = ("SBATCH_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
    for name in [name for name in os.environ if name.startswith(ours)]:
        monkeypatch.delenv(name)


def jobs(fake: FakeDaemon, *found: dict[str, Any]) -> None:
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "more": 0, "jobs": list(found)}


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


# formats


def test_squeue_has_its_usual_columns(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    jobs(fake, job(), waiting())
    assert run("squeue", []) == 0
    header, first, second = lines(capsys)
    assert header == (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"
    )
    assert first.split() == ["42", "carma", "train", "alice", "R", "50:00", "1", HOST]
    assert second.split() == ["43", "carma", "big", "alice", "PD", "0:00", "1", "(Resources)"]
    assert run("squeue", ["-ho", "%i/%N/%R"]) == run("sacct", ["-nXj1", "-o", "nodelist%-15"]) == 0
    assert lines(capsys) == [
        *(f"42/{HOST}/{HOST}", "43//(Resources)", f"{HOST:15} ", "None assigned   ")
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["-o", "%i|%T"], "42|RUNNING"),
        (["--format=%i %t"], "42 R"),
        (["-o", "%.5i<%-3t"], "Invalid"),
        (["-o", "%.5i<%3t>"], "   42<R  >"),
        (["-o", "100%% %i"], "100% 42"),
        (["-o", "%.3j"], "tra"),
        (["-O", "jobid:6,name:.7,state"], "42      trainRUNNING             "),
        (["-O", "jobid:#,name:2|,state:.9:#"], "42#tr|  RUNNING:#"),
        (["-O", "jobid:.:"], "42:"),
        (["-o", "%l %L %M"], "2:00:00 1:10:00 50:00"),
    ],
)
def test_squeue_formats(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    jobs(fake, job())
    code = run("squeue", ["-h", *words])
    out, err = capsys.readouterr()
    if line == "Invalid":
        assert code == 1 and "Invalid job format specification" in err
    else:
        assert (code, out) == (0, f"{line}\n")


def test_every_field_says_something_of_every_job() -> None:
    for each in (job(), waiting(), ended(3), private(job())):
        for field in FIELDS:
            assert isinstance(field.text(each), str)  # type: ignore[arg-type]


def test_letters_names_and_titles_are_unique() -> None:
    assert len(LETTERS) == sum(bool(field.letter) for field in FIELDS)
    assert len(NAMES) == sum(bool(field.name) for field in FIELDS)
    assert len(TITLES) == sum(len(field.titles) for field in FIELDS)


@given(st.text())
def test_any_format_is_read_or_refused(text: str) -> None:
    for read, fields in (
        (parse_percent, LETTERS),
        (parse_names, NAMES),
        (parse_titles, TITLES),
    ):
        try:
            read(text, fields)  # type: ignore[operator]
        except Usage as error:
            assert "CARMA has" in error.hint


def test_sacct_prints_a_table(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    jobs(fake, ended(1, name="a name that is long"))
    assert run("sacct", ["-j", "42"]) == 0
    header, rule, row = lines(capsys)
    assert header == (
        "       JobID    JobName  Partition    Account  AllocCPUS      State ExitCode "
    )
    assert rule.split() == ["-" * width for width in (12, 10, 10, 10, 10, 10, 8)]
    assert row == ("42           a name th+      carma     (null)          1     FAILED      1:0 ")
    assert run("sacct", ["-j", "42", "-o", "jobid%8,jobidraw,state%-8,account%3"]) == 0
    header, _, row = lines(capsys)
    assert header == "   JobID     JobIDRaw    State Acc "
    assert row == "      42 42           FAILED   (n+ "


def test_one_task_of_an_array_has_the_array_s_own_id_for_programs(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in Slurm. Snakemake's executor asks for nothing else of an array that it has submitted."""
    jobs(fake, *(ended(0, id=65 + n, label=f"64_{n + 1}") for n in range(3)), ended(0))
    assert run("sacct", ["-X", "--parsable2", "-n", "--format=JobIdRaw,JobID"]) == 0
    assert sorted(lines(capsys)) == ["42|42", "64|64_1", "66|64_2", "67|64_3"]


def test_what_programs_read_has_a_line_for_each_job_whatever_its_name(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, ended(0, name=HOSTILE))
    assert run("sacct", ["-nP", "-o", "JobID,JobName,State"]) == 0
    assert run("sacct", ["-n", "-p", "--format=jobid,state"]) == 0
    assert run("squeue", ["-h", "-t", "all", "-o", "%i %j"]) == 0
    assert lines(capsys) == ["42|a?b?c?[2J|COMPLETED", "42|COMPLETED|", "42 a|b?c?[2J"]


def test_sacct_has_the_fields_that_tools_ask_for(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job())
    words = ["-nPj", "42", "--units=K", "--noconvert", "-W", "x", "-k", "1"]
    assert run("sacct", [*words, "-o", "time,TimelimitRaw,AveRSS,UserCPU,MaxVMSize,job"]) == 0
    assert lines(capsys) == ["02:00:00|120||00:00:00||42"]
    fields = "AdminComment,AssocID,GID,MaxDiskRead,Planned,PlannedCPURAW,QOSRAW,ReqNodes"
    assert run("sacct", [*words, "-o", f"{fields},TRESUsageInAve,TRESUsageOutTot"]) == 0
    assert lines(capsys) == ["||-1||00:10:00|600||1||"]
    assert run("sacct", ["-Pj", "42", "-o", "ALL"]) == 0
    assert lines(capsys)[0].split("|") == [title for title, _ in TITLES.values()]
    assert run("sacct", ["-nj", "42", "-g", "no such group"]) == 0
    assert run("squeue", ["-h", "--noconvert", "-O", "gres:12"]) == 0
    assert run("sinfo", ["-h", "-O", "gresused:40"]) == 0
    gres, used = lines(capsys)
    assert gres == "gres:gpu:1  " and used.startswith("gpu:a100-sxm4-40gb:1 ")


def test_sacct_takes_times_as_slurm_does() -> None:
    year = datetime.now().astimezone().year
    for text, local in {
        "1128": f"{year}-11-28",
        "11/28": f"{year}-11-28",
        "112825": "2025-11-28",
        "11/28/25-7:30": "2025-11-28T07:30",
        "2025-11-28T07:30:01": "2025-11-28T07:30:01",
    }.items():
        assert datetime.fromisoformat(moment(text)) == datetime.fromisoformat(local).astimezone()
    today = datetime.now().astimezone().date()
    assert datetime.fromisoformat(moment("00:00")).astimezone().date() >= today
    noon = datetime.fromisoformat(moment("noon")).astimezone()
    assert noon.date() <= datetime.now().astimezone().date() and noon.hour == 12
    for text in ("1328", "11/2a", "now-x", "25:00", ""):
        with pytest.raises(Usage, match="Invalid time"):
            moment(text)


def test_sacct_asks_for_today_unless_jobs_are_named(fake: FakeDaemon) -> None:
    jobs(fake)
    assert run("sacct", ["-X"]) == 0
    assert fake.query["since"].endswith(":00.000Z") and "select" not in fake.query
    assert run("sacct", ["-X", "--starttime", "2026-11-20T09:30", "--endtime", "now"]) == 0
    began = datetime.fromisoformat(fake.query["since"])
    assert began.astimezone().replace(tzinfo=None) == datetime(2026, 11, 20, 9, 30)
    assert run("sacct", ["-j", "7.batch,8", "-j", "9_1"]) == 0
    assert fake.query["select"] == "7,8,9_1" and "since" not in fake.query
    assert run("sacct", ["-S", "sometime"]) == 1


def test_sacct_chooses_by_name_and_state(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(), ended(0, id=41, label="41", name="x"), ended(1, id=40, label="40", name="x"))
    assert run("sacct", ["-nX", "-o", "jobid", "--name", "x", "--state", "F,CA"]) == 0
    assert lines(capsys) == ["40           "]


@pytest.mark.parametrize("word", ["squeue", "sacct"])
def test_json_has_slurms_names(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    jobs(fake, job(label="40_2"), waiting(label="40_[3-9]"), private(job()))
    assert run(word, ["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ids = [42, 43, 42] if word == "squeue" else [42, 42, 43]
    assert told["errors"] == [] and [each["job_id"] for each in told["jobs"]] == ids
    first = told["jobs"][0]
    state = first["job_state"] if word == "squeue" else first["state"]["current"]
    assert (state, first["partition"]) == ("RUNNING", "carma")
    if word == "squeue":
        assert [bool(each["job_resources"]) for each in told["jobs"]] == [True, False, True]
        assert first["job_resources"]["nodes"] == HOST


# states and ends


@pytest.mark.parametrize(
    ("cause", "state", "word", "code"),
    [
        ("success", "succeeded", "COMPLETED", "0:0"),
        ("failure", "failed", "FAILED", "3:0"),
        ("lost", "failed", "NODE_FAIL", "3:0"),
        ("unstarted", "failed", "NODE_FAIL", "3:0"),
        ("launch_failed", "failed", "FAILED", "3:0"),
        ("cancelled", "cancelled", "CANCELLED", "3:0"),
        ("time_limit", "timed_out", "TIMEOUT", "0:0"),
        ("gpu_oom", "out_of_memory", "OUT_OF_MEMORY", "0:125"),
        ("host_oom", "failed", "OUT_OF_MEMORY", "0:125"),
    ],
)
def test_ends_have_slurms_names(cause: str, state: str, word: str, code: str) -> None:
    it: Any = ended(3, state=state)
    it["exit"]["cause"] = cause
    assert (state_of(it), exit_code(it)) == (word, code)
    assert reason_of(it)


def test_a_job_that_failed_never_has_exit_code_0() -> None:
    it: Any = ended(None, state="failed")
    assert exit_code(it) == "1:0"


def test_every_state_has_a_code() -> None:
    assert set(STATES.values()) <= CODES.keys()
    assert parse_states(["r", "PENDING", "oom"]) == {"RUNNING", "PENDING", "OUT_OF_MEMORY"}
    with pytest.raises(Usage, match="Invalid job state"):
        parse_states(["asleep"])


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("(Dependency: 41)", "Dependency"),
        ("(BeginTime: 22:30)", "BeginTime"),
        ("(ArrayLimit: 2)", "JobArrayTaskLimit"),
        ("(Priority)", "Priority"),
        ("(GpuMemory: GPU1 30.0G free, need 82.0G)", "Resources"),
    ],
)
def test_reasons_have_slurms_names(reason: str, word: str) -> None:
    it: Any = waiting(reason=reason)
    assert reason_of(it) == word
    assert reason_of(it | {"held": True}) == "JobHeldUser"


def test_who_cancelled_it(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    it = ended(None, signal=15, state="cancelled", user="root")
    it["exit"] |= {"cause": "cancelled", "evidence": "cancelled by root"}
    jobs(fake, it)
    assert run("sacct", ["-nPX", "-j", "42", "-o", "state,exitcode"]) == 0
    assert run("squeue", ["-h", "-t", "CA", "-o", "%T"]) == 0
    assert lines(capsys) == ["CANCELLED by 0|0:15", "CANCELLED"]


# errors


@pytest.mark.parametrize("word", ["squeue", "sacct", "sinfo", "scancel"])
def test_a_daemon_that_is_down(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", "/nonexistent/sock")
    assert run(word, ["42"] if word == "scancel" else []) == 1
    out, err = capsys.readouterr()
    first = f"{word}: error: Unable to contact slurm controller (connect failure)"
    assert not out and err.splitlines()[0] == first


def test_a_job_that_nobody_knows(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    jobs(fake)
    assert run("squeue", ["-j", "99"]) == 1
    assert run("squeue", ["-j", "99,98"]) == 0
    assert run("scontrol", ["show", "job", "99"]) == 1
    assert run("scancel", ["99"]) == 0
    err = capsys.readouterr().err
    assert err.count("Invalid job id specified") == 3


def test_a_job_that_has_ended_is_not_in_squeue_and_no_error_of_scancel(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, ended(0))
    refused = {"label": "42", "id": 42, "ok": False, "message": "has ended"}
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": [refused]}
    assert run("squeue", ["-h", "-j", "42"]) == 0
    assert run("scancel", ["42"]) == 0
    out, err = capsys.readouterr()
    assert not out and "already completing or completed" in err


def test_a_job_of_somebody_else_is_not_cancelled(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, private(job()))

    def refuse(path: str, body: object) -> object:
        raise Refused("job 42 is alice's", code="not_yours")

    monkeypatch.setattr(client, "post", refuse)
    assert run("scancel", ["42"]) == 1
    told = "scancel: error: Kill job error on job id 42: Access/permission denied\n"
    assert capsys.readouterr().err == told
    assert run("squeue", ["-h", "-o", "%j|%Z|%r"]) == 0
    assert capsys.readouterr().out == "-||None\n"


@pytest.mark.parametrize("word", WORDS)
def test_the_version_and_a_wrong_option(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(word, ["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"
    assert run(word, ["--no-such-option"]) == 1
    assert f"{word}: error: " in capsys.readouterr().err
    assert run(word, ["--help"]) == 0
    assert f"usage: {word}" in capsys.readouterr().out


# the server


def test_sinfo_shows_one_node(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sinfo", ["-h"]) == 0
    assert run("sinfo", ["-h", "-o", "%P %G"]) == 0
    assert run("sinfo", ["-h", "-p", "other", "--noconvert", "--local"]) == 0
    assert run("sinfo", ["-Nh", "-O", "nodelist:30,statelong:8"]) == 0
    first, second, other, third = lines(capsys)
    assert first.split() == ["carma*", "up", "infinite", "1", "mix", HOST] == other.split()
    assert second == "carma* gpu:a100-sxm4-40gb:2"
    assert third.split() == [HOST, "mixed"]
    assert run("sinfo", ["-a", "-o", "%P %l %p"]) == run("sinfo", ["-hO", "prioritytier"]) == 0
    assert [line.split() for line in lines(capsys)] == [
        ["PARTITION", "TIMELIMIT", "PRIO_TIER"],
        ["carma*", "infinite", "1"],
        ["1"],
    ]


def test_sinfo_has_a_long_line_for_each_node(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sinfo", ["-N", "-l"]) == 0
    _, header, row = lines(capsys)
    assert header.split()[:6] == ["NODELIST", "NODES", "PARTITION", "STATE", "CPUS", "S:C:T"]
    assert row.split()[:4] == [HOST, "1", "carma*", "mixed"]


def test_scontrol_shows_jobs_and_the_server(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(label="40_2", name="two\nlines"))
    assert run("scontrol", ["show", "job", "42"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("JobId=42 ArrayJobId=40 ArrayTaskId=2 JobName=two?lines\n   UserId=")
    assert "\n   JobState=RUNNING Reason=None" in shown and "\n   TresPerNode=gres:gpu:1" in shown
    assert run("scontrol", ["-o", "show", "jobid=42"]) == 0
    assert len(lines(capsys)) == 1
    assert run("scontrol", ["show", "partition"]) == 0
    assert "PartitionName=carma" in capsys.readouterr().out
    assert run("scontrol", ["show", "node", HOST]) == 0
    shown = capsys.readouterr().out
    assert f"NodeName={HOST}" in shown and "\n   CfgTRES=cpu=" in shown
    assert ",gres/gpu=2\n   AllocTRES=cpu=0,gres/gpu=1\n" in shown
    assert run("scontrol", ["show", "node", "elsewhere"]) == 1
    assert run("scontrol", ["show", "config"]) == 0
    assert "MinJobAge               = 300 sec" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["show job -d 42", "show -o job 42", "show job 42 -dd", "-o show job=42"]
)
def test_options_of_scontrol_stand_anywhere(
    fake: FakeDaemon, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job())
    assert run("scontrol", words.split()) == 0
    assert len(lines(capsys)) == 1 or "-o" not in words


def test_details_of_a_job_are_its_gpus(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(host_memory_mib=2048))
    assert run("scontrol", ["show", "job", "-dd", "42"]) == 0
    told = (
        "\n   JOB_GRES=gpu:a100-sxm4-40gb:1"
        f"\n     Nodes={HOST} Mem=2048 GRES=gpu:a100-sxm4-40gb:1(IDX:0)\n"
    )
    assert told in capsys.readouterr().out
    jobs(fake, waiting())
    assert run("scontrol", ["show", "job", "-d", "43"]) == 0
    assert "JOB_GRES" not in capsys.readouterr().out


def test_how_many_tasks_share_the_cpus_is_not_guessed(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(cpus=4))
    assert run("scontrol", ["show", "job", "42"]) == 0
    assert "NumCPUs=4 NumTasks=N/A CPUs/Task=N/A" in capsys.readouterr().out
    jobs(fake, job())
    assert run("scontrol", ["show", "job", "42"]) == 0
    assert "NumCPUs=1 NumTasks=1 CPUs/Task=1" in capsys.readouterr().out


@pytest.mark.parametrize("interpreter", [["/bin/bash"], ["/bin/bash", "-l"]])
def test_the_command_of_a_job_script_is_its_path(
    fake: FakeDaemon, interpreter: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(argv=[*interpreter, "/home/a.sh", "one", "/two"], script_bytes=10))
    assert run("squeue", ["-ho", "%o"]) == 0
    assert lines(capsys) == ["/home/a.sh"]


def test_scontrol_changes_jobs(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    done = {"schema": 1, "results": [{"label": "42", "id": 42, "ok": True, "message": "held"}]}
    for verb in ("hold", "update"):
        fake.answers["POST", f"/v1/{verb}"] = done
    assert run("scontrol", ["hold", "42"]) == 0
    assert fake.body == {"select": "42", "user": None}
    words = ["update", "JobId=42", "TimeLimit=1:00:00", "Nice=5", "Partition=gpu"]
    words.append("Comment=build/8")
    assert run("scontrol", words) == 0
    assert fake.body == {"select": "42", "user": None, "time_limit_s": 3600.0, "nice": 5} | {
        "comment": "build/8"
    }
    assert "ignored: partition" in capsys.readouterr().err
    assert run("scontrol", ["update", "job=42", "nice=6"]) == 0
    assert fake.body == {"select": "42", "user": None, "nice": 6}
    assert run("scontrol", ["update", "JobId=42", "NumNodes=2"]) == 1
    assert run("scontrol", ["frobnicate"]) == 1


def test_a_comma_in_brackets_does_not_separate(fake: FakeDaemon) -> None:
    jobs(fake, job())
    assert run("squeue", ["-j", "1_[0,2],3"]) == 0
    assert fake.asked[-1][2]["select"] == "1_[0,2],3"
    assert slurm_words.split(["1_[0-2,4]", " 5, ,6"]) == ["1_[0-2,4]", "5", "6"]


def test_a_chain_of_too_many_is_refused_with_words(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(number) for number in range(MAX_AFTER + 1)]
    jobs(fake, *(job(id=int(name), label=name, name="wrap") for name in names))
    assert run("sbatch", ["-d", "singleton", "--wrap", "true"]) == 1
    assert "a job can wait for 1000" in capsys.readouterr().err


def test_scripts_from_standard_input_are_namesakes(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs(fake, job(name="sbatch"), job(id=9, label="9_0", name="sbatch"))
    script = io.TextIOWrapper(io.BytesIO(b"#!/bin/sh\ntrue\n"))
    monkeypatch.setattr("sys.stdin", script)
    body = body_of(fake, "-d", "singleton")
    assert (body["name"], [one["job"] for one in body["after"]]) == ("sbatch", ["42", "9"])


def test_host_lists() -> None:
    assert expand("a,n[1-3,07]x,b") == ["a", "n1x", "n2x", "n3x", "n07x", "b"]
    assert expand("r[1-2]n[08-09]") == ["r1n08", "r1n09", "r2n08", "r2n09"]
    assert expand("") == []
    with pytest.raises(Usage):
        expand("n[a-b]")


def test_files_of_a_step() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
    assert file_name("%j_%3t_%A.%a-100%%%q", 1, env) == "7_001_5.2-100%%q"


# requests


def body_of(fake: FakeDaemon, *words: str) -> dict[str, Any]:
    fake.answers["POST", "/v1/jobs"] = {
        "schema": 1,
        "id": 7,
        "ids": [7],
        "label": "7",
        "warnings": [],
    }
    assert run("sbatch", list(words)) == 0
    found: dict[str, Any] = fake.body
    return found


def test_a_job_that_may_not_begin_yet_says_when_it_may(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, waiting(begin_at="2030-01-01T12:00:00.000Z"))
    begins = f"{datetime.fromisoformat('2030-01-01T12:00:00Z').astimezone():%Y-%m-%dT%H:%M:%S}"
    assert run("squeue", ["-ho", "%S"]) == 0
    assert run("scontrol", ["show", "job", "-o", "43"]) == 0
    listed, shown = lines(capsys)
    assert listed == begins and f" StartTime={begins} " in shown


def test_sbatch_asks_for_what_slurm_would_give(fake: FakeDaemon) -> None:
    body = body_of(fake, "--wrap", "true")
    assert (body["gpus"], body.get("cpus"), body["stdout"]) == (0, None, "slurm-%j.out")
    assert "SLURM_NTASKS" not in body["export"] and body["export"]["SLURM_SUBMIT_HOST"] == HOST
    body = body_of(fake, "-n", "4", "-c", "2", "--mem-per-cpu=100", "--wrap", "true")
    assert (body["cpus"], body["host_memory_mib"]) == (8, 800)
    its = body["export"]
    assert (its["SLURM_NTASKS"], its["SLURM_CPUS_PER_TASK"]) == ("4", "2")
    assert body_of(fake, "--mincpus=8", "-n4", "--wrap", "true")["cpus"] == 8
    assert body_of(fake, "--mincpus=2", "-c4", "--wrap", "true")["cpus"] == 4
    body = body_of(fake, "-n2", "--gpus-per-task=1", "--exclusive", "--wrap", "true")
    assert (body["gpus"], body["exclusive"]) == (2, True)
    body = body_of(fake, "--gres=gpu:a100:1", "--mem=16", "--nice", "--wrap=true")
    assert (body["gpus"], body["constraint"], body["host_memory_mib"]) == (1, "a100", 64)
    assert body["nice"] == 100
    body = body_of(fake, "-a", "0-3", "--signal=B:USR2@30", "-t", "5", "--wrap", "true")
    assert (body["stdout"], body["warn"]["before_s"]) == ("slurm-%A_%a.out", 30)


def test_sbatch_skips_a_variable_that_is_not_set(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.setenv("MINE", "1")
    body = body_of(fake, "--export=MINE,UNSET", "--wrap", "true")
    assert body["export"]["MINE"] == "1" and "UNSET" not in body["export"]
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/sh\n#SBATCH --export=UNSET,A=b\ntrue\n")
    assert body_of(fake, str(script))["export"]["A"] == "b"
    assert "MINE" not in body_of(fake, "--export=NIL", "--wrap", "true")["env"]


def test_sbatch_takes_no_gpus_and_a_date(fake: FakeDaemon) -> None:
    body = body_of(fake, "--gres=none", "--begin=12/24/36", "--wrap", "true")
    at = datetime.fromisoformat("2036-12-24 00:00").astimezone()
    assert (body["gpus"], datetime.fromisoformat(body["begin_at"])) == (0, at)


def test_a_comment_can_be_read_back(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert body_of(fake, "--comment=build/7", "--wrap", "true")["comment"] == "build/7"
    jobs(fake, waiting(comment="build/7"))
    capsys.readouterr()
    assert run("squeue", ["-h", "-o", "%k,%A"]) == 0
    assert run("squeue", ["-h", "-O", "comment:12"]) == 0
    assert [line.rstrip() for line in lines(capsys)] == ["build/7,43", "build/7"]
    assert run("scontrol", ["show", "job", "43"]) == 0
    assert "   Comment=build/7\n" in capsys.readouterr().out
    assert run("squeue", ["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["comment"] == "build/7"
    assert body_of(fake, "--comment=two\n lines", "--wrap", "true")["comment"] == "two lines"
    assert body_of(fake, "--comment=", "--wrap", "true").get("comment") is None


def test_a_script_that_slurm_would_refuse(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "j.sh"
    for data, words in (
        (b"#!/bin/bash\r\n#SBATCH -t 7\r\ncd /tmp\r\n", "line breaks of DOS"),
        (b"#!/usr/bin/env python3\r\nprint()\r\n", "line breaks of DOS"),
        (b"\xef\xbb\xbf#!/bin/bash\n", "byte-order mark"),
    ):
        script.write_bytes(data)
        assert run("sbatch", [str(script)]) == 1
        assert words in capsys.readouterr().err
    assert not fake.asked


def test_logs_may_be_called_after_the_node(fake: FakeDaemon) -> None:
    body = body_of(fake, "-o", "%x.%N.%4j-%n%3t%%N", "-e", "%J-%s-%q", "--wrap", "true")
    assert (body["stdout"], body["stderr"]) == (f"%x.{HOST}.%4j-0000%%N", "%j-batch-%q")


def test_sbatch_reads_a_script_and_names_what_it_ignores(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "j.sh"
    lines = "#SBATCH -J mine -p gpu --comment=x\n#SBATCH --qos=high -n 3"
    script.write_text(f"#!/bin/bash -l\n{lines}\ntrue\n")
    script.chmod(0o755)
    body = body_of(fake, "-n", "2", "-C", "skylake", str(script), "--nice")
    assert body["argv"] == ["/bin/bash", "-l", str(script), "--nice"]
    assert (body["name"], body["cpus"], body["script"]["word"]) == ("mine", 2, 2)
    assert body.get("constraint") is None and body["nice"] == 0
    out, err = capsys.readouterr()
    assert out == "Submitted batch job 7\n"
    expected = "sbatch: ignored: -p gpu --qos=high --constraint (it is about GPUs)"
    assert err.splitlines() == [expected]


def test_variables_override_a_script_and_the_command_line_overrides_them(
    fake: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/sh\n#SBATCH -J script -t 1 --mem=1G --no-requeue\ntrue\n")
    given = {"TIMELIMIT": "2", "MEM_PER_NODE": "2G", "GPUS": "2", "EXCLUSIVE": "", "REQUEUE": "1"}
    for name, value in given.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    monkeypatch.setenv("SBATCH_JOB_NAME", "")
    body = body_of(fake, "--mem=3G", str(script))
    assert (body["name"], body["time_limit_s"], body["gpus"]) == ("script", 120, 2)
    assert (body["host_memory_mib"], body["exclusive"], body["requeue"]) == (3072, True, True)
    assert body_of(fake, "-G1", "--wrap", "true")["gpus"] == 1
    assert not capsys.readouterr().err
    monkeypatch.setenv("SBATCH_TIMELIMIT", "soon")
    assert run("sbatch", ["--wrap", "true"]) == 1
    assert "error: SBATCH_TIMELIMIT: " in capsys.readouterr().err


def test_a_script_for_many_nodes_runs_on_one_if_the_command_line_says_so(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/sh\n#SBATCH -N 4k-8k\ntrue\n")
    assert run("sbatch", [str(script)]) == 1
    assert not fake.asked and "there is one node" in capsys.readouterr().err
    assert body_of(fake, "-N1", "-o", "none", "-e", "none", str(script))["stdout"] == "/dev/null"
    assert fake.body["stderr"] == "/dev/null"


def test_of_what_contradicts_the_last_counts(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/sh\n#SBATCH --mem=4G -c 2\ntrue\n")
    assert body_of(fake, "--mem-per-cpu=1G", str(script))["host_memory_mib"] == 2048
    monkeypatch.setenv("SBATCH_MEM_PER_CPU", "3G")
    assert body_of(fake, str(script))["host_memory_mib"] == 6144
    assert body_of(fake, "--mem=1G", str(script))["host_memory_mib"] == 1024
    monkeypatch.setenv("SBATCH_GRES", "gpu:1")
    assert body_of(fake, "--wrap", "true")["gpus"] == 1
    assert body_of(fake, "--gpus-per-task=2", "-n2", "--wrap", "true")["gpus"] == 4


def test_srun_reads_no_variables_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SRUN_TIMELIMIT", "soon")
    monkeypatch.setenv("SALLOC_JOB_NAME", "mine")
    monkeypatch.setenv("SALLOC_TIMELIMIT", "5")
    assert read_variables("srun", False) == []
    assert read_variables("salloc", False) == [("SALLOC_TIMELIMIT", "#SBATCH", ["--time=5"])]


def test_an_export_of_the_command_line_is_not_that_of_a_variable(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    assert "MINE" not in body_of(fake, "--wrap", "true")["env"]
    assert "MINE" in body_of(fake, "--export=ALL", "--wrap", "true")["env"]
    script = tmp_path / "j.sh"
    script.write_text("#!/bin/sh\n#SBATCH --export=NONE\ntrue\n")
    monkeypatch.setenv("SBATCH_EXPORT", "ALL")
    assert "MINE" in body_of(fake, str(script))["env"]


@pytest.mark.parametrize(
    ("word", "variable", "value", "words", "header"),
    [
        ("squeue", "SQUEUE_FORMAT", "%i %T", [], "JOBID STATE"),
        ("squeue", "SQUEUE_FORMAT2", "jobid:8,state:8", [], "JOBID   STATE   "),
        ("squeue", "SQUEUE_FORMAT2", "jobid", ["-o", "%T"], "STATE"),
        ("squeue", "SQUEUE_FORMAT", "%i", ["-o", "%T"], "STATE"),
        ("squeue", "SQUEUE_FORMAT", "%i", ["--start", "-o%T"], "STATE"),
        ("sinfo", "SINFO_FORMAT", "%D", ["-N", "-l"], "NODES"),
        ("sacct", "SACCT_FORMAT", "jobid,state", ["-P"], "JobID|State"),
        ("sacct", "SACCT_FORMAT", "jobid", ["-Pb"], "JobID|State|ExitCode"),
        ("sinfo", "SINFO_FORMAT", "%P %D", [], "PARTITION NODES"),
        ("sinfo", "SINFO_FORMAT", "%P", ["-o", "%D"], "NODES"),
    ],
)
def test_a_users_usual_format_is_in_a_variable(
    fake: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
    variable: str,
    value: str,
    words: list[str],
    header: str,
) -> None:
    jobs(fake, job())
    monkeypatch.setenv(variable, value)
    assert run(word, words) == 0
    assert next(line for line in lines(capsys) if ":" not in line) == header


def test_whom_and_what_squeue_lists_by_itself_is_in_variables(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(), waiting())
    monkeypatch.setenv("SQUEUE_STATES", "PD")
    monkeypatch.setenv("SQUEUE_USERS", "0")
    assert run("squeue", ["-ho", "%T"]) == 0
    assert lines(capsys) == ["PENDING"] and fake.asked[-1][2]["user"] == "root"
    assert run("squeue", ["-ho", "%T", "-tR"]) == 0
    assert lines(capsys) == ["RUNNING"]


def test_a_signal_before_no_time_limit_is_named_and_ignored(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert body_of(fake, "--signal=USR1@60", "--wrap", "true").get("warn") is None
    assert "ignored: --signal (there is no time limit" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["squeue"], ["sacct"]])
def test_a_user_whom_nobody_knows(
    fake: FakeDaemon, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake)
    assert run(words[0], ["-u", "no.such.user"]) == 1
    assert capsys.readouterr().err == f"{words[0]}: error: Invalid user: no.such.user\n"


def test_a_single_step_is_not_taken_for_its_job(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job())
    for words in (["43", "42.0"], ["-s", "TERM", "42.0"], ["42.0+1"], ["42.extern"], [".batch"]):
        assert run("scancel", words) == 1
        assert "scancel: error: " in capsys.readouterr().err
    assert not fake.asked


@pytest.mark.parametrize(
    "words",
    [
        *(["-p", "gpu"], ["-A", "lab"], ["-q", "high"]),
        *(["-w", ""], ["-t", ""], ["-n", ""], ["-u", ""], ["-p", ""]),
    ],
)
def test_what_cannot_narrow_a_cancel_does_not_widen_it(
    fake: FakeDaemon, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job())
    assert run("scancel", ["--me", *words]) == 1
    assert not fake.asked and "scancel: error: " in capsys.readouterr().err


def test_jobs_that_wait_run_on_no_node(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(), waiting())
    assert run("squeue", ["-ho", "%i", "-w", f"other,{HOST}"]) == 0
    assert lines(capsys) == ["42"]
    assert run("squeue", ["-w", "other"]) == 1
    assert "Invalid node name other" in capsys.readouterr().err
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": [{"id": 42, "ok": True}]}
    assert run("scancel", ["-w", f"{HOST}.example.org"]) == 0
    cancelled = [body["select"] for method, _, _, body in fake.asked if method == "POST"]
    assert cancelled == ["42"]
    assert run("scancel", ["-w", "other"]) == 0
    assert len([one for one in fake.asked if one[0] == "POST"]) == 1


def test_variables_narrow_a_cancel(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, job(), job(id=44, label="44", name="other"))
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": [{"id": 44, "ok": True}]}
    monkeypatch.setenv("SCANCEL_NAME", "other")
    assert run("scancel", ["--me"]) == 0
    assert [body["select"] for method, _, _, body in fake.asked if method == "POST"] == ["44"]
    monkeypatch.setenv("SCANCEL_ACCOUNT", "lab")
    assert run("scancel", ["--me"]) == 1
    assert "SCANCEL_ACCOUNT is set" in capsys.readouterr().err


def test_each_task_of_an_array_is_asked_about(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [job(id=7 + n, label=f"7_{n}") for n in range(3)]
    jobs(fake, *tasks, ended(0, id=10, label="7_3"))
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": [{"id": 7, "ok": True}]}
    monkeypatch.setattr("sys.stdin", io.StringIO("n\ny\n"))
    assert run("scancel", ["-iv", "7"]) == 0
    out, err = capsys.readouterr()
    assert [out.count(f"job_id=7_{n} ") for n in range(4)] == [1, 1, 1, 0]
    assert err == "scancel: Terminating job 7_1\n"
    assert [body["select"] for method, _, _, body in fake.asked if method == "POST"] == ["7_1"]
    monkeypatch.setattr("sys.stdin", None)
    assert run("scancel", ["-i", "7"]) == 0
    assert len([one for one in fake.asked if one[0] == "POST"]) == 1


@pytest.mark.parametrize(("answer", "count"), [("y", 1), ("n", 0), ("", 0)])
def test_scancel_asks_if_it_is_told_to(
    fake: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    count: int,
) -> None:
    jobs(fake, job())
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": [{"id": 42, "ok": True}]}
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert run("scancel", ["-vi", "42"]) == 0
    out, err = capsys.readouterr()
    assert out == "Cancel job_id=42 name=train partition=carma [y/n]? "
    assert len([one for one in fake.asked if one[0] == "POST"]) == count
    assert err == "scancel: Terminating job 42\n" * count


@pytest.mark.parametrize("words", [["squeue", "-ho", "%i"], ["sinfo", "-ho", "%D"]])
def test_a_listing_is_repeated_until_it_is_interrupted(
    fake: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    jobs(fake, job())
    waits: list[int] = []

    def sleep(seconds: int) -> None:
        waits.append(seconds)
        if len(waits) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert run(words[0], [*words[1:], "-i", "5"]) == 130
    said = lines(capsys)
    assert waits == [5, 5] and said[1::2] == [said[1]] * 2 and len(said) == 4
    monkeypatch.setenv("CARMA_SOCKET", "/nowhere")  # the daemon may come back
    assert run(words[0], ["-i", "5"]) == 130
    assert len(waits) == 4 and "Unable to contact" in capsys.readouterr().err
    assert run(words[0], ["-i", "0"]) == 1
    assert "invalid time interval: 0" in capsys.readouterr().err


def test_a_signal_to_a_job_that_has_ended(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(fake, ended(0))
    assert run("scancel", ["-s", "USR1", "42"]) == 1
    assert "already completing or completed" in capsys.readouterr().err


def step(*words: str) -> str:
    """What srun says on standard error in a job."""
    env = {**os.environ, "CARMA_JOB_ID": "7", "SLURM_JOB_ID": "7"}
    code = "import sys; from carma_slurm.words import run; sys.exit(run('srun', sys.argv[1:]))"
    argv = [sys.executable, "-c", code, *words]
    return subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    ).stderr


def test_a_step_names_what_it_ignores() -> None:
    said = step("-N", "2", "--time=5", "-J", "x", "--pty", "--mem=1G", "true")
    assert said == "srun: ignored: -N 2 --time=5 --mem=1G\n"
    assert step("-N1", "--overlap", "-u", "true") == ""


def test_a_program_that_is_not_there_is_named_as_it_was() -> None:
    assert step("no-such-program") == "srun: error: no-such-program: No such file or directory\n"


@pytest.mark.parametrize(
    "words",
    [
        ["-N", "2", "--wrap", "true"],
        ["-w", "elsewhere", "--wrap", "true"],
        ["-x", HOST, "--wrap", "true"],
        ["--licenses=a", "--wrap", "true"],
        ["--uid=1", "--wrap", "true"],
        ["/nonexistent.sh"],
        ["/etc/hostname"],
        ["--mem=lots", "--wrap", "true"],
        ["-d", "aftercorr:4", "--wrap", "true"],
    ],
)
def test_sbatch_refuses_what_cannot_be_honoured(
    fake: FakeDaemon, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sbatch", words) == 1
    assert not fake.asked and "sbatch: error: " in capsys.readouterr().err


HETEROGENEOUS = """#!/bin/sh
#SBATCH --job-name=a-0 --ntasks-per-node=1
#SBATCH hetjob
#SBATCH --job-name=a-1 --ntasks-per-node=1
srun echo 1 : echo 2
"""


def test_several_groups_of_options_are_refused(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.sh").write_text(HETEROGENEOUS)
    assert run("sbatch", [f"{tmp_path}/job.sh"]) == 1
    told = f"{tmp_path}/job.sh:3: several groups of options (a heterogeneous job) are not supported"
    first = capsys.readouterr().err.splitlines()[0]
    assert not fake.asked and first == f"sbatch: error: {told}"
    assert "several groups" in step("-n1", "echo", "1", ":", "-n2", "echo", "2")


# the links


@pytest.fixture
def carma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "carma"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_links_are_made_and_removed(carma: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert slurm_commands_install(carma) == 0  # type: ignore[arg-type]
    assert slurm_commands_install(carma) == 0  # type: ignore[arg-type]
    assert {each.name for each in carma.iterdir()} == {"carma", *WORDS}
    assert (carma / "squeue").resolve() == carma / "carma"
    (carma / "sinfo").unlink()
    (carma / "sinfo").write_text("somebody's own")
    assert slurm_commands_remove(carma) == 0  # type: ignore[arg-type]
    assert {each.name for each in carma.iterdir()} == {"carma", "sinfo"}


def test_nothing_is_put_over_a_real_slurms(
    carma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "slurm"
    real.mkdir()
    (real / "sacct").write_text("#!/bin/sh\n")
    (real / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{carma}:{real}")
    with pytest.raises(Problem, match="Slurm's own sacct"):
        slurm_commands_install(carma)
    assert {each.name for each in carma.iterdir()} == {"carma"}


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_not_a_link_to_carma_stays(carma: Path, kind: str) -> None:
    if kind == "link":
        (carma / "sinfo").symlink_to("/nonexistent")
    else:
        (carma / "sinfo").write_text("somebody's notes")
    with pytest.raises(Problem, match="sinfo is there"):
        slurm_commands_install(carma)
    assert {each.name for each in carma.iterdir()} == {"carma", "sinfo"}


HEAVY = {"typer", "rich", "pydantic", "dataclasses", "inspect", "asyncio"}


@pytest.mark.parametrize("words", [["squeue", "-u", "alice"], ["squeue", "-h", "-o", "%i %t"]])
def test_squeue_is_light(fake: FakeDaemon, words: list[str]) -> None:
    jobs(fake, job())
    code = (
        "import sys; before = set(sys.modules); from carma_slurm.words import run;"
        f"code = run({words[0]!r}, {words[1:]});"
        "print('', *sorted(set(sys.modules) - before)); sys.exit(code)"
    )
    argv = [sys.executable, "-S", "-c", code]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "extras")}  # `-S` leaves it out
    found = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    loaded = {*found.stdout.splitlines()[-1].split()}
    assert not HEAVY & loaded


# signals


def test_a_signal_reaches_no_job_of_another_daemon(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs(fake, job(id=7_654_321, label="7654321", user=getpass.getuser()))
    here, there = os.environ["CARMA_SOCKET"], str(tmp_path / "other.sock")
    sleepers = {
        socket: subprocess.Popen(
            ["sleep", "1000"],
            env={**os.environ, "CARMA_JOB_ID": "7654321", "CARMA_SOCKET": socket},
        )
        for socket in (here, there)
    }
    try:
        assert run("scancel", ["-s", "USR1", "7654321"]) == 0
        assert sleepers[here].wait(PATIENCE_S) == -signal.SIGUSR1
        assert sleepers[there].poll() is None
    finally:
        for each in sleepers.values():
            each.kill()
            each.wait()
