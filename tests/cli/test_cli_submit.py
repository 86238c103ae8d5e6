"""`carma submit`: its options, requests and output; and that it stays light."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from carma_client.limits import soft_limits
from carmad.api.requests import SubmitIn
from cli import parse
from cli.hot import run as run_hot
from cli.main import PIPE_CLOSED, run
from cli.submission import build_parser
from tests.daemon import CARMA, NO_KERNELS, running
from tests.fake_daemon import FakeDaemon, ended, job
from tests.terminal import Terminal
from tests.waiting import PATIENCE_S

submit = partial(run_hot, "submit")

ROOT = Path(__file__).parents[2]
HEAVY = ("typer", "rich", "sqlalchemy", "pydantic", "asyncio", "shutil")


def script(path: Path, text: str, mode: int = 0o644) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests submit is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "a b", "--weird", "-"):
        script(folder / name, "#!/bin/sh\n", 0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


# Times, sizes, arrays, dependencies


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("2:30:00", 9000),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-12:30:15", 131_415),
        ("2h30m", 9000),
        ("90s", 90),
        ("1.5h", 5400),
        ("3 days", 259_200),
        ("1d 2hours", 93_600),
        ("0", None),
        ("0:00", None),
        ("UNLIMITED", None),
    ],
)
def test_time_limits(text: str, seconds: float | None) -> None:
    assert parse.seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "1:2:3:4", "-5", "2h30", "h", "3 months", "1e3", "∞", "11y", "4000d"]
)
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse.seconds(text)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_both_ways_to_write_a_time_agree(day: int, hour: int, minute: int, second: int) -> None:
    slurm = parse.seconds(f"{day}-{hour:02}:{minute:02}:{second:02}")
    assert slurm == parse.seconds(f"{day}d{hour}h{minute}m{second}s")
    assert (slurm or 0) == timedelta(days=day, hours=hour, minutes=minute, seconds=second) / (
        timedelta(seconds=1)
    )


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        *(("12G", 12288), ("12GiB", 12288), ("12gb", 12288), ("900M", 900), ("900", 900)),
        *(("1.5G", 1536), ("0.0015G", 2), ("1T", 1048576), (" 2 G ", 2048)),
    ],
)
def test_sizes(text: str, mib: int) -> None:
    assert parse.mebibytes(text) == mib


@pytest.mark.parametrize("text", ["", "G", "0", "8", "-1G", "12K", "1e9", "12 GG", "nan", "999T"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse.mebibytes(text)


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("0-15:4%4", [0, 4, 8, 12], 4),
        ("7,1,3", [1, 3, 7], None),
        ("5", [5], None),
        ("0-2,8,10-11%2", [0, 1, 2, 8, 10, 11], 2),
        ("1,1-2", [1, 2], None),
    ],
)
def test_arrays(text: str, indices: list[int], limit: int | None) -> None:
    assert parse.array(text) == {"indices": indices, "limit": limit}


@pytest.mark.parametrize(
    "text",
    ["", "a", "3-1", "1,", "0-4:0", "0-3%", "0-3%0", "0-3%x", "-1", "0-99999", "0-999999999999"],
)
def test_what_is_no_array(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse.array(text)


@given(st.sets(st.integers(0, 5000), min_size=1), st.none() | st.integers(1, 99))
def test_any_list_of_indices_is_an_array(indices: set[int], limit: int | None) -> None:
    text = ",".join(map(str, indices)) + (f"%{limit}" if limit else "")
    assert parse.array(text) == {"indices": sorted(indices), "limit": limit}


PARSERS: list[Callable[[str], object]] = [
    parse.seconds,
    parse.mebibytes,
    parse.gpu_count,
    parse.gres,
    parse.whole(-9, 9),
    parse.not_empty,
    parse.array,
    parse.dependency,
    parse.after,
    parse.signal_before,
    parse.moment,
    parse.deadline,
    parse.since,
    parse.stage,
    parse.stage_times,
    parse.export,
    parse.happenings,
    parse.mail_type,
]


@given(
    st.sampled_from(PARSERS), st.text() | st.text("0123456789-:,.%@+=anowhdmsgKMGTZ", max_size=24)
)
def test_no_word_makes_a_parser_fail_otherwise(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except ArgumentTypeError as error:
        assert str(error)


def test_dependencies() -> None:
    assert parse.dependency("afterok:1,2") == [  # as pysqa has it, too
        {"job": "1", "kind": "afterok"},
        {"job": "2", "kind": "afterany"},
    ]
    assert parse.dependency("afterok:3:40_2,afterany:last") == [
        {"job": "3", "kind": "afterok"},
        {"job": "40_2", "kind": "afterok"},
        {"job": "last", "kind": "afterany"},
    ]
    assert parse.after("3,4") == [{"job": "3", "kind": "afterok"}, {"job": "4", "kind": "afterok"}]
    for wrong in ("x", "afterok", "afterok:", "afterok:x", "after:3", "afterok:3?afterok:4"):
        with pytest.raises(ArgumentTypeError):
            parse.dependency(wrong)


def test_signals() -> None:
    assert parse.signal_before("USR2@90") == {"signum": 12, "before_s": 90}
    assert parse.signal_before("B:SIGUSR1") == {"signum": 10, "before_s": 60}
    assert parse.signal_before("15@5") == {"signum": 15, "before_s": 5}
    for wrong in ("FOO", "USR1@", "USR1@0", "KILL", "99", ""):
        with pytest.raises(ArgumentTypeError):
            parse.signal_before(wrong)


def test_what_a_job_tells() -> None:
    assert parse.happenings("end, fail,end") == "end,fail"
    assert parse.mail_type("begin,END,FAIL,TIME_LIMIT_80") == "start,end,fail,limit80"
    assert parse.mail_type("ALL") == "start,end"
    assert parse.mail_type("NONE") is None
    for wrong in ("", "end,", "END"):
        with pytest.raises(ArgumentTypeError):
            parse.happenings(wrong)
    with pytest.raises(ArgumentTypeError):
        parse.mail_type("SOMETIMES")


def test_points_in_time() -> None:
    now = datetime.now(UTC)
    for text, ahead_s in (("now", 0), ("now+90", 90), ("now+2h", 7200), ("now + 30minutes", 1800)):
        ahead = datetime.fromisoformat(parse.moment(text)) - now
        assert -1 < ahead.total_seconds() - ahead_s < 60
    clock = datetime.fromisoformat(parse.moment("00:00"))
    assert timedelta(0) < clock - now <= timedelta(days=1, hours=1)
    monday = datetime.fromisoformat(parse.moment("monday 9:00")).astimezone()
    assert monday.strftime("%a %H:%M") == "Mon 09:00"
    assert timedelta(0) < monday - now <= timedelta(days=7, hours=1)
    for text, hour in (("tomorrow", 0), ("noon-tomorrow", 12), ("9:30 tomorrow", 9)):
        then = datetime.fromisoformat(parse.moment(text)).astimezone()
        assert (then.date() - now.astimezone().date(), then.hour) == (timedelta(days=1), hour)
    noon = datetime.fromisoformat(parse.moment("noon")).astimezone()
    assert noon.hour == 12 and timedelta(0) < noon - now <= timedelta(days=1, hours=1)
    for wrong in ("", "lunch", "tomorrow noon", "-tomorrow", "monday 9:00 tomorrow"):
        with pytest.raises(ArgumentTypeError):
            parse.moment(wrong)
    for text in ("8h", "now+8h"):
        ahead = datetime.fromisoformat(parse.deadline(text)) - now
        assert timedelta(hours=8) <= ahead + timedelta(seconds=1) < timedelta(hours=8, minutes=1)
    assert parse.deadline("2026-11-22 08:00+01:00") == "2026-11-22T07:00:00.000Z"
    assert parse.moment("2026-11-20T12:00:00+02:00") == "2026-11-20T10:00:00.000Z"
    ago = now - datetime.fromisoformat(parse.since("7d"))
    assert timedelta(days=6) < ago < timedelta(days=7, seconds=60)


def test_gpus_are_counted_slurms_way_too() -> None:
    assert parse.gres("gpu") == (1, "")
    assert parse.gres("gpu:2") == (2, "")
    assert parse.gres("gpu:a100:4") == (4, "a100")
    assert parse.gpus_of_kind("a100:2") == (2, "a100")
    assert parse.gres("gpu:0") == parse.gres("none") == (0, "")
    for wrong in ("gpu:", "shard:2", "gpu:1,shard:2", "gpu:-1", "gpu:1025"):
        with pytest.raises(ArgumentTypeError):
            parse.gres(wrong)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=1e-3,1e-4", ["1e-3", "1e-4"]),
        ("seed=0-3,8", ["0", "1", "2", "3", "8"]),
        ("seed=0-8:4", ["0", "4", "8"]),
        ("layers=[64,64],[128,128]", ["[64,64]", "[128,128]"]),
        ("betas=(0.9,0.999)", ["(0.9,0.999)"]),
        ('cfg={"a":1,"b":[2,3]},{"a":"}"}', ['{"a":1,"b":[2,3]}', '{"a":"}"}']),
        ('names="a,b",c', ["a,b", "c"]),
        ("names='a,b'", ["a,b"]),
        ("names=it's,that's", ["it's", "that's"]),
        ("month=2024-12,2025-01", ["2024-12", "2025-01"]),
        ("day=01-03", ["01-03"]),
        ("seed=0-0,5-5", ["0", "5"]),  # as of N tasks: 0-$((N-1))
        ("split=80-20", ["80-20"]),
        ("smile=:),a]", [":)", "a]"]),
        ("empty=", [""]),
        ("ends=a,", ["a", ""]),
    ],
)
def test_values_of_a_sweep(text: str, values: list[str]) -> None:
    assert parse.param(text)[1] == values


@pytest.mark.parametrize("text", ["a=(1,2", "a=[1,(2]", "a='1,2", "9a=1", "a"])
def test_what_are_no_values_of_a_sweep(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        parse.param(text)
    assert ("--params FILE" in str(error.value)) == text.startswith("a=")


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("12/24/26", "2026-12-24 00:00"),
        ("12/24/2026-16:30", "2026-12-24 16:30"),
        ("12.24.26 7:05:09", "2026-12-24 07:05:09"),
    ],
)
def test_dates_as_slurm_writes_them(text: str, local: str) -> None:
    assert datetime.fromisoformat(parse.moment(text)) == datetime.fromisoformat(local).astimezone()


def test_a_date_without_a_year_is_the_next_one() -> None:
    now = datetime.now().astimezone()
    for days in (-2, 2):
        near = now + timedelta(days=days)
        found = datetime.fromisoformat(parse.moment(f"{near.month}/{near.day}")).astimezone()
        assert (found.month, found.day) == (near.month, near.day)
        assert now < found < now + timedelta(days=367)
    for wrong in ("13/1", "2/30/26", "1/2/3", "0/0"):
        with pytest.raises(ArgumentTypeError):
            parse.moment(wrong)


@pytest.mark.parametrize(
    ("text", "valid"),
    [("1", True), ("75,137", True), ("255,99,200", True), ("75,75", True)]
    + [(text, False) for text in ("", "0", "256", "999", "75, 76", "75,", "075", "-1", "٣")],
)
def test_exit_codes_are_those_that_a_process_can_have(text: str, valid: bool) -> None:
    schema = TypeAdapter(SubmitIn).json_schema()["properties"]["retry_on"]
    assert bool(re.search(schema["anyOf"][0]["pattern"], text)) == valid
    if valid:
        assert parse.exit_codes(text) == text
    else:
        with pytest.raises(ArgumentTypeError, match="from 1 to 255"):
            parse.exit_codes(text)


# What is sent


def test_every_option_arrives(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "-J x -G 2 --gpu-mem 12G -t 2h --expect 90m -a 0-3%2 -d afterany:3 --after 4"
    words += " -b 2026-11-20T12:00:00Z -o o-%j -e e --conda ml --nice 5 --urgent --no-requeue"
    words += " --mail-user ada@lab.org --idle-ok robot --comment a/b --retry-on 75,137"
    words += " --requeue-ok --signal USR2@60 --exclusive -H --batch-size 64 --amp --cold-start 5m"
    words += " --deadline 2026-11-22T08:00:00Z --allreduce tree --watch-stages --notify end,oom"
    file = tmp_path / "carma/notify.conf"
    file.parent.mkdir()
    file.write_text("json://localhost/ada@lab.org")
    file.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("cli.missing.refuse_missing_image", lambda image: None)
    words += " -c 8 --mem 32G --container torch -C a100&40g --on 0,1 --not-on 2"
    told = [
        "--layout",
        "2x forward=20ms weights=4M",
        "--stages",
        "forward=1ms backward=2ms gpu=A B",
    ]
    before = os.umask(0o027)
    try:
        rc = submit([*told, *words.split(), "-D", str(tmp_path), "--export", "A=b c", "--", "prog"])
        assert (rc, os.umask(0o027)) == (0, 0o027)
    finally:
        os.umask(before)
    body = fake.body
    assert body.pop("env")
    assert body.pop("limits") == soft_limits()
    assert body == {
        "argv": ["prog"],
        "cwd": str(tmp_path),
        "name": "x",
        "unless_running": None,
        "export": {"SLURM_SUBMIT_DIR": str(tmp_path), "A": "b c"},
        "conda_env": "ml",
        "container": "torch",
        "constraint": "a100&40g",
        "on": "0,1",
        "not_on": "2",
        "notify": "end,oom",
        "gpus": 2,
        "memory_mib": 12288,
        "cpus": 8,
        "host_memory_mib": 32768,
        "batch_size": 64,
        "amp": True,
        "cold_start_s": 300.0,
        "exclusive": True,
        "nice": 5,
        "urgent": True,
        "time_limit_s": 7200.0,
        "expected_s": 5400.0,
        "deadline_at": "2026-11-22T08:00:00.000Z",
        "layout": {
            "stages": [{"replicas": 2, "forward_s": 0.02, "weights_mib": 4.0}],
            "allreduce": "tree",
        },
        "stage_times": [{"load_s": 0.0, "forward_s": 0.001, "backward_s": 0.002, "gpu": "A B"}],
        "watch_stages": True,
        "warn": {"signum": 12, "before_s": 60},
        "begin_at": "2026-11-20T12:00:00.000Z",
        "after": [{"job": "3", "kind": "afterany"}, {"job": "4", "kind": "afterok"}],
        "array": {"indices": [0, 1, 2, 3], "limit": 2},
        "stdout": "o-%j",
        "stderr": "e",
        "requeue": False,
        "requeue_ok": True,
        "retry_on": "75,137",
        "mail_user": "ada@lab.org",
        "idle_ok": "robot",
        "comment": "a/b",
        "umask": "0027",
        "held": True,
        "dry_run": False,
    }


def test_the_request_is_one_that_the_server_takes(fake: FakeDaemon) -> None:
    from carmad.api.requests import SubmitIn

    assert (
        submit(
            [
                "-J",
                "x",
                "--gpu-mem",
                "1G",
                "-t",
                "5",
                "--signal",
                "12",
                "-a",
                "1",
                "--after",
                "3",
                "-b",
                "now",
                "-o",
                "o",
                "echo",
            ]
        )
        == 0
    )
    SubmitIn.model_validate_json(json.dumps(fake.body))
    assert submit(["--deadline", "8h", "--layout", "2x in=1M", "--layout", "1x", "echo"]) == 0
    assert len(SubmitIn.model_validate_json(json.dumps(fake.body)).layout.stages) == 2
    assert submit(["--stages", "forward=1s backward=2s sync=backward", "echo"]) == 0
    SubmitIn.model_validate_json(json.dumps(fake.body))
    assert submit(["echo"]) == 0
    SubmitIn.model_validate_json(json.dumps(fake.body))


def test_a_layout_says_how_many_gpus(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ["--layout", "2x forward=1ms tensor=2", "--layout", "1x forward=1ms"]
    assert submit([*stages, "prog"]) == 0
    assert fake.body["gpus"] == 5
    assert submit([*stages, "-G", "5", "prog"]) == 0
    assert submit([*stages, "-G", "4", "prog"]) == 2
    assert "needs 5 GPUs, but --gpus says 4" in capsys.readouterr().err
    assert submit(["--allreduce", "tree", "prog"]) == 2
    lines = "#CARMA --layout '3x forward=1ms' --allreduce tree\n"
    lines += "#CARMA --stages 'forward=1s backward=2s'"
    path = script(tmp_path / "job.sh", f"#!/bin/sh\n{lines}\nrun\n")
    assert submit([path]) == 0
    assert fake.body["gpus"] == 3
    assert submit(["--layout", "2x forward=9ms", path]) == 0
    assert fake.body["layout"] == {
        "stages": [{"replicas": 2, "forward_s": 0.009}],
        "allreduce": "tree",
    }
    assert len(fake.body["stage_times"]) == 1, "the script's own"


def test_who_has_a_deadline_hears_whether_it_is_met(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "predicted to miss its deadline by 40 min (would start in about 2 h)"
    answer = fake.answers["POST", "/v1/jobs"]
    outlook = {"starts_at": None, "ends_at": None, "late_s": 2400.0, "text": text}
    fake.answers["POST", "/v1/jobs"] = answer | {"outlook": outlook}
    assert submit(["--deadline", "8h", "prog"]) == 0
    assert capsys.readouterr().err == f"carma: {text}\n"
    assert submit(["--deadline", "8h", "-Q", "prog"]) == 0
    assert capsys.readouterr().err == ""


def test_defaults(fake: FakeDaemon, tmp_path: Path) -> None:
    script(tmp_path / "train.py", "")
    assert submit(["python", "train.py"]) == 0
    assert fake.body["gpus"] == 1
    assert fake.body["cwd"] == str(tmp_path)
    assert fake.body["requeue"] is True
    assert (fake.body["amp"], fake.body["cold_start_s"]) == (False, 0.0)
    for unsaid in (
        "name",
        "memory_mib",
        "batch_size",
        "time_limit_s",
        "array",
        "stdout",
        "warn",
        "begin_at",
        "deadline_at",
        "layout",
    ):
        assert fake.body.get(unsaid) is None


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["python", "-", "--json", "-G", "2"], ["python", "-", "--json", "-G", "2"]),
        (["--", "prog", "--", "-x"], ["prog", "--", "-x"]),
        (["--nice", "-5", "prog", "-t"], ["prog", "-t"]),
        (["-HG2", "prog"], ["prog"]),
        (["-HG", "2", "prog"], ["prog"]),
        (["--gpus=2", "--", "--weird"], ["--weird"]),
        (["--gres", "gpu:2", "prog", "--gres", "x"], ["prog", "--gres", "x"]),
        (["--", "a b", "", "$HOME", "*", "it's", "ünï"], ["a b", "", "$HOME", "*", "it's", "ünï"]),
        (["--wrap", "echo $HOME | wc"], ["/bin/sh", "-c", "echo $HOME | wc"]),
        (["-", "x"], ["-", "x"]),
    ],
)
def test_the_command_arrives_as_it_was_written(
    fake: FakeDaemon, words: list[str], argv: list[str]
) -> None:
    assert submit(words) == 0
    assert fake.body["argv"] == argv


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_any_command_is_kept(argv: list[str]) -> None:
    assert build_parser().split(["-G", "2", "--", *argv]) == (["-G", "2"], argv, True)


def test_the_environment_goes_along(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda/envs/ml")
    monkeypatch.setenv("TOKEN", "s3cret")
    assert submit(["--export", "A=1,B=two,three", "--export", "TOKEN", "prog"]) == 0
    assert fake.body["env"]["CONDA_PREFIX"] == "/opt/conda/envs/ml"
    assert fake.body["export"] == {"A": "1", "B": "two,three", "TOKEN": "s3cret"}
    assert submit(["--export", "A.b_1.2=1,C=2", "prog"]) == 0
    assert fake.body["export"] == {"A.b_1.2": "1", "C": "2"}
    assert submit(["--export", "NONE,A=1", "prog"]) == 0
    assert "CONDA_PREFIX" not in fake.body["env"]
    assert fake.body["env"]["PATH"] == os.environ["PATH"]
    assert fake.body["export"] == {"A": "1"}
    assert submit(["--export", "NOT_SET_ANYWHERE", "prog"]) == 2


def test_variables_that_are_no_text_are_left_out(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATIN", os.fsdecode(b"caf\xe9"))
    assert submit(["prog"]) == 0
    assert "LATIN" not in fake.body["env"]


def test_a_word_that_is_no_text_is_named(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latin = os.fsdecode(b"caf\xe9")
    (tmp_path / latin).mkdir()
    there = ["submit", "--output", "x", "-D", latin, "prog"]
    for words in (
        ["submit", "prog", latin],
        there,
        ["submit", "--name", latin, "prog"],
        ["submit", "--anyway", "--output", f"x/{latin}", "prog"],
        ["submit", "--export", f"A={latin}", "prog"],
        ["submit", "--param", f"a={latin},b", "prog"],
        ["cancel", latin],
        ["update", "--name", latin, "1"],
    ):
        assert run(words) == 2, words
        assert "caf\\xe9 is not UTF-8 text" in capsys.readouterr().err
    assert run(["queue", "--user", latin]) == 0


def test_last_is_asked_for(fake: FakeDaemon) -> None:
    assert submit(["--after", "last", "prog"]) == 0
    assert fake.asked[0][:3] == ("GET", "/v1/jobs", {"select": "last"})
    assert fake.body["after"] == [{"job": "42", "kind": "afterok"}]
    tasks = {"schema": 1, "jobs": [ended(id=45, label="42_3")]}
    fake.answers["GET", "/v1/jobs"] = tasks
    assert submit(["-d", "afterany:last", "--after", "40_1", "prog"]) == 0
    all_of_it = {"job": "42", "kind": "afterany"}
    assert fake.body["after"] == [all_of_it, {"job": "40_1", "kind": "afterok"}]
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": []}
    assert submit(["--after", "last", "prog"]) == 2


def test_a_path_that_leads_nowhere(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cli.missing.refuse_missing_image", lambda image: None)
    in_image = ("--container", "torch")
    for words in (["./nothere"], ["/no/such/program"], ["no/such.sh"], [*in_image, "./nothere"]):
        path = words[-1]
        assert submit(words) == 2
        assert f"carma: there is no {path}\nhint: " in capsys.readouterr().err
    assert not fake.asked
    assert submit(["-D", "/", "./nothere"]) == 0, "seen from there"
    assert submit(["--after", "42", "./nothere"]) == 0, "that job may make it"
    assert submit([*in_image, "/opt/conda/bin/python"]) == 0, "the image may have it"


# Job scripts


def test_a_job_script_runs_as_its_first_line_says(fake: FakeDaemon, tmp_path: Path) -> None:
    path = script(tmp_path / "job.sh", "#!/bin/bash -l\n#CARMA -G 2 --gpu-mem '10 G' # both\nrun\n")
    assert submit(["-G", "3", "job.sh", "--lr", "0.1"]) == 0
    assert fake.body["argv"] == ["/bin/bash", "-l", path, "--lr", "0.1"]
    assert fake.body["name"] == "job.sh"
    assert fake.body["gpus"] == 3, "the command line counts more"
    assert fake.body["memory_mib"] == 10240


def test_a_job_script_is_copied(fake: FakeDaemon, tmp_path: Path) -> None:
    text = "#!/bin/bash -l\nrun ü\n"
    path = script(tmp_path / "job.sh", text)
    assert submit([path, "x"]) == 0
    assert fake.body["script"] == {"word": 2, "text": text}
    assert fake.body["argv"][2] == path
    assert submit(["--no-copy", path]) == 0
    assert "script" not in fake.body
    script(tmp_path / "job.sh", "#!/usr/bin/env bash\n#CARMA --no-copy\n")
    assert submit([path]) == 0
    assert "script" not in fake.body


def test_only_shell_scripts_and_those_with_directives_are_copied(
    fake: FakeDaemon, tmp_path: Path
) -> None:
    train = script(tmp_path / "train.py", "#!/usr/bin/env python3\n")
    assert submit([train]) == 0
    assert "script" not in fake.body
    script(tmp_path / "train.py", "#!/usr/bin/env python3\n#CARMA -G 1\n")
    assert submit([train]) == 0
    assert fake.body["script"]["word"] == 2
    assert submit(["python3", train]) == 0
    assert "script" not in fake.body


def test_a_script_that_asks_where_it_is_gets_a_warning(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path / "job.sh", '#!/bin/sh\ncd "$(dirname "$0")"\n')
    assert submit([path]) == 0
    assert "job.sh uses $0, which will be the path of a copy" in capsys.readouterr().err
    assert submit(["--no-copy", path]) == submit(["-Q", path]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#!/bin/sh\n" + b"#" * (1 << 20), "larger than 1 MiB"),
        (b"#!/bin/sh\n# \xff\n", "not in UTF-8"),
        (b"#!/bin/sh\n" + b"#" * 70_000 + b"\0", "not text"),
    ],
)
def test_what_cannot_be_copied_can_be_run_where_it_is(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data: bytes,
    why: str,
) -> None:
    (tmp_path / "job.sh").write_bytes(data)
    assert submit(["job.sh"]) == 2
    said = capsys.readouterr().err
    assert why in said and "--no-copy" in said
    assert submit(["--no-copy", "job.sh"]) == 0


def test_gres_on_the_command_line_beats_gpus_in_the_script(
    fake: FakeDaemon, tmp_path: Path
) -> None:
    path = script(tmp_path / "job.sh", "#CARMA -G 2\nrun\n")
    assert submit(["--gres=gpu:4", path]) == 0
    assert fake.body["gpus"] == 4
    assert fake.body["argv"] == ["/bin/sh", path]


def test_directives_of_slurm_are_taken_as_far_as_they_go(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "#!/bin/bash\n\n# a comment\n#SBATCH --gres=gpu:2 --partition=gpu\n#SBATCH -J slurm\n"
    path = script(tmp_path / "job.sh", text + "run\n#SBATCH -J too-late\n", 0o755)
    assert submit([path]) == 0
    assert fake.body["gpus"] == 2
    assert fake.body["name"] == "slurm"
    assert "job.sh:4: #SBATCH ignored: --partition=gpu" in capsys.readouterr().err
    assert submit(["-Q", path]) == 0
    assert capsys.readouterr().err == ""


def test_a_line_of_a_script_ends_where_a_shell_ends_it(fake: FakeDaemon, tmp_path: Path) -> None:
    """A comment cannot hide a directive."""
    text = (
        "#!/bin/bash\n# see\u2028#SBATCH --gpus=7\n# and\x0b#SBATCH --gpus=7\n#SBATCH -J it\nrun\n"
    )
    path = script(tmp_path / "job.sh", text, 0o755)
    assert submit([str(path)]) == 0
    assert (fake.body["name"], fake.body["gpus"]) == ("it", 1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "carma: its log is {folder}/carma-1.out; follow it: carma logs -f; why it waits: "),
        (["--array", "2-3"], "carma: the first task's log is {folder}/carma-1_2.out; follow it: "),
        (["--wait"], ""),
        (["--quiet"], ""),
    ],
)
def test_at_a_terminal_the_log_and_what_to_type_next_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as daemon:
        monkeypatch.setenv("CARMA_SOCKET", daemon.socket)
        submit = [*CARMA, "submit", "--gpus", "0", "--chdir", str(daemon.work), *words]
        with Terminal([*submit, "true"], columns=300) as terminal:
            assert terminal.process.wait(PATIENCE_S) == 0
            assert terminal.text is not None  # it reads
            shown = terminal.written
        assert told.format(folder=daemon.work) in shown
        assert ("its log" in shown) == ("its" in told)
        piped = subprocess.run([*submit, "true"], capture_output=True, text=True)
        assert "log is" not in piped.stdout + piped.stderr


def test_nothing_that_is_ignored_commands_the_terminal(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path / "job.sh", "#!/bin/bash\n#SBATCH -A \x1b]0;mine\x07\n")
    assert submit([str(path)]) == 0
    assert "#SBATCH ignored: --account=?]0;mine?" in capsys.readouterr().err


def test_options_of_slurm_without_a_meaning_are_ignored_with_a_word(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(["-p", "gpu", "--nodes=1", "--mem-per-gpu", "8G", "prog", "-p", "1"]) == 0
    assert fake.body["argv"] == ["prog", "-p", "1"]
    said = "--nodes=1 --partition=gpu --mem-per-gpu=8G (for GPU memory, use --gpu-mem)"
    assert capsys.readouterr().err == f"carma: ignored: {said}\n"
    path = script(tmp_path / "job.sh", "#!/bin/bash\n#SBATCH -A me\n#CARMA -N 1\n")
    assert submit(["-x", "h", path]) == 0
    assert capsys.readouterr().err == (
        f"carma: {path}:2: #SBATCH ignored: --account=me\n"
        f"carma: {path}:3: #CARMA ignored: --nodes=1\n"
        "carma: ignored: --exclude=h\n"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/bash\n\nmodule load cuda\n", 3),
        ("#!/bin/bash -l\nmodule load cuda\n", 0),
        ("#!/bin/bash\nsource /etc/profile\nmodule load cuda\n", 0),
        ("#!/bin/bash\npython -m module\n", 0),
    ],
)
def test_a_script_that_lacks_module_is_told_so(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    line: int,
) -> None:
    monkeypatch.delenv("BASH_FUNC_module%%", raising=False)
    path = script(tmp_path / "job.sh", text)
    assert submit([path]) == 0
    said = f"carma: {path}:{line} calls module, which this shell does not have"
    assert (said in capsys.readouterr().err) == bool(line)
    monkeypatch.setenv("BASH_FUNC_module%%", "() {  :\n}")
    assert submit([path]) == 0
    assert not capsys.readouterr().err


def test_the_directory_of_submission_is_told(fake: FakeDaemon, tmp_path: Path) -> None:
    assert submit(["-D", "/", "prog"]) == 0
    assert fake.body["cwd"] == "/"
    assert fake.body["export"] == {"SLURM_SUBMIT_DIR": str(tmp_path)}
    assert submit(["-D", "/", "--export", "SLURM_SUBMIT_DIR=/own", "prog"]) == 0
    assert fake.body["export"] == {"SLURM_SUBMIT_DIR": "/own"}


@pytest.mark.parametrize("line", ["#CARMA --help", "#SBATCH -h"])
def test_a_directive_cannot_ask_for_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = script(tmp_path / "job.sh", f"#!/bin/bash\n{line}\n")
    assert run(["submit", path]) == 2
    out, err = capsys.readouterr()
    assert (out, f"{path}:2: a {line.split()[0]} line cannot ask for help" in err) == ("", True)


def test_a_wrong_directive_is_shown_with_its_line(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path / "job.sh", "#!/bin/bash\n#CARMA --gpuz 2\n")
    assert submit([path]) == 2
    assert "job.sh:2" in capsys.readouterr().err
    script(tmp_path / "job.sh", "#!/bin/bash\n#CARMA -J 'open\n")
    assert submit([path]) == 2
    assert not fake.asked


@pytest.mark.parametrize(
    "head",
    [
        "#SBATCH\t--time=7",
        "#SBATCH--time=7",
        "#SBATCH  \t -t 7",
        "#CARMA\t--time=7",
        "#CARMA--time=7",
        "  # a comment\n#SBATCH --time=7",
        "\t# a comment\n\n#CARMA --time=7",
        "#SBATCHES --time=1\n#CARMAs --time=1\n#SBATCH -t7",
    ],
)
def test_directives_are_found_as_slurm_finds_them(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    path = script(tmp_path / "job.sh", f"#!/bin/bash\n{head}\ntrue\n")
    assert submit([path]) == 0
    assert fake.body["time_limit_s"] == 420
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("set -e\n#SBATCH --time=7\n#SBATCH -G 2\n", "3: #SBATCH has no effect, as have 1 more"),
        ("set -e\n#CARMA --time=7\n", "3: #CARMA has no effect: "),
        ("  #SBATCH --time=7\ntrue\n", "2: #SBATCH has no effect: "),
        ("cat >x.sh <<END\n#!/bin/sh\n#SBATCH --time=7\nEND\n", ""),
        ("echo\n#SBATCH is not used here\n", ""),
        ("echo\n##SBATCH --time=7\n", ""),
    ],
)
def test_a_directive_without_effect_is_named_once(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    note: str,
    mode: int,
) -> None:
    path = script(tmp_path / "job.sh", f"#!/bin/bash\n{text}", mode)
    assert submit([path, "x"]) == 0
    assert (fake.body.get("time_limit_s"), fake.body["argv"][-2:]) == (None, [path, "x"])
    said = capsys.readouterr().err
    assert (note in said and said.count("\n") == 1) if note else not said
    assert submit(["-Q", path]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "why", "hint"),
    [
        ("a.sh", b"#!/bin/bash\r\n#SBATCH -t 7\r\ncd /tmp\r\n", "line breaks", "sed -i"),
        ("a.sh", b"#!/bin/bash\ncd /tmp\r\n", "line breaks", "sed -i"),
        ("a.sh", b"#CARMA -t 7\r\ncd /tmp\r\n", "line breaks", "sed -i"),
        ("a.sh", b"\xef\xbb\xbf#!/bin/bash\ntrue\n", "byte-order mark of UTF-8", "xEF"),
        ("a.sh", "\ufeff#!/bin/bash\n".encode("utf-16-le"), "mark of UTF-16", "iconv -f UTF-16"),
        ("a.sh", b"echo hello\n", "neither executable nor", "carma submit -- bash a.sh"),
        ("a.py", b"print()\r\n", "neither executable nor", "carma submit -- python a.py"),
    ],
)
def test_a_script_that_no_shell_can_read_is_refused(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    data: bytes,
    why: str,
    hint: str,
) -> None:
    (tmp_path / name).write_bytes(data)
    assert submit([name]) == 2
    message, _, rest = capsys.readouterr().err.partition("hint: ")
    assert why in message and hint in rest
    assert not fake.asked


def test_python_reads_any_line_breaks_unless_the_kernel_has_to(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"#!/usr/bin/env python3\r\n#CARMA -G 2\r\nprint()\r\n")
    assert submit(["train.py"]) == 0
    assert (fake.body["gpus"], fake.body["argv"][1]) == (2, "python3")
    path.chmod(0o755)
    assert submit(["train.py"]) == 2
    assert "line breaks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["python", "train.py", "--time", "4h"], "--time"),
        (["python", "train.py", "-x", "--gpu-mem=4G", "--name", "x"], "--gpu-mem"),
        (["--", "python", "train.py", "--time", "4h"], ""),
        (["python", "train.py", "--", "--time", "4h"], ""),
        (["python", "train.py", "-t", "4h", "--lr", "1"], ""),
        (["python", "train.py", "--help"], ""),
        (["-Q", "python", "train.py", "--time", "4h"], ""),
    ],
)
def test_an_option_after_the_command_is_named(
    fake: FakeDaemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    option: str,
) -> None:
    (tmp_path / "train.py").touch()
    assert submit(words) == 0
    assert fake.body.get("time_limit_s") is None
    said = capsys.readouterr().err
    assert said.startswith(f"carma: {option} comes after the command") if option else not said


def test_programs_are_no_job_scripts(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")  # without `prog`
    program = script(tmp_path / "prog", "#!/bin/bash\nrun\n", 0o755)
    assert submit([program, "x"]) == 0
    assert fake.body["argv"] == [program, "x"]
    assert submit(["prog"]) == 0
    assert fake.body["argv"] == [program], "found here as if it were on PATH"
    (tmp_path / "python").write_text("a file that is named like a program")
    assert submit(["python", "-m", "x"]) == 0
    assert fake.body["argv"] == ["python", "-m", "x"]


def test_a_python_file_is_no_program(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path / "train.py", "import torch\n")
    assert submit(["train.py"]) == 2
    assert "carma submit -- python train.py" in capsys.readouterr().err
    assert not fake.asked


@pytest.mark.parametrize("word", ["queue", "status", "logs", "cancel"])
def test_a_verb_is_not_submitted(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert submit([word, "-u", "me"]) == 2
    assert f"carma {word}" in capsys.readouterr().err
    assert not fake.asked
    assert submit(["--anyway", "--", word]) == 0
    assert fake.body["argv"] == [word]
    program = script(tmp_path / word, "#!/bin/sh\n", 0o755)
    assert submit([word]) == 0
    assert fake.body["argv"] == [program]


# What comes back


def test_the_id_is_printed(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    answer = fake.answers["POST", "/v1/jobs"] | {"warnings": ["odd, but allowed"]}
    fake.answers["POST", "/v1/jobs"] = answer
    assert submit(["prog"]) == 0
    assert capsys.readouterr() == ("Submitted batch job 42\n", "carma: odd, but allowed\n")
    assert submit(["--parsable", "prog"]) == 0
    assert capsys.readouterr().out == "42\n"
    assert submit(["-Q", "prog"]) == 0
    assert capsys.readouterr() == ("", "")
    assert submit(["--json", "prog"]) == 0
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ended(), 0),
        (ended(code=7), 7),
        (ended(code=None, signal=9), 137),
        (ended(code=0) | {"state": "cancelled"}, 1),
        (ended(exit=None) | {"state": "cancelled"}, 1),
    ],
)
def test_waiting_gives_the_jobs_exit_code(fake: FakeDaemon, end: dict[str, Any], code: int) -> None:
    fake.answers["GET", "/v1/jobs/42/wait"] = end
    assert submit(["-W", "prog"]) == code


def test_waiting_goes_on_until_the_end(fake: FakeDaemon) -> None:
    fake.answers["GET", "/v1/jobs/42/wait"] = fake.answers["GET", "/v1/jobs/42"]

    def end() -> None:
        while sum(path.endswith("/wait") for _, path, _, _ in fake.asked) < 3:
            time.sleep(0.01)
        fake.answers["GET", "/v1/jobs/42/wait"] = ended(code=3)

    thread = threading.Thread(target=end)
    thread.start()
    assert submit(["-W", "prog"]) == 3
    thread.join()


def test_waiting_for_an_array_gives_its_first_failure(fake: FakeDaemon) -> None:
    answer = {"schema": 1, "id": 42, "ids": [42, 43], "label": "42", "warnings": []}
    fake.answers["POST", "/v1/jobs"] = answer
    assert submit(["-W", "-a", "0-1", "prog"]) == 7


def test_a_dry_run_submits_nothing(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.fake_daemon import REFUSALS

    verdicts = {"schema": 1, "would_start": False, "verdicts": REFUSALS}
    fake.answers["POST", "/v1/jobs"] = verdicts
    assert submit(["--dry-run", "--gpu-mem", "4G", "prog"]) == 0
    assert fake.body["dry_run"] is True
    assert "It would wait." in capsys.readouterr().out
    assert len(fake.asked) == 1, "nothing is tried whose memory is declared"
    too_large = "needs at least 149.5G, and the largest GPU has 40.0G"
    fake.answers["POST", "/v1/estimate"] = {"crash": None, "too_large": too_large}
    assert submit(["--dry-run", "prog"]) == 0
    assert capsys.readouterr().err == f"carma: your job {too_large}\n"
    fake.answers["POST", "/v1/estimate"] = {"crash": "at train.py:1: KeyError"}
    assert submit(["--dry-run", "prog"]) == 0
    assert capsys.readouterr().err == "carma: your script stops at train.py:1: KeyError\n"
    del fake.answers["POST", "/v1/estimate"]
    capsys.readouterr()
    told = {"warnings": ["it may begin only after its deadline"], "outlook": {"text": "too late"}}
    fake.answers["POST", "/v1/jobs"] = verdicts | told
    assert submit(["--dry-run", "prog"]) == 0
    assert capsys.readouterr().err == (
        "carma: it may begin only after its deadline\ncarma: too late\n"
    )
    fake.answers["POST", "/v1/jobs"] = verdicts
    assert submit(["--test-only", "--json", "prog"]) == 0
    assert json.loads(capsys.readouterr().out) == verdicts


# What goes wrong


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-t", "soon", "prog"],
        ["--gpu-mem", "much", "prog"],
        ["--no-such-option", "prog"],
        ["-G"],
        ["-G", "-1", "prog"],
        ["-c", "0", "prog"],
        ["--mem", "1M", "prog"],
        ["--nice", "99999", "prog"],
        ["-J", "", "prog"],
        ["--wrap", "x", "prog"],
        ["-D", "/no/such/directory", "prog"],
    ],
)
def test_usage_errors(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert submit(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("carma: ") and "Traceback" not in err
    assert submit(["--json", *words]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "usage"
    assert not fake.asked


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--gpu-men", "8G", "prog"], "did you mean --gpu-mem?"),
        (["--lr", "1", "prog"], "carma submit has no option --lr"),
        (["--lr", "1", "prog"], "go after it: carma submit -- python train.py --lr …"),
        (["--priority", "4", "prog"], "use --nice"),
        (["--gpu-mem", "8", "prog"], "write 8G"),
    ],
)
def test_what_was_meant_is_guessed(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    assert submit(words) == 2
    assert hint in capsys.readouterr().err
    assert not fake.asked


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (403, "forbidden", 4),
        (403, "not_yours", 4),
        (422, "bad_request", 1),
        (503, "unavailable", 1),
    ],
)
def test_refusals(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], status: int, code: str, exit_code: int
) -> None:
    fake.refuse_all = (status, code)
    assert submit(["prog"]) == exit_code
    assert capsys.readouterr() == ("", "carma: no\nhint: ask nicely\n")
    assert submit(["--json", "prog"]) == exit_code
    assert json.loads(capsys.readouterr().out) == {
        "error": "no",
        "hint": "ask nicely",
        "code": code,
    }


def test_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "none.sock"))
    assert submit(["prog"]) == 3
    assert "carma daemon start" in capsys.readouterr().err
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / ("long" * 40)))
    assert submit(["prog"]) == 3


def test_a_daemon_that_hangs_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert submit(["prog"]) == 3
        thread.join()
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupt_leaves_the_job_alone(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.commands.submit.wait_for", interrupted)
    assert run(["submit", "-W", "prog"]) == 130
    assert "carma cancel 42" in capsys.readouterr().err


def carma(
    fake: FakeDaemon, *words: str, line: str = '"$@"', **streams: Any
) -> subprocess.CompletedProcess[str]:
    """The command itself, started by a shell that runs `line`."""
    python = [sys.executable, "-c", "from cli.main import main; main()"]
    env = {**os.environ, "CARMA_SOCKET": str(fake.path), "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **streams}
    return subprocess.run(
        ["bash", "-c", line, "sh", *python, *words],
        env=env,
        text=True,
        check=False,
        stderr=subprocess.PIPE,
        **streams,
    )


@pytest.mark.parametrize(
    ("line", "drops"),
    [
        ('"$@" <<END\nimport torch\nEND', True),
        ('seq 3 >list; "$@" <list', True),
        ('mkfifo pipe; exec 3<>pipe; seq 3 >&3; "$@" <&3', True),
        ('seq 3 >list; while read line; do "$@"; done <list', False),
        ('seq 3 | while read line; do "$@"; done', False),
        ('"$@" </dev/null', False),
        ('"$@" <&-', False),
        (': | "$@"', False),
        (': >list; "$@" <list', False),
    ],
)
def test_input_that_the_job_would_not_read_is_named(
    fake: FakeDaemon, tmp_path: Path, line: str, drops: bool
) -> None:
    ran = carma(fake, "submit", "prog", line=line)
    assert "Submitted batch job 42" in ran.stdout, ran.stderr
    assert ("the job does not get this input" in ran.stderr) == drops


@pytest.mark.parametrize(
    "words",
    [
        *(["queue"], ["submit", "prog"], ["status"], ["show", "42"], ["gpus"], ["--help"]),
        *(["logs", "42"], ["logs", "-n", "1", "42"], ["logs", "-n", "10000", "42"]),
    ],
)
def test_a_full_disk_is_told(fake: FakeDaemon, words: list[str]) -> None:
    log = fake.path.with_name("log")
    log.write_text("epoch 1\n" * 20_000)
    fake.answers["GET", "/v1/jobs/42"] = job(stdout=str(log))
    with Path("/dev/full").open("w") as full:
        ran = carma(fake, *words, stdout=full)
    assert ran.returncode == 1
    assert "cannot write the output: No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr
    assert ("the job is submitted: 42" in ran.stderr) == (words[0] == "submit")
    if words[0] == "logs":  # whose reader may leave, too
        left = carma(fake, *words, line='{ "$@"; echo $? >&2; } | true')
        assert left.stderr in ("0\n", f"{PIPE_CLOSED}\n"), "0: it was read before"


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "prog"],
        ["submit", "-D", "/tmp", "prog"],
        ["run", "prog"],
        ["estimate", "python3", "train.py"],
    ],
)
def test_a_deleted_directory_is_told(fake: FakeDaemon, tmp_path: Path, words: list[str]) -> None:
    ran = carma(fake, *words, line='mkdir gone; cd gone; rmdir ../gone; "$@"')
    assert ran.returncode != 0
    assert "the current directory has been deleted" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_submitting_imports_nothing_heavy(fake: FakeDaemon) -> None:
    """Importing typer alone takes longer than all of `carma submit` may."""
    code = (
        "import sys; before = set(sys.modules); from cli.main import run;"
        "code = run(['submit', '-G', '2', '-t', '2h', '--gpu-mem', '4G', 'prog']);"
        "print(' '.join(sorted(set(sys.modules) - before))); sys.exit(code)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = found.stdout.splitlines()[-1].split()
    assert "cli.commands.submit" in loaded
    assert not set(HEAVY) & set(loaded)
    assert not [name for name in loaded if name.startswith(("carmad.core", "carmad.daemon"))]
