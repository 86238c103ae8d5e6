"""Launcher and shepherd together: every attempt is started once and its end is reported, whichever
processes were alive at that time."""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from carma_testing import changed
from carmad import accounts, units
from carmad.accounts import NoAccount
from carmad.attempt import launcher as launcher_module
from carmad.attempt import shepherd as shepherd_module
from carmad.attempt import supervisor
from carmad.attempt.environment import job_environment
from carmad.attempt.evidence import Evidence
from carmad.attempt.exits import ExitFacts
from carmad.attempt.launcher import Launcher, NotNow, Stopped, plan_launch
from carmad.attempt.shepherd import Shepherd
from carmad.core.jobs.attempt import Cause, JobId
from carmad.core.jobs.job import Job
from carmad.errors import CarmaError
from tests.attempts import EXIT, Bench, in_a_unit, is_gone, until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a unit's cgroup")


class Farm(Bench):
    """A bench with a shepherd, which can be replaced, as by a restart of the daemon."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.reports: list[tuple[JobId, int, ExitFacts]] = []
        self.memory: set[JobId] = set()  # jobs whose memory has not left its GPUs yet
        self.shepherd = self.hire()

    def hire(self, start: bool = True) -> Shepherd:
        self.evidence = Evidence()
        self.evidence.memory_gone = lambda job: job.id not in self.memory  # type: ignore[method-assign]
        self.shepherd = Shepherd(
            self.state,
            self.launcher,
            self.evidence,
            lambda job, ended: self.reports.append((job.id, job.attempt, ended)),
        )
        if start:
            self.shepherd.start()
        return self.shepherd

    def start(self, *argv: str, **spec: object) -> Job:
        job = self.launch(self.job(*argv, **spec))
        self.shepherd.watch(job)
        return job

    def report(self) -> ExitFacts:
        until(lambda: self.reports, "a report")
        ((_, _, ended),) = self.reports
        return ended


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    farm = Farm(tmp_path)
    yield farm
    farm.shepherd.close()


def test_the_end_of_a_job_is_reported(farm: Farm) -> None:
    job = farm.start("sh", "-c", "echo out; echo err >&2; exit 3", stderr="err")
    ended = farm.report()
    assert farm.reports[0][:2] == (job.id, 1)
    assert (ended.code, ended.signal, ended.error, ended.stopped) == (3, None, "", False)
    assert not ended.lost
    assert not ended.never_started
    assert ended.log_tail == "out\nerr\n"
    assert ended.started_at is not None
    assert ended.started_at <= ended.ended_at


def test_a_stopped_job_says_so(farm: Farm) -> None:
    job = farm.start("sleep", "600")
    farm.launcher.stop(job, 5.0)
    ended = farm.report()
    assert (ended.signal, ended.stopped, ended.lost) == (signal.SIGTERM, True, False)


def test_a_launch_error_comes_with_a_hint(farm: Farm) -> None:
    farm.start("no-such-command-here")
    ended = farm.report()
    assert "command not found" in ended.error
    assert ended.hint


def test_launching_and_watching_again_changes_nothing(farm: Farm) -> None:
    job = farm.start("sh", "-c", "echo ran; sleep 0.3")
    for _ in range(3):
        farm.launch(job)
        farm.shepherd.watch(job)
    assert farm.report().code == 0
    farm.launch(job)
    assert farm.lines() == ["ran"]


def test_a_job_goes_on_without_its_daemon(farm: Farm) -> None:
    job = farm.start("sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done; exit 9")
    until(farm.lines, "the job to speak")
    farm.shepherd.close()
    shepherd = farm.hire()
    shepherd.watch(job)
    (farm.cwd / "go").touch()
    assert farm.report().code == 9


def test_processes_of_adopted_attempts_are_known_from_the_start(farm: Farm) -> None:
    job = farm.start("sh", "-c", "echo $$; exec sleep 600")
    (pid,) = until(farm.lines, "the job to speak")
    farm.shepherd.close()
    farm.hire(start=False).watch(job)
    farm.shepherd.start()
    assert farm.evidence.attempt_of(int(pid)) == (job.id, 1)
    farm.launcher.stop(job, 0.0)
    farm.report()


def test_an_end_while_the_daemon_was_down_is_reported(farm: Farm) -> None:
    farm.shepherd.close()
    job = farm.launch(farm.job("sh", "-c", "exit 9"))
    farm.ended(job)
    farm.hire().watch(job)
    assert farm.report().code == 9


def test_a_killed_supervisor_means_lost_and_leaves_nothing(farm: Farm) -> None:
    job = farm.start("sh", "-c", "setsid sh -c 'trap \"\" TERM; echo $$; sleep 600; true' & wait")
    (pid,) = until(farm.lines, "the job to speak")
    os.kill(farm.started(job)["pid"], signal.SIGKILL)
    assert farm.report().lost
    assert is_gone(int(pid)), "the attempt is over only when they are"


def test_a_job_that_has_not_begun_when_its_supervisor_is_killed_never_begins(farm: Farm) -> None:
    """Nothing shows yet that its process belongs to the attempt, which may be started again."""
    os.mkfifo(farm.cwd / "log")
    job = farm.start("sh", "-c", "touch began", stdout="log")  # it waits for a reader
    pid = farm.started(job)["pid"]
    (child,) = until(
        lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), "its process"
    )
    os.kill(pid, signal.SIGKILL)
    assert farm.report().lost
    log = os.open(farm.cwd / "log", os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: is_gone(int(child)), "it to be gone")
    os.close(log)
    assert not (farm.cwd / "began").exists()


def test_a_recycled_pid_is_not_taken_for_the_supervisor(farm: Farm) -> None:
    job = farm.job("true")
    directory = farm.directory(job)
    directory.mkdir()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (directory / supervisor.STARTED).write_text(
            f'{{"pid": {stranger.pid}, "start_ticks": 1, "boot_id": "{boot_id}", "at": 5.0}}'
        )
        farm.shepherd.watch(job)
        ended = farm.report()
        assert (ended.lost, ended.started_at) == (True, 5.0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_shortage_of_files_is_not_the_end_of_a_job(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = farm.launch(farm.job("sleep", "600"))
    pid = farm.started(job)["pid"]

    tried: list[int] = []

    def short(pid: int) -> int:
        tried.append(pid)
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(shepherd_module.os, "pidfd_open", short)
        farm.shepherd.watch(job)
        other = farm.job("true", id=2)
        farm.directory(other).mkdir()
        record = farm.directory(other) / supervisor.STARTED
        record.write_text('{"pid": 1, "start_ticks": 0, "boot_id": "", "at": 5.0}')
        farm.shepherd.watch(other)
        until(lambda: tried.count(pid) > 2 and tried.count(1) > 2, "the shepherd to look again")
        assert farm.reports == []
    until(lambda: farm.evidence.attempt_of(pid) == (job.id, 1), "the shepherd to take hold")
    farm.launcher.stop(job, 0)
    until(lambda: len(farm.reports) == 2, "both ends")
    assert {id: ended.lost for id, _, ended in farm.reports} == {1: False, 2: True}


def test_an_attempt_that_cannot_be_tended_keeps_nobody_waiting(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shepherd_module, "START_WITHIN_S", 0.0)

    tried: list[Job] = []

    def full(job: Job) -> bool:
        tried.append(job)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(farm.launcher, "revoke", full)
    farm.shepherd.watch(farm.job("true", id=7))
    until(lambda: tried, "the shepherd to try")
    farm.start("true")
    assert farm.report().code == 0


def test_an_attempt_that_nobody_started_is_reported(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shepherd_module, "START_WITHIN_S", 0.1)
    job = farm.job("touch", "ran")
    monkeypatch.setattr(farm.launcher._forks, "start", lambda _directory: None)
    farm.launch(job)
    farm.shepherd.watch(job)
    assert farm.report().never_started
    # Nor can it start now, however late its supervisor comes.
    subprocess.run(supervisor.command(str(farm.directory(job))), check=True)
    assert farm.ended(job)["stopped"]
    assert not (farm.cwd / "ran").exists()


def test_an_attempt_without_a_folder_may_have_run(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran when the database was backed up, say, and had ended long before that was restored."""
    monkeypatch.setattr(shepherd_module, "START_WITHIN_S", 0.1)
    job = farm.job("true")
    for _ in range(2):  # also for a daemon that follows one that died here
        farm.shepherd.watch(job)
        ended = farm.report()
        assert (ended.lost, ended.never_started) == (True, False)
        farm.reports.clear()


def test_an_attempt_that_was_given_up_is_never_launched(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a launch, queued behind slow ones, comes after the next attempt has begun."""
    monkeypatch.setattr(shepherd_module, "START_WITHIN_S", 0.1)
    job = farm.job("touch", "ran")
    farm.shepherd.watch(job)
    assert farm.report().lost
    with pytest.raises(Stopped):
        farm.launch(job)
    assert not (farm.state / "forkserver").exists(), "nothing was started"


@pytest.mark.parametrize("late", [False, True], ids=["no supervisor", "a late supervisor"])
def test_that_an_attempt_was_given_up_survives_the_daemon(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """It died before recording that. For the next one, the attempt never started or failed."""
    monkeypatch.setattr(shepherd_module, "START_WITHIN_S", 0.1)
    job = farm.job("touch", "ran")
    with monkeypatch.context() as patch:
        patch.setattr(farm.launcher._forks, "start", lambda _directory: None)
        farm.launch(job)
    farm.shepherd.watch(job)
    assert farm.report().never_started
    if late:
        subprocess.run(supervisor.command(str(farm.directory(job))), check=True)
    farm.shepherd.close()
    farm.reports.clear()
    farm.hire()
    with pytest.raises(Stopped) if not late else nullcontext():
        farm.launch(job)
    farm.shepherd.watch(job)
    ended = farm.report()
    assert (ended.never_started, ended.stopped, ended.signal) == (True, False, None)
    assert not (farm.cwd / "ran").exists()


def test_the_report_waits_for_the_gpus_memory(farm: Farm) -> None:
    farm.memory.add(JobId(1))
    job = farm.start("true")
    farm.ended(job)
    until(lambda: not farm.evidence._supervisors, "the supervisor to end")
    assert farm.reports == []
    farm.memory.clear()
    ended = farm.report()
    assert (ended.code, ended.memory_held) == (0, False)


def test_the_report_waits_only_so_long(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shepherd_module, "CLEAR_WITHIN_S", 0.2)
    farm.memory.add(JobId(1))
    farm.start("true")
    ended = farm.report()
    assert (ended.code, ended.memory_held) == (0, True)


def test_a_shutdown_loses_a_job_unless_it_ended_well(farm: Farm) -> None:
    job = farm.start("sh", "-c", "echo up; exec sleep 600")
    until(farm.lines, "the job to speak")
    os.kill(farm.started(job)["pid"], signal.SIGTERM)
    ended = farm.report()
    assert (ended.lost, ended.signal, ended.stopped) == (True, signal.SIGTERM, False)


def test_the_owner_of_a_process_is_found_by_its_ancestors(farm: Farm) -> None:
    job = farm.start("sh", "-c", "setsid sleep 600 & echo $!; echo $$; wait")
    until(lambda: len(farm.lines()) == 2, "the job to speak")
    until(lambda: farm.evidence._supervisors, "the shepherd to look")
    owner = farm.evidence.attempt_of
    used_a_gpu, unseen = map(int, farm.lines())
    assert owner(used_a_gpu) == (job.id, 1)
    assert owner(os.getpid()) is None
    assert owner(2**22 + 1) is None
    farm.launcher.stop(job, 0.0)
    farm.report()
    assert is_gone(used_a_gpu)
    assert owner(used_a_gpu) == (job.id, 1), "it was asked about while it lived"
    assert owner(unseen) is None


def test_no_zombie_stays(farm: Farm) -> None:
    job = farm.start("true")
    pid = farm.started(job)["pid"]
    farm.report()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the zombie to be reaped", 5.0)


def test_a_progress_bar_leaves_its_last_state(farm: Farm) -> None:
    show = "import sys; sys.stdout.write('10%\\r50%\\r100%\\r\\n\\xff' 'end\\r')"
    farm.start(sys.executable, "-c", show)
    assert farm.report().log_tail == "100%\nÿend"


def test_ended_jobs_leave_nothing(farm: Farm) -> None:
    for id in (1, 11, 12):
        farm.ended(farm.launch(farm.job("true", id=id)))
    farm.launcher.release(JobId(1))
    assert sorted(path.name for path in (farm.state / "jobs").iterdir()) == ["11.1", "12.1"]
    farm.launcher.release(JobId(99))
    assert farm.launcher.jobs_on_disk() == {11, 12}


def test_a_supervisor_that_comes_late_finds_nothing_to_run(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two may have been started around a restart; this one wakes up during the release."""
    job = farm.launch(farm.job("/bin/sh", "-c", "echo once >> ran"))
    farm.ended(job)

    def remove(directory: Path, ignore_errors: bool) -> None:
        (directory / supervisor.STARTED).unlink()
        subprocess.run(supervisor.command(str(directory)), stderr=subprocess.DEVNULL)

    monkeypatch.setattr(launcher_module.shutil, "rmtree", remove)
    farm.launcher.release(job.id)
    assert farm.lines("ran") == ["once"]


def test_the_ids_on_record_are_known(farm: Farm) -> None:
    assert max(farm.launcher.jobs_on_disk(), default=0) == 0
    for id in (2, 11):
        farm.ended(farm.launch(farm.job("true", id=id)))
    assert max(farm.launcher.jobs_on_disk(), default=0) == 11


def test_nobody_hears_a_signal_to_a_job_without_processes(farm: Farm) -> None:
    job = farm.job("true")
    assert not farm.launcher.signal(job, signal.SIGUSR1)
    farm.ended(farm.launch(job))
    until(lambda: not farm.launcher.signal(job, signal.SIGUSR1), "the supervisor to end")


@pytest.mark.parametrize("argv", [(), ("echo", "a\0b")])
def test_a_command_that_no_program_could_take(farm: Farm, argv: tuple[str, ...]) -> None:
    with pytest.raises(CarmaError) as caught:
        farm.launch(farm.job(*argv))
    assert caught.value.hint


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int, list[int]]]:
    """The user database: uid, primary group and all groups by name."""
    known = {"ada": (4001, 4001, [4001, 27])}

    def getpwnam(name: str) -> SimpleNamespace:
        return SimpleNamespace(pw_uid=known[name][0], pw_gid=known[name][1])

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(accounts, "groups_of", lambda name, gid: known[name][2])
    return known


def test_a_job_has_the_groups_that_its_user_has_when_it_starts(
    farm: Farm, users: dict[str, tuple[int, int, list[int]]]
) -> None:
    job = farm.job("true", user="ada", uid=4001, gid=27)
    users["ada"] = 4001, 4002, [4002]  # it was in group 27 when it was submitted
    its = plan_launch(job, {}, 1.0)
    assert (its.uid, its.gid, [*its.groups]) == (4001, 4002, [4002])


@pytest.mark.parametrize(
    "now", [{}, {"ada": (4002, 4002, [4002])}, {"bob": (4001, 4001, [4001])}], ids=str
)
def test_a_job_does_not_run_as_who_has_the_uid_or_the_name_now(
    farm: Farm,
    users: dict[str, tuple[int, int, list[int]]],
    now: dict[str, tuple[int, int, list[int]]],
) -> None:
    users.clear()
    users.update(now)
    with pytest.raises(NoAccount, match="submitted by ada with the uid 4001, and now"):
        farm.launch(farm.job("true", user="ada", uid=4001))


def test_a_daemon_without_rights_runs_its_own_users_jobs_only(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CarmaError, match="cannot run jobs as someone"):
        farm.launch(farm.job("true", user="someone", uid=54321))


class FakeSystemdRun:
    """Replaces subprocess.run: records calls of systemd-run, and returns given answers."""

    def __init__(self, returncode: int, stderr: str = "") -> None:
        self.asked: list[list[str]] = []
        self._answer = (returncode, stderr)

    def __call__(self, argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv)
        return subprocess.CompletedProcess(argv, self._answer[0], "", self._answer[1])


@pytest.fixture
def own_units(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator has set something for each job's unit."""
    monkeypatch.setattr(launcher_module, "DROP_INS", ["/nonexistent", str(farm.state)])


@pytest.mark.usefixtures("own_units")
def test_where_units_of_jobs_have_a_drop_in_each_attempt_is_a_unit(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = FakeSystemdRun(0)
    monkeypatch.setattr(launcher_module.subprocess, "run", systemd)
    launcher = Launcher(farm.state, systemd=True, kill_grace_s=30)
    job = farm.job("true", attempt=2)
    launcher.launch(job, {})
    (argv,) = systemd.asked
    assert argv[0] == "systemd-run"
    assert "--unit=carma-job-1-2" in argv
    assert "--property=KillMode=mixed" in argv
    assert argv[-6:] == supervisor.command(str(farm.directory(job)))


class SystemdRun(FakeSystemdRun):
    """Starts what it is asked to start."""

    def __call__(self, argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        command = argv[argv.index(sys.executable) :]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        return super().__call__(argv)


def test_under_systemd_one_unit_starts_all_jobs(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = SystemdRun(0)
    monkeypatch.setattr(launcher_module, "DROP_INS", ["/nonexistent"])
    monkeypatch.setattr(units.subprocess, "run", systemd)
    farm.launcher = Launcher(farm.state, systemd=True, kill_grace_s=30)
    for id in range(1, 6):
        assert farm.run("true", id=id)["code"] == 0
    (argv,) = systemd.asked
    assert [word for word in argv if word.startswith("--unit=carma-jobs-")]
    wanted = {"KillMode=process", "Delegate=yes", "TimeoutStopSec=60", "LimitNOFILE=65536"}
    wanted |= {"OOMPolicy=continue", "TasksMax=infinity", "LimitMEMLOCK=infinity"}
    assert {f"--property={each}" for each in wanted} <= set(argv)


def test_what_podman_keeps_in_run_user_is_there_while_its_job_runs(
    farm: Farm,
    monkeypatch: pytest.MonkeyPatch,
    users: dict[str, tuple[int, int, list[int]]],
) -> None:
    systemd = FakeSystemdRun(0)
    monkeypatch.setattr(launcher_module.subprocess, "run", systemd)
    monkeypatch.setattr(launcher_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    launcher = Launcher(farm.state, systemd=True, kill_grace_s=30)
    contained = farm.job("true", user="ada", uid=4001, container="torch")
    launcher.launch(contained, {})
    assert "--property=Wants=user-runtime-dir@4001.service" in systemd.asked[0]


@pytest.mark.usefixtures("own_units")
def test_a_unit_that_is_there_already_is_no_error(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = FakeSystemdRun(1, "Failed to start: Unit carma-job-1-1.service was already loaded")
    monkeypatch.setattr(launcher_module.subprocess, "run", systemd)
    Launcher(farm.state, systemd=True, kill_grace_s=30).launch(farm.job("true"), {})


@pytest.mark.parametrize(
    "said",
    [
        "Failed to connect to bus: Connection refused",
        "Failed to start transient service unit: Transport endpoint is not connected",
        "Failed to start transient service unit: Connection timed out",
        "Failed to start transient service unit: Argument list too long",
        "Job for carma-job-1-1.service is already being canceled",
    ],
)
def test_what_systemd_does_not_start_now_it_may_start_later(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """If it had queued the unit before it stopped answering, the job still runs only once."""
    systemd = FakeSystemdRun(1, said)
    launcher = Launcher(farm.state, systemd=True, kill_grace_s=30)
    job = farm.job("sh", "-c", "echo ran; exec sleep 600")
    with monkeypatch.context() as patch:
        patch.setattr(launcher_module.subprocess, "run", systemd)
        with pytest.raises(NotNow, match=said):
            launcher.launch(job, job_environment(job, ()))
    late = subprocess.Popen(supervisor.command(str(farm.directory(job))))
    until(farm.lines, "the job to speak")
    monkeypatch.setattr(launcher_module.subprocess, "run", systemd)
    launcher.launch(job, job_environment(job, ()))  # finds it at work
    assert len(systemd.asked) == 1
    farm.shepherd.watch(job)
    launcher.stop(job, 0)
    assert farm.report().stopped
    late.wait()
    assert farm.lines() == ["ran"]


def test_a_systemd_that_does_not_answer_is_asked_again(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(argv, 30)

    monkeypatch.setattr(launcher_module.subprocess, "run", run)
    with pytest.raises(NotNow, match="does not answer"):
        Launcher(farm.state, systemd=True, kill_grace_s=30).launch(farm.job("true"), {})


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.TIME_LIMIT])
@pytest.mark.parametrize("begun", [True, False])
def test_an_attempt_keeps_why_it_was_stopped_for_good(
    farm: Farm, cause: Cause, begun: bool
) -> None:
    job = farm.job("sh", "-c", "echo up; exec sleep 600")
    if begun:
        farm.launch(job)
        until(farm.lines, "the job to speak")
    farm.launcher.stop(changed(job, stop=cause), 5.0)
    farm.launcher.stop(changed(job, stop=Cause.CANCELLED), 5.0)  # too late to change it
    if begun:
        farm.launch(job)  # as the next daemon does, to whom it is only about to start
        farm.shepherd.watch(job)
        ended = farm.report()
        assert (ended.stopped, ended.cause) == (True, cause)
        assert farm.lines() == ["up"]
    else:
        with pytest.raises(Stopped) as caught:
            farm.launch(job)
        assert caught.value.cause is cause
        assert not (farm.state / "forkserver").exists(), "nothing was started"


def test_an_attempt_that_is_stopped_to_be_sent_back_does_not_say_so(farm: Farm) -> None:
    job = farm.start("sleep", "600")
    farm.started(job)
    farm.launcher.stop(changed(job, stop=Cause.PREEMPTED), 5.0)
    ended = farm.report()
    assert (ended.stopped, ended.cause) == (True, None)


ELSEWHERE = '{"pid": 1, "start_ticks": 1, "boot_id": "another boot", "at": 5.0}'


def test_a_record_of_another_boot_is_read(farm: Farm) -> None:
    job = farm.job("true")
    farm.directory(job).mkdir()
    (farm.directory(job) / supervisor.STARTED).write_text(ELSEWHERE)
    (farm.directory(job) / supervisor.EXIT).write_text(json.dumps(EXIT))
    farm.shepherd.watch(job)
    ended = farm.report()
    assert (ended.code, ended.ended_at, ended.stopped, ended.cause) == (3, 2.0, False, None)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{",
        "null",
        "[]" * 9,
        "[" * 100_000,
        "{}",
        "\0" * 64,
        '"' + "x" * (2 << 20),
        *(
            json.dumps(EXIT | change)
            for change in (
                {"code": "3"},
                {"code": True},
                {"code": 10**400},
                {"code": -1},
                {"signal": 65},
                {"ended_at": float("nan")},
                {"ended_at": float("inf")},
                {"ended_at": 1e300},
                {"started_at": None},
                {"host_oom_kills": 10**30},
                {"stopped": "no"},
                {"error": ["x"]},
                {"error": "\ud800"},
            )
        ),
    ],
)
def test_a_record_that_is_not_sound_is_none(
    farm: Farm, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Incomplete, or corrupted by a dying disk: the attempt has ended, which is reported once."""
    job = farm.job("true")
    farm.directory(job).mkdir()
    (farm.directory(job) / supervisor.STARTED).write_text(ELSEWHERE)
    (farm.directory(job) / supervisor.EXIT).write_text(record)
    farm.shepherd.watch(job)
    ended = farm.report()
    assert (ended.lost, ended.code, ended.started_at) == (True, None, 5.0)
    assert caplog.text.count("the record of its end cannot be read") == 1


@pytest.mark.parametrize(
    "record", ["", "{}", '{"pid": "1"}', ELSEWHERE.replace("5.0", "NaN"), ELSEWHERE[:-3]]
)
def test_who_supervises_it_may_be_unreadable(
    farm: Farm, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lock tells that it lives, and that it has ended."""
    job = farm.launch(farm.job("sh", "-c", "echo up; until [ -e go ]; do sleep 0.05; done; exit 4"))
    until(farm.lines, "the job to speak")
    (farm.directory(job) / supervisor.STARTED).write_text(record)
    farm.shepherd.watch(job)
    until(lambda: "its supervisor cannot be followed" in caplog.text, "the log to say so")
    assert farm.reports == []
    (farm.cwd / "go").touch()
    assert (farm.report().code, farm.report().lost) == (4, False)


def test_a_supervisor_that_sees_another_boot_is_alive(farm: Farm) -> None:
    """As in a container that shows its own boot id, but not behind systemd's ProtectProc=."""
    job = farm.launch(farm.job("sh", "-c", "echo up; until [ -e go ]; do sleep 0.05; done; exit 4"))
    until(farm.lines, "the job to speak")
    record = farm.started(job) | {"boot_id": "another boot"}
    (farm.directory(job) / supervisor.STARTED).write_text(json.dumps(record))
    farm.shepherd.watch(job)
    until(lambda: farm.evidence.attempt_of(record["pid"]) == (job.id, 1), "it to be followed")
    (farm.cwd / "go").touch()
    assert (farm.report().code, farm.report().lost) == (4, False)


@as_root
def test_what_a_killed_supervisor_left_in_its_unit_is_found_by_the_unit(farm: Farm) -> None:
    """Whatever its environment says; and the end is reported once it is gone."""
    escaped = "setsid env -i sh -c 'trap \"\" TERM; echo $$; while :; do sleep 60; done' & wait"
    with in_a_unit(farm, "sh", "-c", escaped) as (job, unit):
        (pid,) = until(farm.lines, "the job to speak")
        farm.shepherd.watch(job)
        until(lambda: farm.evidence.attempt_of(int(pid)) == (job.id, 1), "it to be followed")
        os.kill(farm.started(job)["pid"], signal.SIGKILL)
        assert farm.report().lost
        assert "populated 0" in (unit / "cgroup.events").read_text()


@as_root
def test_what_cannot_be_killed_is_reported_but_only_if_it_runs_no_more(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shepherd_module, "CLEAR_WITHIN_S", 0.0)
    monkeypatch.setattr(shepherd_module, "send", lambda *_: None)
    stuck: list[int] = []
    monkeypatch.setattr(shepherd_module, "unkillable", stuck.__contains__)
    with in_a_unit(farm, "sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & wait") as (job, _):
        (pid,) = until(farm.lines, "the job to speak")
        farm.shepherd.watch(job)
        until(lambda: farm.evidence.attempt_of(int(pid)) == (job.id, 1), "it to be followed")
        os.kill(farm.started(job)["pid"], signal.SIGKILL)
        until(lambda: farm.shepherd._attempts[job.id, 1].facts, "its end to be noticed")
        assert farm.reports == []
        stuck.append(int(pid))
        assert (farm.report().lost, farm.report().left) == (True, True)


def test_whatever_fails_while_it_is_looked_after_an_end_is_reported(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shepherd_module, "CLEAR_WITHIN_S", 0.1)

    def broken(_job: Job) -> bool:
        raise RuntimeError("the driver is gone")

    farm.evidence.memory_gone = broken  # type: ignore[method-assign]
    farm.start("sh", "-c", "exit 3")
    ended = farm.report()
    assert (ended.code, ended.memory_held) == (3, True)
    assert caplog.text.count("the driver is gone") <= 2  # in one traceback


def test_a_sweep_that_was_killed_has_swept_nothing(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cgroup."""
    killed: list[subprocess.Popen[bytes]] = []
    sweep = shepherd_module._sweep

    def kill_the_first(directory: Path, uid: int) -> subprocess.Popen[bytes]:
        if killed:
            return sweep(directory, uid)
        killed.append(subprocess.Popen(["sleep", "600"]))
        killed[0].kill()
        return killed[0]

    monkeypatch.setattr(shepherd_module, "_sweep", kill_the_first)
    job = farm.start("sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & wait")
    (pid,) = until(farm.lines, "the job to speak")
    os.kill(farm.started(job)["pid"], signal.SIGKILL)
    assert farm.report().lost
    assert is_gone(int(pid))
    assert killed


def test_a_zombie_that_nobody_reaps_does_not_keep_an_attempt_from_its_end(farm: Farm) -> None:
    """As in a container whose first process reaps none."""
    unmarked = "import subprocess, time\n"
    unmarked += "child = subprocess.Popen(['sleep', '600'], env={'CARMA_ATTEMPT_DIR': MARK})\n"
    unmarked += "print(child.pid, flush=True)\ntime.sleep(600)"
    job = farm.job("sleep", "600")
    mark = str(farm.directory(job))
    argv = [sys.executable, "-c", unmarked.replace("MARK", repr(mark))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        farm.launch(job)
        farm.shepherd.watch(job)
        os.kill(farm.started(job)["pid"], signal.SIGKILL)
        assert (farm.report().lost, farm.report().left) == (True, False)
        assert is_gone(pid)
        parent.kill()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_launch_that_found_no_room_may_be_repeated(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def run(_directory: Path) -> None:
        raise OSError(code, os.strerror(code))

    job = farm.job("true")
    with monkeypatch.context() as patch:
        patch.setattr(farm.launcher._forks, "start", run)
        with pytest.raises(NotNow, match=os.strerror(code)):
            farm.launch(job)
    assert farm.ended(farm.launch(job))["code"] == 0


def test_systemd_is_used_only_where_it_runs() -> None:
    if not Path("/run/systemd/system").is_dir():
        assert not units.available()
