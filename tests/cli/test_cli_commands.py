"""Every verb against a daemon with canned answers: for people, programs and pipes, with errors."""

from __future__ import annotations

import json
import os
import pty
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from carmad.paths import python
from cli import hot
from cli.commands import past
from cli.main import run
from cli.verbs import FIRST, INSTEAD, every, leaves
from tests.attack.users import needs_root
from tests.fake_daemon import ANSWERS, FakeDaemon, ended, job

ROOT = Path(__file__).parents[2]
CARMA = [sys.executable, "-c", "from cli.main import main; main()"]

# words, what is asked, a piece of what is printed
ALONE = "estimate prog"  # works without a daemon, too
NAMED = {verb.name: verb for verb in leaves()}
GROUPS = {each.name: each for each in every() if each.below}
STEP = ("POST", "/v1/jobs/42/step")
RESERVED = ("POST", "/v1/reservations")
VERBS: list[tuple[str, tuple[str, str], str]] = [
    ("status", ("GET", "/v1/status"), "policy magm"),
    ("queue", ("GET", "/v1/jobs"), "JOBID"),
    ("queue --start", ("GET", "/v1/starts"), "job 43 of eve: at noon"),
    ("show 42", ("GET", "/v1/jobs/42"), "python train.py --name 'two words'"),
    ("why 43", ("GET", "/v1/jobs/43/why"), "what would help"),
    ("cancel 42", ("POST", "/v1/cancel"), "job 42: done"),
    ("hold 42", ("POST", "/v1/hold"), "job 42: done"),
    ("release 42", ("POST", "/v1/release"), "job 42: done"),
    ("requeue 42", ("POST", "/v1/requeue"), "job 42: done"),
    ("report --step 0.25 --job 42", ("POST", "/v1/jobs/42/step"), "job 42: 0.25 s a step"),
    ("gpus", ("GET", "/v1/gpus"), "PROMISABLE"),
    ("drain 0", ("POST", "/v1/gpus/0/drain"), "GPU 0: drained"),
    ("drain --undo 0", ("POST", "/v1/gpus/0/resume"), "GPU 0: takes jobs"),
    ("reserve", ("GET", "/v1/reservations"), "job 42 of eve may still be there then"),
    ("reserve --gpus 2 --for 4h", ("POST", "/v1/reservations"), "1: GPU 0 for ada, from Monday"),
    (
        "reserve --me --from 22:30 --for 4h",
        ("POST", "/v1/reservations"),
        "1: GPU 0 for ada, from Monday",
    ),
    ("reserve --cancel 1", ("POST", "/v1/reservations/1/cancel"), "is cancelled"),
    ("history", ("GET", "/v1/history"), "FAILED"),
    ("stats --me", ("GET", "/v1/stats"), "GPU-HOURS"),
    (
        "stats --report week",
        ("GET", "/v1/report"),
        "by 2 jobs. That saved 40.0 GPU-hours, and slowed them by 4.0%",
    ),
    ("stats --report month", ("GET", "/v1/report"), "| alice "),
    ("doctor --estimators", ("GET", "/v1/estimators"), "P95"),
    ("config show", ("GET", "/v1/config"), 'policy = "magm"'),
    ("daemon status", ("GET", "/v1/health"), "process 4242"),
    ("submit prog", ("POST", "/v1/jobs"), "Submitted batch job 42"),
    (ALONE, ("POST", "/v1/estimate"), "7 runs"),
]
ASKING = [words for words, _, _ in VERBS if words != ALONE]
ASKING += ["wait 42", "logs 42", "top --once"]


def with_json(words: str) -> list[str]:
    verb, *rest = words.split()
    if verb in ("config", "daemon"):
        return [verb, *rest, "--json"]
    return [verb, "--json", *rest]


def test_a_job_reports_what_its_steps_go_to(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", "--step", "0.25", "--job", "42", "--stages"]
    stages = "load=10ms forward=37ms backward=76ms communication=98ms sync=backward"
    assert run([*words, stages]) == 0
    times = {"load_s": 0.01, "forward_s": 0.037, "backward_s": 0.076, "communication_s": 0.098}
    assert fake.body == {"seconds": 0.25, "stages": times | {"sync": "backward"}}
    assert run([*words, "forward=37 backward=76ms"]) == 2
    assert "--stages: '37' is not a valid stage time" in capsys.readouterr().err
    assert run(["report", *words[3:], stages, "acc=1"]) == 2
    assert "what is to be reported?" in capsys.readouterr().err
    why = "job 41 has no profile"
    fake.answers["POST", "/v1/jobs/42/step"] = job(unused=why)
    assert run(["report", "--step", "250ms", "--job", "42"]) == 0
    assert capsys.readouterr().out == f"job 42: 0.25 s a step, but that has no effect: {why}\n"


def test_a_job_reports_metrics_and_needs_something_to_report(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers["POST", "/v1/jobs/42/metrics"] = job()
    assert run(["report", "acc=.91", "loss=2"]) == 2
    assert "--job ID" in capsys.readouterr().err
    monkeypatch.setenv("CARMA_JOB_ID", "42")
    assert run(["report", "acc=.91", "loss=2"]) == 0
    assert fake.body == {"metrics": {"acc": 0.91, "loss": 2.0}}
    for words in ([], ["week"], ["--load", "3ms"]):
        assert run(["report", *words]) == 2


def test_a_report_is_of_a_period_and_for_people_or_a_file(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stats", "--report", "month"]) == 0
    since, until = (fake.asked[-1][2][name] for name in ("since", "until"))
    assert since[8:].startswith("01T00:00:00") and until[8:].startswith("01T00:00:00")
    assert since < until
    assert run(["stats", "--since", "7d"]) == 0
    assert "sharing: The GPUs in use were shared 50% of the time" in capsys.readouterr().out
    assert run(["stats", "--report", "week", "--since", "7d"]) == 0
    assert "until" not in fake.asked[-1][2]
    assert run(["stats", "--report", "week", "--until", "7d"]) == 2
    capsys.readouterr()
    assert run(["stats", "--report", "week", "--html", str(tmp_path / "week.html")]) == 0
    assert capsys.readouterr().out == ""
    assert "<td>alice</td>" in (tmp_path / "week.html").read_text()
    assert (
        run(["stats", "--report", "week", "--html", str(tmp_path / "nowhere" / "week.html")]) == 1
    )
    assert "cannot write" in capsys.readouterr().err


def test_the_receipt_of_a_job_that_has_ended(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"ratio": 1.125, "low": 1.0, "high": 1.25, "source": "steps", "known_from": 2}
    its = {"gpu_hours": 4.0, "shared": 0.5, "share_gpu_hours": 3.0, "neighbours": 2}
    known = its | {"slowdown": how, "alone_gpu_hours": 3.78, "saved_gpu_hours": 0.78}

    def shown(**receipt: Any) -> str:
        fake.answers["GET", "/v1/jobs/42"] = ended() | {"receipt": receipt}
        assert run(["show", "42"]) == 0
        return " ".join(capsys.readouterr().out.split())

    out = shown(**known)
    assert "held 4.00 GPU-hours shared 50% of that, with 2 jobs" in out
    assert "1.12 times as long as alone (1.00 to 1.25; step times beside 2 jobs)" in out
    assert "saved 46.8 GPU-minutes" in out
    out = shown(**known | {"slowdown": None, "saved_gpu_hours": None, "neighbours": 1})
    assert "with 1 job slowed not known" in out
    assert "saved at most 1.00 GPU-hours" in out
    assert "shared never" in shown(**its | {"neighbours": 0, "slowdown": None})


@pytest.mark.parametrize(("words", "asked", "piece"), VERBS)
def test_each_verb_asks_and_tells(
    fake: FakeDaemon,
    capsys: pytest.CaptureFixture[str],
    words: str,
    asked: tuple[str, str],
    piece: str,
) -> None:
    assert run(words.split()) == 0
    assert fake.asked[-1][:2] == asked
    out, err = capsys.readouterr()
    assert piece in out
    assert err == ""
    assert "\x1b" not in out, "nothing but text goes into a pipe"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "what it starts can be ended"
    assert run(with_json(words)) == 0  # programs get the daemon's own answer
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(ANSWERS[asked]))


@pytest.mark.parametrize("words", ASKING)
def test_no_daemon(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "none.sock"))
    assert run(words.split()) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "no answer at" in err and "carma daemon start" in err and "Traceback" not in err


@pytest.mark.parametrize("words", ASKING)
def test_forbidden(fake: FakeDaemon, capsys: pytest.CaptureFixture[str], words: str) -> None:
    fake.refuse_all = (403, "not_yours")
    assert run(words.split()) == 4
    assert capsys.readouterr() == ("", "carma: no\nhint: ask nicely\n")


@pytest.mark.parametrize(("words", "_asked", "_piece"), VERBS)
def test_errors_for_programs(
    fake: FakeDaemon,
    capsys: pytest.CaptureFixture[str],
    words: str,
    _asked: object,
    _piece: object,
) -> None:
    fake.refuse_all = (409, "conflict")
    assert run(with_json(words)) == 1
    error = {"error": "no", "hint": "ask nicely", "code": "conflict"}
    assert json.loads(capsys.readouterr().out) == error


def listed(screen: str) -> list[str]:
    return re.findall(r"^  ([a-z][a-z-]*) ", screen.partition("Options:")[2], re.MULTILINE)


def test_all_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "--all"]) == 0
    out = capsys.readouterr().out
    assert listed(out) == [each.name for each in every()]
    assert len(listed(out)) <= 36
    assert run(["--help-all"]) == 0
    assert capsys.readouterr().out == out


def test_the_first_screen_has_what_matters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([]) == 2
    out = capsys.readouterr().out
    assert out.count("\n") < 24
    assert set(listed(out)) == set(FIRST) and len(FIRST) <= 12 and "--help-all" in out
    for words in (["-h"], ["--help"], ["help"]):
        assert run(words) == 0
        assert capsys.readouterr().out == out


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(capsys: pytest.CaptureFixture[str], group: str) -> None:
    below = [verb.name.split()[1] for verb in GROUPS[group].below]
    assert run([group]) == 2
    for words in ([group, "-h"], [group, "--help"], ["help", group]):
        capsys.readouterr()
        assert run(words) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"Usage: carma {group} ") and listed(out) == below
    assert run(["help", group, below[0]]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: carma {group} {below[0]}")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("submti", "submit"),
        ("queu", "queue"),
        ("daemno", "daemon"),
        ("help logss", "logs"),
        ("daemon strat", "daemon start"),
        ("help config shwo", "config show"),
    ],
)
def test_a_misspelt_verb_has_the_nearest_as_its_hint(
    capsys: pytest.CaptureFixture[str], words: str, meant: str
) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.endswith(f"\nhint: did you mean `carma {meant}`?\n")


@pytest.mark.parametrize(
    ("word", "instead"),
    [("ls", "queue"), ("sbatch", "submit"), ("explain", "why"), ("exec", "attach JOB COMMAND")],
)
def test_what_was_a_verb_or_is_another_programs_leads_to_ours(
    capsys: pytest.CaptureFixture[str], word: str, instead: str
) -> None:
    assert run([word, "42"]) == 2
    assert f"\nhint: use `carma {instead}`" in capsys.readouterr().err


def test_no_word_of_other_programs_is_a_verb_and_each_leads_to_one() -> None:
    names = {each.name for each in every()}
    assert not set(INSTEAD) & names
    assert {words.split()[0] for words in INSTEAD.values()} <= {*names, "--install-completion"}


@pytest.mark.parametrize("verb", ["show", "why", "logs"])
def test_without_an_id_it_is_the_last(fake: FakeDaemon, verb: str) -> None:
    run([verb])
    assert ("GET", "/v1/jobs", {"select": "last"}) in [
        (method, path, {"select": query.get("select")}) for method, path, query, _ in fake.asked
    ]


@pytest.mark.parametrize("verb", NAMED)
def test_each_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert run([*verb.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: carma {verb} ")
    assert NAMED[verb].summary in " ".join(out.split())
    assert not set(out) & set("╭─│"), "there are panels on terminals only"
    assert run(["help", *verb.split()]) == 0
    assert capsys.readouterr().out == out


def test_submit_shows_the_usual_options_and_all_when_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for words in ("--help", "--help-all"):
        assert run(["submit", words]) == 0
        out = capsys.readouterr().out
        assert out.count("\n  carma submit ") == 3, "examples"
        shown[words] = re.findall(r"^  (-[^ ,]+)", out, re.MULTILINE)
    assert len(shown["--help"]) <= 35
    assert len(shown["--help-all"]) == len(hot.TABLES["submit"]) + 2


def test_usage_errors_exit_with_2(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (
        "queu",
        "daemon x",
        "update",
        "queue --nope",
        "queue --me=1",
        "top --every x",
        "queue -t purple",
    )
    wrong += ("queue -o nope", "queue -S x", "history --since yesteryear")
    for words in wrong:
        assert run(words.split()) == 2, words
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("carma: ") and err.count("\n") <= 2, words
    for words, said in (
        ("daemon run", "use `carmad`, with the same options"),
        ("history --export x.csv", "use `carma simulate --history --export FILE`"),
        ("top -w 5", "use --every SECONDS"),
        ("--color always queue", "use NO_COLOR=1 or FORCE_COLOR=1"),
        ("history --limit x", "--limit: 'x' is not a whole number from 1 on"),
        ("run --pid 0", "--pid: '0' is not a whole number from 1 on"),
        ("run --pid 99999999999", "is not a whole number from 1 to 1000000000"),
        ("report --load 3ms", "use --step TIME --stages"),
        ("history --table x.csv", "for a file: carma history --table >FILE"),
        ("queue --json=1", "--json takes no value\nhint: write --json alone"),
        ("status --json=1", "--json takes no value\nhint: write --json alone"),
    ):
        assert run(words.split()) == 2
        assert said in capsys.readouterr().err
    assert run(["queu"]) == 2
    expected = "carma: there is no command `carma queu`\nhint: did you mean `carma queue`?\n"
    assert capsys.readouterr().err == expected
    assert run(["show", "1", "2", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "usage"
    assert not fake.asked


# queue


def test_queue_asks_for_what_is_wanted(fake: FakeDaemon) -> None:
    assert run(["queue", "-u", "bob", "-t", "R,pd", "-j", "1,3,5-8"]) == 0
    wanted = {"user": "bob", "states": "pending,queued,running", "select": "1,3,5-8"}
    assert fake.query == wanted | {"fold": "True"}
    for every_task in ("--array", "-r", "--json"):
        assert run(["queue", every_task]) == 0
        assert fake.query == {}
    assert run(["queue", "--me"]) == 0
    import pwd

    assert fake.query == {"user": pwd.getpwuid(os.getuid()).pw_name, "fold": "True"}


def test_a_long_line_says_how_much_of_it_is_not_shown(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    row = job(id=7, label="7_[2-99%4]", tasks="2-99%4", count=98)
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [row], "more": 5}
    assert run(["queue", "-h", "-o", "jobid"]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["7_[2-99%4]"]
    assert "and 5 more" in shown.err
    fake.answers["GET", "/v1/status"] = fake.answers["GET", "/v1/status"] | {"more": 5}
    assert run(["status"]) == 0
    assert "and 5 more: carma queue" in capsys.readouterr().out


def test_queue_keeps_what_is_wanted(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    held = job(id=50, label="50", state="queued", code="H")
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [job(), held]}
    assert run(["queue", "-h", "-t", "H", "-o", "jobid,st,user"]) == 0
    assert capsys.readouterr().out.split() == ["50", "H", "alice"]
    assert run(["queue", "-h", "-t", "all", "-S", "-jobid", "-o", "jobid"]) == 0
    assert capsys.readouterr().out.split() == ["50", "42"]
    assert run(["queue", "-l"]) == 0
    assert "COMMAND" in capsys.readouterr().out
    assert run(["queue", "--json", "-t", "queued"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["jobs"]] == [50]


# steering


def test_selections_are_handed_on(fake: FakeDaemon) -> None:
    assert run(["cancel", "1", "3", "5-8", "40_[1-3]"]) == 0
    assert fake.body == {"select": "1,3,5-8,40_[1-3]", "user": None}
    assert run(["cancel", "all", "-u", "bob"]) == 0
    assert fake.body == {"select": "all", "user": "bob"}


def test_what_could_not_be_done_is_an_error(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [
        {"id": 1, "label": "1", "ok": True, "message": "is cancelled"},
        {"id": 2, "label": "2", "ok": False, "message": "has ended"},
    ]
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": results}
    assert run(["cancel", "1,2"]) == 1
    assert capsys.readouterr() == ("job 1: is cancelled\n", "job 2: has ended\n")
    assert run(["cancel", "--json", "1,2"]) == 1
    assert json.loads(capsys.readouterr().out)["results"] == results


def test_tasks_of_an_array_share_a_line(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    def of(task: str, message: str = "cancelled") -> dict[str, object]:
        return {"id": 1, "label": task, "ok": message == "cancelled", "message": message}

    tasks = [of(label) for label in ("7_0", "7_[1-2,5%4]", "7_6", "7_9")]
    results = [of("3"), *tasks, of("7_3", "has ended"), of("8_1"), of("9", "has ended")]
    fake.answers["POST", "/v1/cancel"] = {"schema": 1, "results": results}
    assert run(["cancel", "3,7-9"]) == 1
    assert capsys.readouterr() == (
        "job 3: cancelled\njob 7_[0-2,5-6,9]: cancelled\njob 8_1: cancelled\n",
        "job 7_3: has ended\njob 9: has ended\n",
    )


def test_wait_exits_as_the_first_failure(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["wait", "42", "43"]) == 7
    assert fake.asked[0][:3] == ("GET", "/v1/jobs", {"select": "42,43"})
    assert capsys.readouterr().out == "job 42: succeeded\njob 43: failed\n"
    fake.answers["GET", "/v1/jobs/43/wait"] = ended(code=None, signal=15)
    assert run(["wait", "--json", "42-43"]) == 143
    assert [one["state"] for one in json.loads(capsys.readouterr().out)["jobs"]] == [
        "succeeded",
        "failed",
    ]


def test_waiting_for_a_job_that_is_not_there_is_an_error(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": []}
    assert run(["wait", "999"]) == 1
    assert "there is no job 999" in capsys.readouterr().err
    assert run(["wait", "all"]) == 0, "none is left to wait for"


def test_last_is_resolved(fake: FakeDaemon) -> None:
    assert run(["show", "last"]) == 0
    assert [asked[1] for asked in fake.asked] == ["/v1/jobs", "/v1/jobs/42"]
    assert run(["report", "--step", "0.25", "--job", "last"]) == 0
    assert fake.asked[-1][1] == "/v1/jobs/42/step"


# logs


def log_of(fake: FakeDaemon, path: Path, **changes: Any) -> None:
    fake.answers["GET", "/v1/jobs/42"] = job(stdout=str(path), stderr=str(path) + ".err", **changes)


def test_logs(fake: FakeDaemon, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = tmp_path / "log"
    log_of(fake, log)
    log.write_bytes(b"one\ntwo\xff\nthree")
    assert run(["logs", "42"]) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\xff\nthree"
    for count, end in (
        (0, b""),
        (1, b"three"),
        (2, b"two\xff\nthree"),
        (9, b"one\ntwo\xff\nthree"),
    ):
        assert run(["logs", "-n", str(count), "42"]) == 0
        assert capfdbinary.readouterr().out == end
    log.write_bytes(b"A\nB\r\nC\n1/3\r2/3\r3/3\n")
    assert run(["logs", "-n", "4", "42"]) == 0
    assert capfdbinary.readouterr().out == b"A\nB\nC\n3/3\n"
    log.write_bytes(b"x" * 70_000 + b"\n" + b"last\n")
    assert run(["logs", "-n", "1", "42"]) == 0
    assert capfdbinary.readouterr().out == b"last\n"
    (tmp_path / "log.err").write_bytes(b"oh")
    assert run(["logs", "--stderr", "42"]) == 0
    assert capfdbinary.readouterr().out == b"oh"


def test_logs_that_are_not_there(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_of(fake, tmp_path / "none", started_at=None, state="queued")
    assert run(["logs", "42"]) == 1
    assert "has not started" in capsys.readouterr().err
    log_of(fake, tmp_path / "none")
    for words in (["logs", "42"], ["logs", "-f", "42"]):
        assert run(words) == 1
        err = capsys.readouterr().err
        assert f"the log of job 42 is gone: {tmp_path / 'none'} was deleted or moved" in err
        assert "carma why 42" in err and "waiting" not in err
    assert run(["logs", "42", "--json"]) == 2, "logs are bytes"


def test_output_that_cannot_be_written_is_no_fault_of_the_log(
    fake: FakeDaemon, tmp_path: Path
) -> None:
    log = tmp_path / "carma-42.out"
    log.write_bytes(b"a line\n" * 40_000)
    log_of(fake, log)
    words = [*python("cli.main"), "logs", "42"]
    env = {**os.environ, "CARMA_SOCKET": str(fake.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, env=env) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(words, stdout=full, stderr=pipe, env=env, text=True, check=False)
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        1,
        "carma: cannot write the output: No space left on device",
    )


@pytest.mark.parametrize("at_terminal", [True, False])
@pytest.mark.parametrize("user", ["mallory", None])
def test_anothers_log_does_not_command_the_terminal(
    fake: FakeDaemon,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    at_terminal: bool,
    user: str | None,
) -> None:
    """`user` None: it is one's own."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: at_terminal)
    log_of(fake, tmp_path / "log", user=user or pwd.getpwuid(os.getuid()).pw_name)
    said = "10 %\r20 %\n\x1b]52;c;cm0gLXJm\x07\ttwo\x9b5n \u202eÄ\n".encode()
    (tmp_path / "log").write_bytes(said)
    assert run(["logs", "42"]) == 0
    harmless = "10 %\r20 %\n?]52;c;cm0gLXJm?\ttwo?5n ?Ä\n".encode()
    expected = harmless if user and at_terminal else said
    assert capfdbinary.readouterr().out == expected


def test_no_problem_commands_the_terminal(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may quote a path that another user has chosen."""
    log_of(fake, tmp_path / "\x1b]0;mine\x07\u202e")
    assert run(["logs", "42"]) == 1
    err = capsys.readouterr().err
    assert "?]0;mine?? was deleted" in err and err.replace("\n", "").isprintable()


def test_a_log_that_may_never_end_is_not_opened(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        log_of(fake, path)
        assert run(["logs", "42"]) == 1
        assert "it is not a regular file" in capsys.readouterr().err


def title(job: int, attempt: int) -> bytes:
    return b"=== carma job %d, attempt %d, 2026-11-22T05:10:11+0000 ===\n" % (job, attempt)


@pytest.mark.parametrize("block", [7, 65536])
def test_logs_of_one_job_where_several_write_to_the_file(
    fake: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    block: int,
) -> None:
    """Each attempt that finds text has a header; the first job has none, nor does a shell."""
    monkeypatch.setattr("carma_client.logs.BLOCK", block)
    log = tmp_path / "log"
    parts = [b"1\n2\n", title(43, 1) + b"oops\n", title(42, 2) + b"3\n", title(44, 1) + b"4"]
    log.write_bytes(b"".join(parts))
    for id, attempt, own in (
        (42, 2, parts[0] + parts[2]),
        (43, 1, parts[1]),
        (44, 1, parts[3]),
        (45, 0, b""),  # it waits
    ):
        log_of(fake, log, id=id, attempt=attempt)
        assert run(["logs", "42"]) == 0
        assert capfdbinary.readouterr().out == own
        assert run(["logs", "-n", "2", "42"]) == 0
        assert capfdbinary.readouterr().out.splitlines() == own.splitlines()[-2:]


def test_logs_are_followed_as_another_job_writes_there(
    fake: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n" + title(42, 1) + b"one\n")
    log_of(fake, log)
    to_come = [title(43, 1) + b"two\n", title(42, 2) + b"three\n"]

    def write(_seconds: float) -> None:
        with log.open("ab") as file:
            file.write(to_come.pop(0))
        if not to_come:
            log_of(fake, log, state="succeeded")

    monkeypatch.setattr("cli.commands.logs.ASK_S", 0.0)
    monkeypatch.setattr("cli.commands.logs.time.sleep", write)
    assert run(["logs", "-f", "42"]) == 0
    assert capfdbinary.readouterr().out == title(42, 1) + b"one\n" + title(42, 2) + b"three\n"


def test_logs_are_followed_until_the_job_ends(
    fake: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr("carma_client.logs.LOOK_S", 0.01)
    monkeypatch.setattr("cli.commands.logs.ASK_S", 0.02)
    log = tmp_path / "log"
    log_of(fake, log, state="queued", started_at=None)

    def live() -> None:
        time.sleep(0.05)
        with log.open("wb", buffering=0) as file:
            file.write(b"first ")
            fake.refuse_all = 503, "unavailable"  # carmad restarts
            time.sleep(0.05)
            fake.refuse_all = None
            file.write(b"second")
            log_of(fake, log, state="succeeded")

    thread = threading.Thread(target=live)
    thread.start()
    assert run(["logs", "-f", "42"]) == 0
    thread.join()
    assert capfdbinary.readouterr().out == b"first second"


# history, stats, doctor, config


def test_history_filters_and_csv(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "history",
                "-u",
                "bob",
                "-t",
                "F",
                "--since",
                "2026-11-20T00:00:00Z",
                "-n",
                "5",
                "--csv",
            ]
        )
        == 0
    )
    assert fake.query == {
        "user": "bob",
        "states": "failed",
        "since": "2026-11-20T00:00:00.000Z",
        "limit": "5",
    }
    header, row = capsys.readouterr().out.splitlines()
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert values["label"] == "42" and values["peak_mib"] == "9400" and values["signal"] == "9"


@pytest.mark.parametrize(("limit", "rows"), [((), 5), (("-n", "3"), 3), (("-n", "5"), 5)])
def test_csv_goes_on_to_the_oldest_job(
    limit: tuple[str, ...],
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def get(path: str, before: int = 6, limit: int = 0, **query: object) -> Any:
        ids = [id for id in range(5, 0, -1) if id < before]
        page = [ended(id=id, label=str(id)) for id in ids[:limit]]
        return {"schema": 1, "jobs": page, "more": int(len(ids) > limit)}

    monkeypatch.setattr(past.client, "get", get)
    monkeypatch.setattr(past, "PAGE", 2)
    assert run(["history", "--csv", *limit]) == 0
    told = capsys.readouterr()
    labels = [line.split(",")[0] for line in told.out.splitlines()]
    assert labels == ["label", *map(str, range(5, 5 - rows, -1))]
    assert ("there are older jobs" in told.err) == (rows < 5)


@pytest.fixture
def open_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replaces our Python by one that every user can run. The real one may be below /root."""
    with tempfile.TemporaryDirectory(prefix="carma-python-") as folder:
        Path(folder).chmod(0o755)
        python = Path(folder, "python")
        python.write_text("#!/bin/sh\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        # Not what is tried here, and the stand-in's job never ends: a minute each.
        its = {"name": "job", "ok": True, "detail": "", "hint": ""}
        monkeypatch.setattr("cli.commands.doctor.check_job", lambda: its)
        yield python


def python_check(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    run(["doctor", "--json"])
    return next(c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "python")


@needs_root
def test_doctor_tries_python_as_an_ordinary_user(
    fake: FakeDaemon, open_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert python_check(capsys)["ok"] is True
    open_python.parent.chmod(0o700)
    check = python_check(capsys)
    assert check["ok"] is False
    assert f"only root can run {open_python}: Permission denied" in str(check["detail"])
    open_python.parent.chmod(0o755)
    open_python.write_text("#!/bin/sh\necho 'No module named cli' >&2; exit 1\n")
    assert "No module named cli" in str(python_check(capsys)["detail"])


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever NVML an earlier test has loaded into this process."""

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)


@pytest.mark.usefixtures("no_driver")
def test_doctor_fails_if_a_check_does(
    fake: FakeDaemon, open_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--json"]) == 0
    names = [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert names == ["python", "driver", "store", "telemetry", "job"]
    checks = [{"name": "store", "ok": False, "detail": "disk full", "hint": "make room"}]
    fake.answers["GET", "/v1/doctor"] = {"schema": 1, "checks": checks}
    assert run(["doctor"]) == 1
    assert "→ make room" in capsys.readouterr().out


def test_doctor_without_a_daemon_still_checks_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "none.sock"))
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "python" in out and "disk" in out and "carma daemon start" in out


def test_config_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "carma.toml"
    file.write_text('policy = "magm"\n')
    assert run(["config", "check", str(file)]) == 0
    file.write_text("polizy = 1\n")
    assert run(["config", "check", str(file)]) == 1
    assert "polizy" in capsys.readouterr().err
    file.write_text('policy = "nosuch"\n')
    assert run(["config", "check", str(file)]) == 1
    assert "no 'nosuch' among the installed policies" in capsys.readouterr().err
    monkeypatch.setenv("CARMA_POLICY", "rr")
    assert run(["config", "check", str(file)]) == 0, "the environment wins, as for carmad"
    monkeypatch.setattr("carmad.paths.config_path", lambda: str(tmp_path / "none.toml"))
    monkeypatch.delenv("CARMA_CONFIG", raising=False)
    capsys.readouterr()
    assert run(["config", "check"]) == 0
    assert capsys.readouterr().out == "no file: the defaults\n"
    assert run(["config", "check", str(tmp_path / "none.toml")]) == 1


# daemon


FAKE_CARMAD = """
import os, sys, time
from pathlib import Path
from tests import fake_daemon
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if words.get("--emulated") == "nonsense":
    sys.exit("carmad: no such GPU: nonsense")
fake_daemon.HEALTH["pid"] = os.getpid()
Path(words["--socket"]).parent.mkdir()
with fake_daemon.serving(Path(words["--socket"])):
    time.sleep(60)
"""


@pytest.fixture
def carmad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `carma daemon start` start a fake one; its socket."""
    (tmp_path / "fake_carmad.py").write_text(FAKE_CARMAD)

    from cli.commands import server

    def command(module: str) -> list[str]:
        assert module == "carmad.daemon.main"
        return [sys.executable, str(tmp_path / "fake_carmad.py")]

    monkeypatch.setattr(server, "python", command)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CARMA_SOCKET", "")  # what --socket sets goes when the test ends
    return tmp_path / "run" / "s"


def test_a_daemon_starts_answers_and_stops(
    carmad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--socket", str(carmad)]
    state = ["--state-dir", str(tmp_path / "state")]
    assert run(["daemon", "start", "--emulated", "3xA100-40GB", *where, *state]) == 0
    out = capsys.readouterr().out
    assert f"export CARMA_SOCKET={carmad}" in out
    assert (tmp_path / "state" / "carmad.log").exists()
    assert run(["daemon", "start", *where, *state]) == 1
    assert "already running" in capsys.readouterr().err
    assert run(["daemon", "status", *where]) == 0
    pid = int(out.split("process ")[1].split()[0])
    reaper = threading.Thread(target=os.waitpid, args=(pid, 0))
    reaper.start()  # it is this process's child, and would stay a zombie
    assert run(["daemon", "stop", *where]) == 0
    reaper.join()
    assert run(["daemon", "status", *where]) == 3


def test_a_daemon_that_does_not_start_says_why(
    carmad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--socket", str(carmad), "--state-dir", str(tmp_path / "state")]
    assert run(["daemon", "start", "--emulated", "nonsense", *words]) == 1
    assert "carmad: no such GPU: nonsense" in capsys.readouterr().err
    assert run(["daemon", "start", "--emulated", "nonsense", *words]) == 1
    assert capsys.readouterr().err.count("no such GPU") == 1, "nothing of earlier starts"


# starting quickly

HEAVY = {"typer", "rich", "textual", "pydantic", "dataclasses", "inspect", "asyncio"}


@pytest.mark.parametrize("words", [each for each in ASKING if each.split()[0] in hot.TABLES])
def test_hot_verbs_import_only_what_python_has(fake: FakeDaemon, words: str) -> None:
    """Importing any of these takes as long as a whole command may."""
    fake.answers["GET", "/v1/jobs/43/wait"] = ended()
    loaded = modules_after(words.split(), fresh=True)
    assert "cli.client" in loaded
    assert not HEAVY & loaded
    assert not {"carma_client.aio", "carma_client.function"} & loaded
    assert not [name for name in loaded if name.startswith(("carmad.daemon", "carmad.api"))]


@pytest.mark.parametrize("words", [["--version"], ["qeue"], ["-h"], ["help", "--all"], []])
def test_help_the_version_and_a_misspelt_verb_import_no_verb(words: list[str]) -> None:
    loaded = modules_after(words)
    assert "cli.app" in loaded
    assert not [name for name in loaded if name.startswith(("cli.commands.", "carma_slurm.login."))]


def test_help_of_one_verb_imports_no_other_verb() -> None:
    loaded = modules_after(["help", "why"])
    assert [name for name in loaded if name.startswith("cli.commands.")] == ["cli.commands.show"]


def modules_after(words: list[str], fresh: bool = False) -> set[str]:
    """`fresh`: without those that were loaded before."""
    code = (
        "import sys; before = set(sys.modules); from cli.main import run;"
        f"run({words}); print(); print(*sorted(set(sys.modules) - (before if {fresh} else set())))"
    )
    argv = [sys.executable, "-c", code]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return set(found.stdout.splitlines()[-1].split())


# terminals, pipes, signals


def carma(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | environ
    return subprocess.run(
        [*CARMA, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def on_a_terminal(*words: str, keys: bytes = b"", **environ: str) -> str:
    """What the command writes to a terminal of 120 columns."""
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    env |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"} | environ
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*CARMA, *words], cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.write(ours, keys)
        out = b""
        while True:
            try:
                out += os.read(ours, 65536)
            except OSError:  # it has ended
                break
        assert process.wait() == 0
    os.close(ours)
    return out.decode()


def test_colour_goes_to_terminals_only(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fake.path.exists()
    assert "\x1b" in on_a_terminal("queue")
    assert "\x1b" not in on_a_terminal("queue", NO_COLOR="1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for words, color in (("queue", True), ("queue --json", False)):
        assert run(words.split()) == 0
        assert ("\x1b" in capsys.readouterr().out) is color, words


def test_what_cannot_be_drawn_is_a_usage_error(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", "-w"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
    assert not fake.asked


def test_nothing_is_cut_off_in_a_pipe(fake: FakeDaemon) -> None:
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [job(name="n" * 300)]}
    assert "n" * 300 in carma("queue", COLUMNS="40").stdout


def test_top_in_a_pipe_is_one_picture(fake: FakeDaemon) -> None:
    found = carma("top")
    assert found.returncode == 0
    assert found.stdout.count("policy magm") == 1
    assert len(fake.asked) == 1


def test_a_reader_that_goes_away_is_no_traceback(fake: FakeDaemon) -> None:
    jobs = [job(id=n, label=str(n)) for n in range(3000)]
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": jobs}
    code = f"{' '.join(map(repr, CARMA))} queue | head -1"
    found = subprocess.run(
        ["bash", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("JOBID")
    assert found.stderr == ""


def test_the_terminal_s_width_is_respected(fake: FakeDaemon) -> None:
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [job(name="n" * 300)]}
    lines = on_a_terminal("queue", NO_COLOR="1").splitlines()
    assert max(map(len, lines)) <= 120


def test_a_requeue_leaves_out_what_is_not_utf_8(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON cannot carry it; carmad says that the job lacks it."""
    path = "POST", "/v1/requeue"
    fake.answers[path] = fake.answers[path] | {"lacking": ["MY_TOKEN", "HF_TOKEN"]}
    monkeypatch.setenv("MY_TOKEN", "\udcff")
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    assert run(["requeue", "42"]) == 0
    assert fake.body["env"] == {"HF_TOKEN": "hf_1"}
