"""The daemon is root, and users name paths: it must neither open them nor reveal what is there."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api_server import as_uid
from tests.daemon import NO_KERNELS, Carmad, Json, running, until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs jobs of another user than carmad's"
)

THEM = "nobody"
MARK = "named-by-a-user"
LOOKS = {"CARMA_ESTIMATOR": "auto"}

# In the daemon, as `sitecustomize`; the processes that it starts are isolated (-I).
AUDIT = r"""
import os, sys
found = os.open(os.environ["AUDITED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(found, b"it listens\n")
def hook(event, args):
    words = (word for word in args if isinstance(word, (str, bytes, os.PathLike)))
    if any("{mark}" in os.fsdecode(word) for word in words):
        os.write(found, f"{event} {args!r:.300}\n".encode())
sys.addaudithook(hook)
""".replace("{mark}", MARK)

HAS_STRACE = shutil.which("strace") is not None
STRACE = ("strace", "-f", "-D", "-qq", "--seccomp-bpf")
STRACE += ("-e", "trace=%file,clone,clone3,fork,vfork,setresuid,prctl")


@contextlib.contextmanager
def a_folder() -> Iterator[Path]:
    """A directory that any user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="carma-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Carmad]:
    with a_folder() as folder, running(folder, **NO_KERNELS, **LOOKS) as carmad:
        yield carmad


class User:
    """Another user with their own directory."""

    def __init__(self, daemon: Carmad) -> None:
        self.daemon = daemon
        self.uid = pwd.getpwnam(THEM).pw_uid
        self.home = daemon.folder / MARK
        self.home.mkdir(mode=0o700, exist_ok=True)
        os.chown(self.home, self.uid, -1)

    def call(self, method: str, path: str, body: object = None) -> Json:
        status, out = as_uid(self.uid, self.daemon.socket, method, path, body)
        assert status < 300, out
        return out  # type: ignore[no-any-return]

    def body(self, *argv: object, **fields: object) -> Json:
        words = [str(word) for word in argv]
        return self.daemon.submission(*words, **{"cwd": str(self.home), **fields})

    def submit(self, *argv: object, **fields: object) -> int:
        return int(self.call("POST", "/v1/jobs", self.body(*argv, **fields))["ids"][0])

    def estimated(self, *argv: object, **fields: object) -> str:
        """The answer, without the parts that differ each time."""
        out = self.call("POST", "/v1/estimate", self.body(*argv, **fields))
        for one in out["estimates"]:
            del one["seconds"]
        return json.dumps(out)


def a_life_of_jobs(user: User) -> None:
    """Every kind of request that names a path, and every part of a job's life that uses one."""
    daemon, home = user.daemon, user.home
    script = home / "train.py"
    script.write_text("#!/usr/bin/env python3\nprint('trained')\n")
    script.chmod(0o755)
    env = {"PATH": f"{home}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(home), "TMPDIR": str(home)}
    logs = {"stdout": str(home / "logs.out"), "stderr": str(home / "logs.err")}
    user.estimated("torchrun", script, env=env)
    user.call("POST", "/v1/jobs", user.body(script, env=env, dry_run=True))
    jobs = [
        user.submit("train.py", env=env, **logs),
        user.submit("python3", script, env=env, name=str(home), export={"HOME": str(home)}),
        user.submit("/bin/sh", "-c", f"cat {home}/train.py", memory_mib=100, **logs),
        user.submit("true", cwd=str(home / "none"), memory_mib=100),
        user.submit("true", conda_env=str(home / "conda"), memory_mib=100),
        user.submit(
            "true", memory_mib=100, stdout=str(home / "none" / "x"), array={"indices": [1]}
        ),
    ]
    for job in jobs:
        daemon.ended(job)
        for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/why", f"/v1/jobs/{job}/wait"):
            user.call("GET", path)
    assert (home / "logs.out").exists()
    stopped = user.submit("sleep", "1000", memory_mib=100)
    until(lambda: (home / f"carma-{stopped}.out").exists(), "the job's log")
    user.call("POST", "/v1/cancel", {"select": str(stopped)})
    daemon.ended(stopped)
    user.call("POST", "/v1/requeue", {"select": str(jobs[2])})
    for path in (
        "jobs",
        "history?attempts=true",
        "past",
        "stats",
        "status",
        "estimators",
        "doctor",
    ):
        user.call("GET", f"/v1/{path}")


def of_roots(trace: str, mark: str) -> list[str]:
    """The lines of strace's output with `mark`, from processes that were still root."""
    lines = [line.split(maxsplit=1) for line in trace.splitlines() if " " in line]
    became: dict[str, int] = {}  # the user, by pid: at which line
    began: dict[str, int] = {}  # the fork that a pid is in
    forked: dict[str, tuple[str, int]] = {}  # by child
    for n, (pid, words) in enumerate(lines):
        if re.match(r"setresuid\([1-9]", words):
            became.setdefault(pid, n)
        if re.match(r"(clone3?|v?fork)\(", words):
            began[pid] = n
        child = re.search(r"\) += (\d+)$", words)
        if child and re.match(r"(<\.\.\. )?(clone3?|v?fork)\b", words):
            forked[child[1]] = pid, began[pid]

    def is_root(pid: str, n: int) -> bool:
        if n >= became.get(pid, len(lines)):
            return False
        return pid not in forked or is_root(*forked[pid])

    return [
        " ".join(line) for n, line in enumerate(lines) if mark in line[1] and is_root(line[0], n)
    ]


@dataclass
class Watched:
    """What a daemon was seen doing while serving jobs."""

    state: str
    audited: str
    traced: str


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with a_folder() as folder:
        hooks, audited, traced = folder / "hooks", folder / "audited", folder / "traced"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(AUDIT)
        audit = {"PYTHONPATH": str(hooks), "AUDITED": str(audited)}
        daemon = Carmad(folder, **NO_KERNELS, **LOOKS, **audit)
        try:
            daemon.start_cold(*((*STRACE, "-o", str(traced)) if HAS_STRACE else ()))
            a_life_of_jobs(User(daemon))
            daemon.stop()
        finally:
            daemon.clear_away()
        seen = traced.read_text(errors="replace") if HAS_STRACE else ""
        yield Watched(str(daemon.state), audited.read_text(), seen)


def test_the_daemons_python_touches_no_path_that_a_user_named(watched: Watched) -> None:
    """According to Python's audit events, which every `open`, `listdir` or `mkdir` raises."""
    assert watched.audited == "it listens\n"


@pytest.mark.skipif(not HAS_STRACE, reason="no strace")
def test_no_process_of_roots_names_to_the_kernel_a_path_that_a_user_named(watched: Watched) -> None:
    """By the kernel's word, so `stat` and what C code does as well; and in its children, too, as
    long as they are root."""
    assert of_roots(watched.traced, watched.state)  # it does see what they do
    assert watched.traced.count(MARK) > 10  # and what the user's processes do
    assert of_roots(watched.traced, MARK) == []


def test_the_first_line_of_a_file_of_roots_does_not_leak(daemon: Carmad) -> None:
    user = User(daemon)
    secret = daemon.folder / "secret"
    secret.write_text("#!/opt/hunter2/python3 --token=hunter3\n")
    secret.chmod(0o600)
    ways = [[secret], ["env", "A=b", secret], ["python3", secret], ["torchrun", secret]]
    ways += [[daemon.folder / "torchrun", "x.py"]]
    (daemon.folder / "torchrun").symlink_to(secret)
    for argv in ways:
        assert "hunter" not in user.estimated(*argv)
    on_path = {"PATH": str(daemon.folder)}
    assert "hunter" not in user.estimated("secret", env=on_path)
    job = user.submit(secret)
    daemon.ended(job)
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/why"):
        assert "hunter" not in json.dumps(user.call("GET", path))


def test_what_is_behind_a_closed_door_cannot_be_told_from_nothing(daemon: Carmad) -> None:
    user = User(daemon)
    closed = daemon.folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "there").write_text("#!/usr/bin/python3\n")
    (closed / "there").chmod(0o755)
    (closed / "there.py").touch()

    def told(name: str) -> list[str]:
        path = closed / name
        env = {"PATH": f"{closed}:/usr/bin"}
        answers = [
            user.estimated(path),
            user.estimated(name, env=env),
            user.estimated("env", f"PATH={closed}", name),
            user.estimated("/usr/bin/python3", f"{path}.py"),
            user.estimated("torchrun", "x.py", cwd=str(closed)),
        ]
        return [answer.replace(name, "NAME") for answer in answers]

    assert told("there") == told("where")


def test_a_file_that_blocks_holds_nobody_up(daemon: Carmad) -> None:
    """A pipe that nobody writes to, a trace that is empty: more of them than the daemon has
    threads to wait with."""
    user = User(daemon)
    os.mkfifo(user.home / "pipe")
    os.chown(user.home / "pipe", user.uid, -1)
    for path in (user.home / "pipe", "/sys/kernel/tracing/trace_pipe", "/dev/zero"):
        waiting = [user.submit(path, "--x", str(n)) for n in range(4)]
        for job in waiting:
            assert daemon.ended(job)["state"] == "failed"
