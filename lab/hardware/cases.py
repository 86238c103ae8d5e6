"""The cases of stage `faults`: what is done to jobs and daemon, and what is expected then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from rich.console import Console

from benchmarks import ROOT
from benchmarks.daemon.carmad import Daemon
from carmad import units
from carmad.api.wire import unix
from carmad.config import Collocation, Limits, Monitor, Preconditions, Settings
from carmad.core.jobs.states import ENDED
from cli import render
from lab.hardware.machine import VICTIM
from lab.hardware.victim import UNTOLD
from lab.hardware.visit import Entry

PATIENCE_S = 120.0  # a deadline: a first `import torch` from a cold disk takes a while
LOOK_S = 0.05
FAULT_S = 2.0  # in which a fault reaches the other clients of its server
GO = "go"
SHARE = 0.6  # of the GPU's memory, for each job of a storm: no two fit
CGROUPS = Path("/sys/fs/cgroup")
OVER = frozenset(state.value for state in ENDED)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    about: str
    run: Callable[[Lab], None]
    minutes: float = 0.5  # on a GPU, by estimate
    mps: bool = False


def settings(lab: Lab) -> Settings:
    """Nothing but recovery keeps jobs from each other (CARMA paper, 4.3: RR without conditions)."""
    return Settings(
        policy="rr",
        estimator="declared",
        monitor=Monitor(
            source="nvml" if lab.faked else "auto",
            period_s=0.2,
            window_s=0.6,
            first_kernel_timeout_s=20.0,
        ),
        preconditions=Preconditions(min_free_mib=0, utilization=False),
        limits=Limits(kill_grace_s=lab.grace_s),
        collocation=Collocation(mps=lab.mps),
    )


@dataclass(slots=True)
class Lab:
    """Submits victims, waits for them, and notes what was expected, observed and told."""

    rehearse: bool
    mps: bool = False
    daemon: Daemon = field(init=False)
    checks: list[Entry] = field(default_factory=list)
    told: list[Entry] = field(default_factory=list)

    @property
    def faked(self) -> bool:
        """Whether the GPU is that of the tests' fake driver."""
        return self.rehearse and self.mps

    @property
    def seconds(self) -> float:
        """How long a victim trains."""
        return 0.5 if self.rehearse else 3.0

    @property
    def grace_s(self) -> float:
        """Between SIGTERM and SIGKILL."""
        return 0.5 if self.rehearse else 2.0

    def submit(self, how: str, *, share: float = 0.1, seconds: float = 0, **more: str) -> int:
        options = {"share": share, "seconds": seconds or self.seconds, **more}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        argv = [*VICTIM, how, *words, *(["--driver"] if self.faked else [])]
        logs = str(self.daemon.directory / "%j.out")
        return self.daemon.run(argv, name=how, cwd=str(ROOT), stdout=logs)

    def submit_neighbour(self) -> int:
        """It trains until `let_go`."""
        return self.submit("train", until=str(self.daemon.directory / GO))

    def let_go(self) -> None:
        (self.daemon.directory / GO).touch()

    def job(self, id: int) -> Any:
        return self.daemon.get(f"/v1/jobs/{id}")

    def await_training(self, *jobs: int) -> None:
        """Until they run on the GPU, by their own word."""
        logs = [self.daemon.directory / f"{id}.out" for id in jobs]
        self.until(
            lambda: all(log.exists() and "trains" in log.read_text() for log in logs),
            f"jobs {jobs} to train",
        )

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_S:.0f} s in vain for {what}")
            time.sleep(LOOK_S)

    def ended(self, id: int, who: str) -> Any:
        """The job once it is over; what is told of it is noted."""
        self.until(lambda: self.job(id)["state"] in OVER, f"the end of job {id}")
        job = self.job(id)
        how = job["exit"]
        self.told.append(
            {
                "who": who,
                "state": job["state"],
                "attempts": [each["cause"] for each in (*job["failures"], how)],
                "evidence": how["evidence"],
                "neighbours": [n for each in job["failures"] for n in each["neighbours"]],
                "advice": job["advice"] or "",
                "notes": job["notes"],
                "shown": _shown(job),
            }
        )
        return job

    def expect(self, who: str, expected: str, observed: str, met: bool | None) -> None:
        check = {"who": who, "expected": expected, "observed": observed, "met": met}
        self.checks.append(check)

    def expect_end(self, id: int, who: str, state: str, cause: str = "success") -> Any:
        """In that state, by that cause of its last attempt."""
        job = self.ended(id, who)
        found = job["state"], job["exit"]["cause"]
        observed = f"{found[0]} ({found[1]})"
        self.expect(who, f"{state} ({cause})", observed, found == (state, cause))
        return job


def _shown(job: Any) -> str:
    """What `carma show` prints."""
    console = Console(file=StringIO(), width=160)
    console.print(render.show(job))
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


# -- out of memory


def storm(lab: Lab, company: int) -> None:
    """All hold a little, meet, and want `SHARE` of the GPU at once: one gets it."""
    meet = lab.daemon.directory / "meet"
    meet.mkdir()
    ids = [
        lab.submit("storm", share=SHARE, company=str(company), meet=str(meet))
        for _ in range(company)
    ]
    jobs = [lab.ended(id, f"job {id}") for id in ids]
    recovered = sum(job["state"] == "succeeded" for job in jobs)
    lab.expect(
        "all", f"{company} succeed", f"{recovered} of {company} succeeded", recovered == company
    )
    ooms = [each for job in jobs for each in job["failures"] if each["cause"] == "gpu_oom"]
    lost = company - 1
    lab.expect("first attempts", f"{lost} run out of memory", f"{len(ooms)} did", len(ooms) == lost)
    failed = [each["cause"] for job in jobs for each in job["failures"]]
    others = sorted(set(failed) - {"gpu_oom"})
    lab.expect("other failures", "none", ", ".join(others) or "none", not others)
    named = sum(bool(each["neighbours"]) for each in ooms)
    lab.expect("who held the memory", "named in each", f"in {named} of {len(ooms)}", named == lost)
    modes = {job["mode"] for job in jobs if job["failures"]}
    lab.expect("second attempts", "exclusive", ", ".join(sorted(modes)), modes == {"exclusive"})


def too_large(lab: Lab) -> None:
    """Nobody is beside it: to try again would be in vain."""
    job = lab.expect_end(
        lab.submit("train", share=1.1), "a job larger than the GPU", "out_of_memory", "gpu_oom"
    )
    tries = 1 + len(job["failures"])
    lab.expect("attempts", "1", str(tries), tries == 1)


# -- crashes and stops


def crash(lab: Lab) -> None:
    """Time-sliced: a fault is its context's alone."""
    beside = lab.submit_neighbour()
    lab.await_training(beside)
    lab.expect_end(lab.submit("crash"), "the job that crashed", "failed", "failure")
    lab.let_go()
    lab.expect_end(beside, "its neighbour", "succeeded")


def crash_mps(lab: Lab) -> None:
    """One server: its clients on that GPU end with the one that faulted; the next job gets a
    server that works."""
    beside = lab.submit_neighbour()
    lab.await_training(beside)
    crashed = lab.expect_end(lab.submit("crash"), "the job that crashed", "failed", "failure")
    lab.expect("its mode", "mps", crashed["mode"], crashed["mode"] == "mps")
    time.sleep(FAULT_S)
    lab.let_go()
    lab.expect_end(beside, "its neighbour", "failed", "failure")
    after = lab.expect_end(lab.submit("train"), "a job submitted afterwards", "succeeded")
    lab.expect("its mode", "mps", after["mode"], after["mode"] == "mps")


def cancel(lab: Lab, how: str = "train") -> None:
    victim = lab.submit(how, seconds=1000)
    beside = lab.submit_neighbour()
    lab.await_training(victim, beside)
    asked = time.time()
    lab.daemon.post("/v1/cancel", {"select": str(victim)})
    job = lab.expect_end(victim, f"the job that was cancelled ({how})", "cancelled", "cancelled")
    took_s = unix(job["ended_at"]) - asked
    signal, due = job["exit"]["signal"], SIGKILL if how == "deaf" else SIGTERM
    lab.expect("ended by", f"signal {due}", f"signal {signal} after {took_s:.1f} s", signal == due)
    if how == "deaf":
        enough = took_s >= lab.grace_s - LOOK_S
        lab.expect("its grace", f"≥ {lab.grace_s:g} s", f"{took_s:.1f} s", enough)
    lab.let_go()
    lab.expect_end(beside, "its neighbour", "succeeded")
    drained = [gpu["state_detail"] for gpu in lab.daemon.get("/v1/gpus")["gpus"] if _drained(gpu)]
    lab.expect("the GPU", "takes jobs", "; ".join(drained) or "takes jobs", not drained)


def _drained(gpu: Any) -> bool:
    return "drain" in gpu["state"]


def killed_daemon(lab: Lab) -> None:
    """kill -9 amid training, and right after a job was accepted."""
    running = lab.submit("train", seconds=4 * lab.seconds)
    lab.await_training(running)
    accepted = lab.submit("train")
    lab.daemon.kill()
    time.sleep(lab.seconds)
    lab.daemon.start()
    for id, who in ((running, "the job that ran"), (accepted, "the job accepted just before")):
        job = lab.expect_end(id, who, "succeeded")
        lab.expect(f"{who}: attempts", "1", str(job["attempt"]), job["attempt"] == 1)
        begun = (lab.daemon.directory / f"{id}.out").read_text().count("trains")
        lab.expect(f"{who}: it began", "1 time", f"{begun} time(s)", begun == 1)


# -- the host's memory


def host_oom(lab: Lab) -> None:
    """The kernel's OOM killer strikes in the job's cgroup: its unit's, or one for the daemon and
    all that it starts, as a container has it."""
    with contextlib.nullcontext() if units.available() else bounded(lab.daemon):
        job = lab.ended(lab.submit("host-oom"), "the job")
    if job["exit"]["code"] == UNTOLD:
        lab.expect("the job", "failed (host_oom)", job["exit"]["evidence"], None)
        return
    found = job["state"], job["exit"]["cause"]
    observed = f"{found[0]} ({found[1]})"
    lab.expect("the job", "failed (host_oom)", observed, found == ("failed", "host_oom"))
    alive = lab.daemon.get("/v1/health")["status"]
    lab.expect("the daemon", "lives", alive, alive == "ok")


@contextlib.contextmanager
def bounded(daemon: Daemon) -> Iterator[None]:
    """The daemon in a cgroup of its own, where one can be made: elsewhere the job says so."""
    cgroup = CGROUPS / f"carma-visit-{daemon.pid}"
    try:
        if (CGROUPS / "cgroup.controllers").exists():  # else it is no cgroup v2
            cgroup.mkdir()
            (CGROUPS / "cgroup.subtree_control").write_text("+memory")
            (cgroup / "cgroup.procs").write_text(str(daemon.pid))
    except OSError as error:
        print(f"the daemon has no cgroup of its own: {error}", file=sys.stderr)
    try:
        yield
    finally:
        if cgroup.exists():
            with contextlib.suppress(OSError):
                (CGROUPS / "cgroup.procs").write_text(str(daemon.pid))
                cgroup.rmdir()


def host_alloc(lab: Lab) -> None:
    lab.expect_end(lab.submit("host-alloc"), "the job", "failed", "host_oom")


CASES: Sequence[Case] = (
    Case("storm of 2", "2 jobs that together do not fit", partial(storm, company=2)),
    Case("crash", "a fault beside a neighbour, time-sliced", crash, 0.4),
    Case("crash under MPS", "a fault beside a client of the same server", crash_mps, mps=True),
    Case("daemon killed", "kill -9 of carmad amid training", killed_daemon),
    Case("deaf", "a job that ignores SIGTERM is cancelled", partial(cancel, how="deaf")),
    Case("cancel", "a busy job is cancelled beside a neighbour", cancel),
    Case("cancel under MPS", "the same beside a client of the same server", cancel, mps=True),
    Case("too large", "a job that needs more than the GPU has", too_large),
    Case("host memory refused", "PyTorch's allocator on the host fails", host_alloc),
    Case("host OOM", "the kernel kills a job that takes the host's memory", host_oom),
    Case("storm of 3", "3 jobs that together do not fit", partial(storm, company=3), 0.7),
    Case("storm of 4", "4 jobs that together do not fit", partial(storm, company=4), 0.9),
)
