"""Jobs that Slurm's controller has forgotten. What `sacct` prints is recorded from Slurm 22.05.8
with slurmdbd; only folders were shortened."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

from carma_slurm.login import MODULES, jobs, slurm
from cli.main import run
from cli.problems import Unknown, Unreachable
from cli.verbs import OWN, Command

SBATCH = "/usr/bin/sbatch --parsable --export=ALL --open-mode=append --chdir=/w --gres=gpumem:1"
NEED = "billing=1,cpu=1,mem=1M,node=1"
WHILE_WAITING = f"None assigned@{NEED}@2026-11-23T19:08:19@2026-11-23T19:08:21"
ARRAY = f"{SBATCH} --array=0-2%1 --requeue --job-name=arr --output=carma-%A_%a.out@"
ODD = "odd|na\tme é\nx\x1fy"  # a job's name
RECORDED = {
    "2": f"""\
5@2_0@root@COMPLETED@00:00:02@365-00:00:00@n1@{NEED}@2026-11-23T19:08:19@2026-11-23T19:08:19@arr@2026-11-23T19:08:21@0:0@/w@{ARRAY}
11@2_1@root@FAILED@00:00:02@UNLIMITED@n1@{NEED}@2026-11-23T19:08:19@2026-11-23T19:08:21@arr@2026-11-23T19:08:23@1:0@/w@{ARRAY}
2@2_2@root@FAILED@00:00:02@UNLIMITED@n1@{NEED}@2026-11-23T19:08:19@2026-11-23T19:08:23@arr@2026-11-23T19:08:25@2:0@/w@{ARRAY}
""",
    "3": f"3@3@root@CANCELLED by 0@00:00:00@Partition_Limit@{WHILE_WAITING}@pend@"
    f"2026-11-23T19:08:21@0:0@/w@{SBATCH} --hold --requeue --job-name=pend"
    " --output=carma-%j.out@\n",
    "4": f"4@4_[0-3]@root@CANCELLED by 0@00:00:00@Partition_Limit@{WHILE_WAITING}@pendarr@"
    f"2026-11-23T19:08:21@0:0@/w@{SBATCH} --array=0-3 --hold --requeue --job-name=pendarr"
    " --output=carma-%A_%a.out@\n",
    "12": f"12@12@games@FAILED@00:00:00@UNLIMITED@n1@{NEED}@2026-11-23T19:08:27@"
    "2026-11-23T19:08:27@gamesjob@2026-11-23T19:08:27@4:0@/g@sbatch -A lab -J gamesjob --comment"
    " secret --wrap exit 4@\n",
    "13": f"13@13@root@FAILED@00:00:00@365-00:00:00@n1@{NEED}@2026-11-23T19:09:26@"
    f"2026-11-23T19:09:26@{ODD}@2026-11-23T19:09:26@7:0@/w@{SBATCH} --requeue --job-name={ODD}"
    " --output=carma-%j.out -A lab@\n",
    "31": f"31@31@root@PENDING@00:00:00@Partition_Limit@None assigned@{NEED}@2026-11-23T19:32:25@"
    f"Unknown@true@Unknown@0:0@/w@{SBATCH} --requeue --job-name=true --output=carma-%j.out -A lab"
    "@\n",
}
RECORDED["all"] = "".join(RECORDED[job] for job in ("3", "2", "13"))
DOWN = (
    "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to"
    " host:127.0.0.1:6819: Connection refused\nsacct: error: Sending PersistInit msg: Connection"
    " refused\nsacct: error: Problem talking to the database: Connection refused"
)
DISABLED = "Slurm accounting storage is disabled"

Squeue = Callable[[], list[slurm.Row]]


@pytest.fixture
def sacct(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The controller has forgotten all jobs. What sacct was asked."""
    asked = []

    def ask(*words: str, **_: Any) -> str:
        if words[0] == "squeue":
            return ""
        asked.append(words)
        mark = next(word for word in words if "delimiter" in word).partition("=")[2]
        job = next((word for word in words if "--jobs=" in word), "=all").partition("=")[2]
        # As `ask` returns it, without the newline at the end.
        return RECORDED.get(job, "").replace("@", mark).strip("\n")

    monkeypatch.setattr(slurm, "ask", ask)
    monkeypatch.setattr(jobs.time, "sleep", lambda _: None)
    return asked


def says(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """The accounts do, instead of an answer."""

    def ask(*words: str, **_: Any) -> str:
        if words[0] == "squeue":
            return ""
        raise slurm.problem(words, message)

    monkeypatch.setattr(slurm, "ask", ask)


def on_a_login_node(verb: str) -> Command:
    return OWN[verb]._replace(module=f"carma_slurm.login.{MODULES[verb]}")


def run_there(verb: str, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cli.verbs.elsewhere", lambda its: on_a_login_node(its.name))
        return run([verb, *words])


def carma(capsys: Any, verb: str, *words: str) -> tuple[int, str]:
    return run_there(verb, *words), capsys.readouterr().out


@pytest.mark.usefixtures("sacct")
def test_a_forgotten_job_is_shown(capsys: Any) -> None:
    code, said = carma(capsys, "show", "13")
    assert code == 0 and "odd|na?me é?x?y" in said and "/w/carma-13.out" in said
    shown = json.loads(carma(capsys, "show", "--json", "13")[1])
    assert (shown["name"], shown["state"], shown["slurm"]["ExitCode"]) == (ODD, "failed", "7:0")
    assert "2026-11-23T19:09:26" in shown["slurm"]["EndTime"]
    assert "failed (exit code 7:0)" in carma(capsys, "why", "13")[1]
    assert carma(capsys, "why", "3")[1] == "job 3 has ended before it ran: cancelled\n"


@pytest.mark.usefixtures("sacct")
def test_waiting_for_a_forgotten_job_ends_as_it_did(capsys: Any) -> None:
    assert carma(capsys, "wait", "13") == (7, "job 13: failed\n")
    assert carma(capsys, "wait", "2") == (1, "job 2: failed\n")
    assert carma(capsys, "wait", "4") == (1, "job 4: cancelled\n")
    assert "job 2_1 has ended: failed" in carma(capsys, "why", "2")[1], "not its first task"


@pytest.mark.usefixtures("sacct")
def test_where_its_output_is_is_read_from_how_it_was_submitted(capsys: Any) -> None:
    files = [one.details["StdOut"] for one in jobs.end_records("2")]
    assert files == ["/w/carma-2_0.out", "/w/carma-2_1.out", "/w/carma-2_2.out"]
    assert run_there("logs", "12") == 1
    said = capsys.readouterr().err
    assert "output file of job 12" in said and "slurm-12.out in /g" in said
    assert run_there("logs", "3") == 1
    assert "job 3 never ran" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "file"),
    [("--output=/a b/%x-%3j", "/a b/odd-013"), ("--output=%N.out", ""), ("--output=a\\%j", "")],
)
def test_patterns_of_output_files(monkeypatch: pytest.MonkeyPatch, given: str, file: str) -> None:
    words = RECORDED["13"].replace(ODD, "odd").replace("--output=carma-%j.out", given)
    monkeypatch.setattr(
        slurm, "ask", lambda *asked, **_: words.replace("@", asked[4].partition("=")[2])
    )
    (found,) = jobs.end_records("13")
    assert found.details["StdOut"] == found.details["StdErr"] == file


def test_a_number_that_slurm_gave_again_is_the_later_job(monkeypatch: pytest.MonkeyPatch) -> None:
    *tasks, _ = RECORDED["2"].splitlines(keepends=True)
    again = RECORDED["13"].replace("13@13@", "2@2@", 1).replace("T19:09:26", "T19:37:45")
    for later, found in ((again, ["2"]), (tasks[0].replace("T19:08", "T19:38"), ["2_0", "2_1"])):
        said = "".join((*tasks, later))
        monkeypatch.setattr(
            slurm,
            "ask",
            lambda *asked, said=said, **_: said.replace("@", asked[4].partition("=")[2]),
        )
        assert [one.row.label for one in jobs.end_records("2")] == found
    assert jobs.end_records("2")[0].row.submitted == "2026-11-23T19:38:19"


def test_the_last_job_is_found_after_slurm_forgot_it(sacct: list[tuple[str, ...]]) -> None:
    assert jobs.resolve("last") == "13"
    assert any(word.startswith("--starttime=") for word in sacct[0])


def test_accounts_of_the_chosen_cluster_are_asked(
    monkeypatch: pytest.MonkeyPatch, sacct: list[tuple[str, ...]]
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "east")
    jobs.end_records("13")
    assert "--clusters=east" in sacct[0]


@pytest.mark.usefixtures("sacct")
def test_what_nobody_knows_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(slurm.Gone, match="does not know job 999"):
        jobs.record("999")
    with pytest.raises(slurm.Gone, match="know of no end"):
        jobs.record("31")
    says(monkeypatch, DISABLED)
    with pytest.raises(slurm.Gone, match="job 42, and keeps no accounts"):
        jobs.record("42")
    says(monkeypatch, DOWN)
    with pytest.raises(Unreachable, match="accounts do not answer") as down:
        jobs.record("42")
    assert down.value.exit_code == 3


def test_a_task_that_was_forgotten_between_two_looks_is_not_taken_for_a_success(
    monkeypatch: pytest.MonkeyPatch, sacct: list[tuple[str, ...]]
) -> None:
    """Task 2 was running, and then the controller was away for longer than it remembers."""
    looks = iter([[a_row("2_1", "RUNNING"), a_row("2_2", "RUNNING")], [a_row("2_1", "COMPLETED")]])
    monkeypatch.setattr(slurm, "rows", lambda *_: next(looks))
    assert [*jobs.ends(["2"])] == [("2", "failed", 2)]
    assert len(sacct) == 1

    looks = iter([[a_row("7", "RUNNING")], []])
    with pytest.raises(slurm.Gone, match="job 7"):
        next(jobs.ends(["7"]))
    looks = iter([[a_row("7", "COMPLETED")]])
    assert [*jobs.ends(["7"])] == [("7", "succeeded", 0)]
    assert len(sacct) == 2, "accounts are not asked without need"


def a_row(label: str, state: str) -> slurm.Row:
    facts = dict.fromkeys(slurm.Row._fields, "") | {"id": 7, "label": label}
    return slurm.Row(**facts | {"state": slurm.state_of(state, ""), "why": slurm.why_of("")})  # type: ignore[arg-type]


# changing jobs


def test_of_several_jobs_it_is_said_which_were_changed_when_the_controller_dies(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    lost = "scancel: error: Kill job error on job id 6: Connection reset by peer"

    def ask(*words: str, **_: Any) -> str:
        if words[-1] == "6":
            raise slurm.problem(words, lost)
        return ""

    monkeypatch.setattr(slurm, "ask", ask)
    monkeypatch.setattr(slurm, "all_of", lambda label: [a_row(label, "RUNNING")])
    cancel = on_a_login_node("cancel")
    options = Namespace(jobs=["5-8"], user=None, json=None)
    assert cancel.function()(options) == Unknown.exit_code
    out, err = capsys.readouterr()
    assert out == "job 5: cancelled\n"
    assert err.startswith("job 6: no answer") and "carma queue" in err and "job 7" not in err
