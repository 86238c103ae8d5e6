"""Clients that submit, cancel, suspend and resume while the daemon is killed again and again; and
the final check.

Every job first appends a line "id attempt pid gpu" to its own file, and ends in a way that follows
from its kind and its id. So the files and the database must agree.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from carmad.core.jobs.attempt import Cause
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.store.sql import SqlStore
from tests.daemon import UNREACHABLE, Carmad, Json, train, until
from tests.waiting import PATIENCE_S

WORDS = "$CARMA_JOB_ID $((CARMA_RESTART_COUNT + 1)) $$ $CUDA_VISIBLE_DEVICES"
START = f'echo "{WORDS}" >> starts/$CARMA_JOB_ID; '
FOREVER = "exec sleep 1000"
CODES = 4
GPUS = 6
MAYBE = frozenset({0, 1})  # stopped before it began, perhaps

End = tuple[JobState, Cause, int | None, int | None]  # with exit code and signal


@dataclass(frozen=True)
class Kind:
    """`starts`: how often an attempt may have begun; `attempts`: how many there may be."""

    script: str
    state: JobState = JobState.FAILED
    cause: Cause = Cause.FAILURE
    starts: frozenset[int] = frozenset({1})
    attempts: int = 1
    time_limit_s: float | None = None


KINDS = {
    "code": Kind(f"sleep NAP; echo end; exit $((CARMA_JOB_ID % {CODES}))"),
    "signal": Kind("sleep NAP; kill -$((CARMA_JOB_ID % 2 ? 9 : 15)) $$"),
    "leftovers": Kind("setsid sleep 1000 & sleep NAP; exit 3"),
    "cancel": Kind(FOREVER, JobState.CANCELLED, Cause.CANCELLED, MAYBE),
    "limit": Kind(FOREVER, JobState.TIMED_OUT, Cause.TIME_LIMIT, MAYBE, time_limit_s=0.3),
    "oom": Kind(
        "exec " + shlex.join(train(memory_mib=50_000, warmup=0)),
        JobState.OUT_OF_MEMORY,
        Cause.GPU_OOM,
        attempts=3,
    ),
    "train": Kind(  # the one above may take its memory: then it is tried again
        "exec " + shlex.join(train(memory_mib=3000, seconds=0.3, warmup=0.1)),
        JobState.SUCCEEDED,
        Cause.SUCCESS,
        attempts=3,
    ),
    "movable": Kind(  # it is suspended and resumed all the time
        "exec " + shlex.join(train(memory_mib=2000, seconds=6.0, warmup=0.1)),
        JobState.SUCCEEDED,
        Cause.SUCCESS,
        attempts=3,
    ),
    "absent": Kind("", JobState.FAILED, Cause.LAUNCH_FAILED, frozenset({0})),
    "long": Kind("while [ ! -e go ]; do sleep 0.2; done; exit 42"),
}
DECK = ["code"] * 6 + ["signal"] * 3 + ["leftovers"] * 2 + ["cancel"] * 4
DECK += ["limit", "oom", "train", *["movable"] * 4, "absent"]
# A job may be suspended as often as it likes.
UUIDS = {"CARMA_COLLOCATION__VISIBLE_DEVICES": "uuid"}  # by which it knows what a job had
SUSPENDS = {
    "CARMA_SUSPEND__HOST_MEMORY_MIB": "100000",
    "CARMA_SUSPEND__OUT_MIB_S": "1e9",
    "CARMA_SUSPEND__IN_MIB_S": "1e9",
    "CARMA_SUSPEND__FIXED_S": "0",
    "CARMA_SUSPEND__MOST_PER_HOUR": "1000",
}


def expected(kind: str, id: int) -> End:
    ends = KINDS[kind].state, KINDS[kind].cause
    match kind:
        case "code" if id % CODES == 0:
            return JobState.SUCCEEDED, Cause.SUCCESS, 0, None
        case "code":
            return *ends, id % CODES, None
        case "signal":
            return *ends, None, 9 if id % 2 else 15
        case "leftovers":
            return *ends, 3, None
        case "long":
            return *ends, 42, None
        case "train" | "movable":
            return *ends, 0, None
        case "oom":
            return *ends, 1, None
        case "absent":
            return *ends, None, None
        case _:  # stopped: as it may have ended by itself
            return *ends, None, 15


@dataclass
class Storm:
    """`forgetful`: daemons skip actions owed by earlier ones, to show that the check notices."""

    daemon: Carmad
    seed: int
    forgetful: bool = False
    kills: int = 0
    servers: int = 0  # fork servers that were killed
    suspensions: int = 0  # that began
    ended_while_down: list[int] = field(default_factory=list)
    down: list[tuple[float, float]] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    refused: list[Json] = field(default_factory=list)
    _calm: threading.Event = field(default_factory=threading.Event)

    def rage(self, kills: int, clients: int = 3) -> None:
        (self.daemon.work / "starts").mkdir()
        self.daemon.start()
        self._submit("long", 0)
        self.daemon.kill()
        threads = [threading.Thread(target=self._client, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        try:
            self._kill_again_and_again(kills)
            (self.daemon.work / "go").touch()
            self.daemon.start(forgetful=self.forgetful)
        finally:
            self._calm.set()
            for thread in threads:
                thread.join()

    def settle(self, within_s: float = PATIENCE_S) -> None:
        """Wait until no job is left, cancelling those that would run for ever."""

        def none_left() -> bool:
            live = self.daemon.get("/v1/jobs")["jobs"]
            for job in live:
                if job["name"] == "cancel":
                    self.daemon.cancel(job["id"])
                elif job["state"] == "suspended":
                    self._ask("resume", job["id"])
            return not live

        until(none_left, "every job to end", within_s)

    def check(self) -> None:
        """Call it while the daemon is down."""
        store = SqlStore.open(self.daemon.state / "carma.db")
        try:
            jobs = {job.id: job for job in store.history(limit=1_000_000)}
            moves = {id: store.transitions(id) for id in jobs}
            attempts = {
                id: [move.attempt for move in its if move.after == "starting"]
                for id, its in moves.items()
            }
            self.suspensions = sum(m.after == "suspended" for its in moves.values() for m in its)
        finally:
            store.close()
        assert not self.refused
        assert self.acknowledged.keys() <= jobs.keys(), "accepted jobs are lost"
        for job in jobs.values():
            assert self.acknowledged.get(job.id, job.spec.name) == job.spec.name
            self._check(job, attempts[job.id])
        assert not self.daemon.processes() and not self.daemon.supervisors()
        assert not list((self.daemon.state / "jobs").iterdir()), "attempts were not cleared away"
        self.ended_while_down = self._ended_while_down(jobs.values())

    def _check(self, job: Job, attempts: list[int]) -> None:
        kind = KINDS[job.spec.name]
        assert job.exit is not None, f"job {job.id} has not ended: {job}"
        end = job.state, job.exit.cause, job.exit.code, job.exit.signal
        wanted = expected(job.spec.name, job.id)
        if kind.starts == MAYBE:
            end = wanted = end[:2] if end[:2] == wanted[:2] else end
        assert end == wanted, job
        assert all(failure.cause is Cause.GPU_OOM for failure in job.failures), job
        assert attempts == list(range(1, job.attempt + 1)), (job, attempts)
        assert job.attempt <= kind.attempts, job
        starts = self._starts(job.id)
        begun = Counter(int(attempt) for _, attempt, _, _ in starts)
        assert all(begun[attempt] in kind.starts for attempt in attempts), (job, starts)
        assert begun.keys() <= set(attempts), (job, starts)
        used = {gpu for _, attempt, _, gpu in starts if int(attempt) == job.attempt}
        assert used <= set(job.gpus), (job, starts)

    def _starts(self, id: int) -> list[list[str]]:
        path = self.daemon.work / "starts" / str(id)
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines]

    def _ended_while_down(self, jobs: object) -> list[int]:
        """Jobs that wrote their last line while no daemon ran."""
        logs = [self.daemon.work / f"carma-{job.id}.out" for job in jobs if job.spec.name == "code"]
        ends = [log.stat().st_mtime for log in logs]
        return [end for end in ends if any(since < end < till for since, till in self.down)]

    # the kills

    def _kill_again_and_again(self, kills: int) -> None:
        """Half of the deaths come from outside at any time, half from inside, after a commit. The
        fork server is killed as often, too, while the daemon is up or down."""
        dice = random.Random(self.seed)
        while self.kills < kills:
            crash_after = dice.choice((0, dice.randint(1, 12)))
            self.daemon.start(crash_after, self.forgetful, wait=False)
            within_s = 2.0 if crash_after else dice.uniform(0.0, 1.0)
            before_s = dice.uniform(0.0, within_s)
            self.daemon.await_death(before_s)
            self._kill_fork_servers()
            self.daemon.await_death(within_s - before_s)
            self.daemon.kill()
            self.kills += 1
            since = time.time()
            time.sleep(dice.choice((0.0, 0.05, 0.4)))
            self.down.append((since, time.time()))

    def _kill_fork_servers(self) -> None:
        for pid in self.daemon.fork_servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.servers += 1

    # the clients

    def _client(self, number: int) -> None:
        """Go through all requests at least once, and continue until the storm is over."""
        dice = random.Random(f"{self.seed}/{number}")
        deck: list[str] = []
        dealt, to_cancel, movable = 0, [], []
        while not self._calm.is_set() or dealt < len(DECK):
            deck = deck or dice.sample(DECK, len(DECK))
            try:
                id = self._submit(deck[-1], dice.uniform(0.0, 1.0))
                dealt += 1
                kind = deck.pop()
                if kind == "movable":
                    movable.append(id)
                if kind == "cancel":
                    to_cancel.append(id)
                elif to_cancel and dice.random() < 0.5:
                    self.daemon.cancel(to_cancel[0])
                    to_cancel.pop(0)
                for id in movable[-3:]:
                    self._ask(dice.choice(("suspend", "resume")), id)
            except UNREACHABLE:
                pass
            time.sleep(dice.uniform(0.05, 0.3))

    def _ask(self, verb: str, id: int) -> None:
        self.daemon.call("POST", f"/v1/{verb}", {"select": str(id), "user": None})

    def _submit(self, kind: str, nap: float) -> int:
        script = START + KINDS[kind].script.replace("NAP", f"{nap:.2f}")
        argv = ("/nonexistent/program",) if kind == "absent" else ("/bin/sh", "-c", script)
        limit = KINDS[kind].time_limit_s
        body = self.daemon.submission(*argv, name=kind, time_limit_s=limit)
        status, out = self.daemon.call("POST", "/v1/jobs", body)
        if status != 201:
            self.refused.append(out)
            return 0
        self.acknowledged[out["id"]] = kind
        return int(out["id"])
