"""The attacks: each is on while its context is entered, and leaves nothing behind.

A case raises AssertionError if a state that it promises does not come about.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

from benchmarks.daemon.siege import attackers, stuck
from benchmarks.daemon.siege.field import HONEST, HOSTILE, Field
from benchmarks.harness import until
from carma_client import Problem

LEDGER = 'echo "start $CARMA_JOB_ID" >> ~/ledger; {}; echo "end $CARMA_JOB_ID" >> ~/ledger'
FOREVER = 'echo "start $CARMA_JOB_ID" >> ~/ledger; exec sleep 100000'
TASKS = 3000
CONNECTIONS = 200
STREAMS = 250
FORKS = 400
KILLS = 3


class NotHere(Exception):
    """The case cannot be had on this machine, for this reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """`most`: how many times as long as when it is quiet the honest user's requests may take;
    None: the daemon is down meanwhile, or all of it is on at once: nothing is promised."""

    name: str
    what: str
    attack: Callable[[Field], contextlib.AbstractContextManager[None]]
    most: float | None = 5.0


@contextmanager
def fuse(field: Field) -> Iterator[None]:
    """Of a user who has a job, so that it might be one of the job's processes."""
    user = HOSTILE[0]
    job = field.machine.sh(FOREVER, user, gpus=0)
    field.supervisor(job)
    with field.stuck(user):
        yield
        field.root.post("/v1/cancel", {"select": str(job)})
        field.await_over(job)


@contextmanager
def lose(field: Field) -> Iterator[None]:
    machine = field.machine
    with field.stuck(HOSTILE[0], 0):
        # A process that the job starts in a session of its own is the daemon's to find.
        job = machine.sh(f"setsid sleep 99999 & {FOREVER}", HONEST, gpus=0, requeue=False)
        pid = field.supervisor(job)
        until(lambda: ("start", job) in field.lines(), "the job to start")
        machine.run("kill", "-KILL", str(pid))
        yield
        ended = field.await_over(job)
        assert ended["state"] == "failed", ended
        assert [one for one in field.lines() if one == ("start", job)] == [("start", job)]


@contextmanager
def limit(field: Field) -> Iterator[None]:
    """Beside a stuck process of the same user's, outside of the job."""
    user = HOSTILE[0]
    with field.stuck(user):
        short = field.machine.sh(LEDGER.format("sleep 3"), user, time_limit_s=300, memory_mib=1000)
        late = field.machine.sh(FOREVER, user, time_limit_s=1, memory_mib=1000)
        yield
        for job, state in ((short, "succeeded"), (late, "timed_out")):
            ended = field.await_over(job)
            assert ended["state"] == state, ended


@contextmanager
def within(field: Field) -> Iterator[None]:
    """The job's own process is stuck. The kernel lets nobody end it; but that holds up nobody else,
    and the administrator's cancel is taken."""
    user = HOSTILE[0]
    with field.mount(user) as folder:
        hold = f"exec {sys.executable} {stuck.__file__} hold {folder}/page 0"
        script = f'echo "start $CARMA_JOB_ID" >> ~/ledger; echo $$ > ~/stuck; {hold}'
        job = field.machine.sh(script, user, time_limit_s=5, memory_mib=1000)
        pid = until(lambda: field.machine.read(f"/home/{user}/stuck"), "the stuck job")
        field.await_stuck(int(pid))
        field.machine.run("rm", f"/home/{user}/stuck")
        field.root.post("/v1/cancel", {"select": str(job)})
        yield
    field.await_over(job)


@contextmanager
def shm(field: Field) -> Iterator[None]:
    """A job that fills /dev/shm beyond its own memory: that the job ends of, not its supervisor."""
    if "memory" not in field.machine.read("/sys/fs/cgroup/cgroup.controllers").split():
        raise NotHere("cgroup v2 has no memory controller here; see benchmarks/daemon/siege/vm.sh")
    user = HOSTILE[0]
    fill = "dd if=/dev/zero of=/dev/shm/siege-$$ bs=1M count=200; rm /dev/shm/siege-$$; exit 3"
    job = field.machine.sh(fill, user, gpus=0, host_memory_mib=64, requeue=False)
    yield
    ended = field.await_over(job)
    assert ended["exit"]["cause"] == "host_oom", ended


@contextmanager
def connections(field: Field) -> Iterator[None]:
    with field.attack(HOSTILE[0], attackers.connections, CONNECTIONS):
        yield


@contextmanager
def array(field: Field) -> Iterator[None]:
    with field.attack(HOSTILE[0], attackers.arrays, TASKS):
        yield


@contextmanager
def three_arrays(field: Field) -> Iterator[None]:
    with ExitStack() as all_of_them:
        for user in HOSTILE:
            all_of_them.enter_context(field.attack(user, attackers.arrays, TASKS))
        yield


@contextmanager
def kills(field: Field) -> Iterator[None]:
    """Of carmad, and of supervisors, while jobs run."""
    machine, dice = field.machine, Random(7)
    victims = [machine.sh(FOREVER, HONEST, gpus=0, requeue=False) for _ in range(KILLS)]
    until(lambda: set(victims) <= field.running(), "the jobs whose supervisors are to be killed")
    for victim in dice.sample(victims, len(victims)):
        machine.run("kill", "-KILL", str(field.supervisor(victim)))
        until(lambda: field.running() - set(victims), "the honest user's jobs to run")
        before = machine.show("carmad.service", "MainPID")
        met = field.running()
        machine.systemctl("kill", "--kill-whom=main", "--signal=KILL", "carmad.service")
        assert met, "no job was running"
        _await_other(field, before)
    yield
    for victim in victims:
        assert field.await_over(victim)["state"] == "failed"
        assert field.lines().count(("start", victim)) == 1


def _await_other(field: Field, pid: str) -> None:
    until(
        lambda: field.machine.show("carmad.service", "MainPID") not in ("0", pid),
        "systemd to start carmad again",
    )


@contextmanager
def launches(field: Field) -> Iterator[None]:
    """Kills of the fork server, and of every other systemd-run that starts one."""
    with field.attack("", attackers.launchers) as unit:
        yield
        log = f"{field.machine.folder}/{unit}.log"
        until(lambda: "killed" in field.machine.read(log), "a fork server to kill")


@contextmanager
def forks(field: Field) -> Iterator[None]:
    """Bounded: a job with many processes, killed at its limit."""
    bomb = f"i=0; while [ $i -lt {FORKS} ]; do setsid sleep 1000 & i=$((i+1)); done"
    script = f'echo "start $CARMA_JOB_ID" >> ~/ledger; {bomb}; wait'
    user = HOSTILE[0]
    jobs = [field.machine.sh(script, user, gpus=0, time_limit_s=4) for _ in range(2)]
    yield
    for job in jobs:
        assert field.await_over(job)["state"] == "timed_out"
    left = field.machine.run("ps", "-u", user, "-o", "comm=", check=False).split()
    assert "sleep" not in left, left


@contextmanager
def letters(field: Field) -> Iterator[None]:
    """Messages to where nobody answers, and their senders stopped and killed."""
    user = HOSTILE[0]
    write = "umask 077; mkdir -p ~/.config/carma; cat > ~/.config/carma/notify.conf"
    words = ["env", f"HOME=/home/{user}", "sh", "-c", write]
    field.machine.run(*words, user=user, stdin="json://127.0.0.1:9/")
    with field.attack(user, attackers.letters, 10):
        yield


@contextmanager
def adopt(field: Field) -> Iterator[None]:
    user = HOSTILE[0]
    with field.stuck(user) as held, field.attack(user, attackers.adopt, held.pid):
        yield


@contextmanager
def streams(field: Field) -> Iterator[None]:
    with ExitStack() as all_of_them:
        for user in HOSTILE:
            all_of_them.enter_context(field.attack(user, attackers.streams, STREAMS))
        yield


@contextmanager
def flood(field: Field) -> Iterator[None]:
    with ExitStack() as all_of_them:
        for kind, user in enumerate(HOSTILE):
            all_of_them.enter_context(field.attack(user, attackers.flood, kind))
        yield


@contextmanager
def paths(field: Field) -> Iterator[None]:
    """A log, a directory and a script from which nothing ever comes; the script is tried first."""
    user = HOSTILE[0]
    with field.mount(user) as folder:
        jobs = [
            field.machine.sh("true", user, gpus=0, stdout=f"{folder}/never.out"),
            field.machine.sh("true", user, gpus=0, cwd=f"{folder}/never", stdout="/dev/null"),
            _python(field, user, f"{folder}/train.py"),
        ]
        yield
        for job in jobs:
            with contextlib.suppress(Problem):  # it may have ended
                field.root.post("/v1/cancel", {"select": str(job)})
    for job in jobs:
        field.await_over(job)


def _python(field: Field, user: str, script: str) -> int:
    argv = [sys.executable, script]
    body = {"argv": argv, "cwd": f"/home/{user}", "env": {}, "stdout": "/dev/null"}
    return int(field.machine.call("POST", "/v1/jobs", body, user)["id"])


AT_ONCE = (lose, limit, paths, adopt, connections, three_arrays, streams, flood)


@contextmanager
def everything(field: Field) -> Iterator[None]:
    with ExitStack() as all_of_them:
        for each in AT_ONCE:
            all_of_them.enter_context(each(field))
        yield


CASES = (
    Case("fuse", "a stuck process outside of jobs holds memory on every GPU", fuse),
    Case("lost", "a supervisor is killed while a stuck process is there", lose),
    Case("limit", "jobs with time limits beside a stuck process of their user's", limit),
    Case("within", "a job's own process is stuck, and its time is over", within),
    Case("shm", "a job fills /dev/shm beyond its memory", shm),
    Case("connections", f"{CONNECTIONS} connections of one user, which ask on and on", connections),
    Case("array", f"an array of {TASKS:,} submitted and cancelled in a loop", array),
    Case("arrays", "the same by three users", three_arrays),
    Case("kills", "carmad and supervisors killed while jobs run", kills, None),
    Case(
        "launches",
        "the fork server killed again and again, and every other systemd-run",
        launches,
        None,
    ),
    Case("forks", f"jobs with {FORKS} processes each", forks),
    Case("letters", "messages to a dead address, their senders stopped and killed", letters),
    Case("adopt", "a stuck process adopted again and again", adopt),
    Case("streams", f"{STREAMS} streams each by three users, who read nothing", streams),
    Case("flood", "unfinished, slow and nested requests, large environments", flood),
    Case("paths", "a log, a directory and a script on the stuck file system", paths),
    Case("all", "most of these at once", everything, None),
)
