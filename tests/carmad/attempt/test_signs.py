"""Signs of life of running attempts, and what they have printed so far."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.attempt import signs
from carmad.attempt.evidence import Evidence
from carmad.attempt.launcher import Launcher
from carmad.attempt.signs import read_logs
from carmad.core.jobs.attempt import Signs
from carmad.core.jobs.job import Job
from tests.attempts import Bench, a_cgroup, make_job
from tests.waiting import until

OOM = "torch.OutOfMemoryError: CUDA out of memory."
SPIN = "echo begun; while :; do :; done"
WAIT = "; exec sleep 1000"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for job in (make_job(bench.cwd, "sh", id=1), make_job(bench.cwd, "sh", id=1, attempt=2)):
        if bench.launcher.has_begun(job):
            bench.launcher.stop(job, 0.0)
            bench.ended(job)


def starts(bench: Bench, job: Job, text: str) -> str:
    """Returns the attempt's directory, once it has printed that."""
    bench.launch(job)
    until(lambda: text in "".join(bench.lines()), "its output")
    return str(bench.directory(job))


def look(bench: Bench, job: Job, cgroup: str | None = None) -> Signs:
    evidence = Evidence()
    pid = bench.started(job)["pid"]
    evidence.add_supervisor((job.id, job.attempt), pid, cgroup=cgroup)
    (found,) = evidence.signs()
    return found


def test_what_an_attempt_does_shows_in_its_signs(bench: Bench) -> None:
    """Also what a child of its main process does."""
    job = bench.job("sh", "-c", f"(sleep 0.3; {SPIN}) & echo started; wait")
    starts(bench, job, "started")
    first = look(bench, job)
    assert first.printed[0] == len("started\n")
    until(lambda: look(bench, job).printed[0] > first.printed[0], "more output")
    until(lambda: look(bench, job).cpu_s > first.cpu_s + 0.2, "processor time")


@as_root
def test_a_cgroup_counts_the_processor_time(bench: Bench) -> None:
    with a_cgroup() as group:
        bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=1.0, group=str(group))
        job = bench.job("sh", "-c", f"({SPIN}) & {WAIT[2:]}")
        starts(bench, job, "begun")
        until(lambda: look(bench, job, bench.started(job)["cgroup"]).cpu_s > 0.2, "the loop's")


def test_an_attempt_that_has_just_ended_has_no_signs(bench: Bench) -> None:
    job = bench.job("true")
    bench.ended(bench.launch(job))
    assert look(bench, job, "/sys/fs/cgroup/none") == Signs(job.id, 1, 0.0)


def test_what_was_printed_since_then_is_read_as_a_terminal_would_show_it(bench: Bench) -> None:
    job = bench.job("sh", "-c", rf"echo first; printf '10 %%\r20 %%\n'; echo {OOM} >&2{WAIT}")
    directory = starts(bench, job, OOM)
    assert read_logs(directory, ()).split("\n")[:3] == ["first", "20 %", OOM]
    assert read_logs(directory, (len("first\n"), 0)).split("\n")[0] == "20 %"
    (bench.cwd / "carma-1.out").unlink()
    assert OOM in read_logs(directory, ()), "a log that was deleted is read all the same"


def test_what_an_earlier_attempt_printed_is_not_this_ones(bench: Bench) -> None:
    (bench.cwd / "carma-1.out").write_text(f"{OOM}\n")
    job = make_job(bench.cwd, "sh", "-c", f"echo again{WAIT}", attempt=2)
    assert read_logs(starts(bench, job, "again"), ()) == "again\n"


def test_two_logs_are_read_and_what_is_no_file_is_left_alone(bench: Bench) -> None:
    script = f"echo printed; echo {OOM} >&2; exec > /dev/null{WAIT}"
    job = bench.job("sh", "-c", script, stderr="err.txt")
    bench.launch(job)
    until(lambda: OOM in "".join(bench.lines("err.txt")), "its error")
    until(lambda: "printed" not in read_logs(str(bench.directory(job)), ()), "its redirection")
    assert read_logs(str(bench.directory(job)), ()).strip() == OOM


def test_a_job_that_ends_meanwhile_has_no_news(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    job = bench.job("true")
    bench.ended(bench.launch(job))
    assert read_logs(str(bench.directory(job)), ()) == ""
    assert capfd.readouterr().err == ""


def test_a_reader_that_hangs_is_abandoned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a dead file server."""
    monkeypatch.setattr(signs, "program", lambda *_: ["sh", "-c", "exec sleep 1000"])
    monkeypatch.setattr(signs, "READ_WITHIN_S", 0.1)
    assert read_logs(str(bench.state), ()) == ""


@as_root
def test_it_is_read_as_the_jobs_user(bench: Bench) -> None:
    """Who might have put a link to another's file there."""
    nobody = pwd.getpwnam("nobody")
    secret = bench.state / "secret"
    secret.write_text(OOM)
    secret.chmod(0o600)
    bench.state.chmod(0o755)
    bench.cwd.chmod(0o777)
    for parent in bench.cwd.parents:
        if parent.stat().st_mode & 0o5 != 0o5 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o5)
    job = bench.job(
        "sh", "-c", f"echo mine{WAIT}", user="nobody", uid=nobody.pw_uid, gid=nobody.pw_gid
    )
    directory = starts(bench, job, "mine")
    assert read_logs(directory, ()) == "mine\n"
    (bench.cwd / "carma-1.out").chmod(0o600)
    os.chown(bench.cwd / "carma-1.out", 0, 0)
    assert read_logs(directory, ()) == ""
