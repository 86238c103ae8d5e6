"""What stage `suspend` tries: each case is a check like those of the self-test, whose processes it
uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import psutil

from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.cuda_state import State
from carmad.selftest import suspending as ours
from carmad.selftest.bench import NEAR_MIB, Bench, Probe, ProbeFailed
from carmad.selftest.facts import Check, Fact
from carmad.selftest.report import Seen, judge, unknown
from carmad.selftest.suspending import fill
from lab.hardware import memory_limits, training
from lab.selftest import suspending, suspension
from lab.selftest.memory import lists_pids
from lab.selftest.suspension import Caller, refusal

SIZES_GIB = (1, 10, 40)
GIB = 1024  # MiB
SPARE_MIB = 2 * GIB  # of the host and of the GPU, beside what is suspended
TRAINED, REHEARSED = "resnet18-b32", "mlp1024x4-b128"
WORKERS = 2  # of the data loader
TIMES = 5  # that a training is suspended
STEPS = 8  # between two suspensions, at least
READY_WITHIN_S = 100.0  # a first import of PyTorch takes long
STEP_WITHIN_S = 30.0  # with the time in which it is suspended
WITHIN_S = 60.0  # of a suspension
LOCK_WITHIN_S = 10.0
KILLED_MIB = 4096
GONE_WITHIN_S = 10.0
# A training of a rehearsal has a context of the fake driver, which can be suspended, and trains on
# the processor.
WITH_CONTEXT = """\
import runpy, sys
from carmad.selftest.probe import Cuda
cuda = Cuda()
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def is_rehearsal() -> bool:
    """Whether the driver is the tests' fake."""
    return "FAKE_GPU" in os.environ


# -- how long it takes -----------------------------------------------------------------------------


def of_size(gib: int, bench: Bench) -> Seen:
    mib = gib * GIB
    if why := refusal(bench) or lack_of_room(bench, mib):
        return unknown(why)
    its = suspension.run_cycle(bench, mib)
    return judge(
        not its.fault,
        its.fault or "its memory is free meanwhile, and has the same contents afterwards",
        held_mib=its.held_mib,
        lock_s=its.lock_s,
        checkpoint_s=its.checkpoint_s,
        restore_s=its.restore_s,
        unlock_s=its.unlock_s,
        host_mib=its.host_mib,
        taken_mib=its.taken_mib,
    )


def lack_of_room(bench: Bench, mib: int) -> str:
    """Why so much cannot be suspended here; "" if it can."""
    for whose, free_mib in (
        ("the GPU", bench.memory()[1]),
        ("the host", psutil.virtual_memory().available >> 20),
    ):
        if free_mib < mib + SPARE_MIB:
            return f"of {whose}'s memory, only {free_mib} MiB are free"
    return ""


# -- what is computed ------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """A training that prints its losses."""

    program: Probe
    losses: list[str] = field(default_factory=list)

    def go_on(self, since: float) -> None:
        """Until it has trained STEPS steps since then. Raises ProbeFailed."""
        left = STEPS
        while left:
            left -= self._hear() >= since

    def reach(self, count: int) -> None:
        """Until it has printed so many losses. Raises ProbeFailed."""
        while len(self.losses) < count:
            self._hear()

    def _hear(self) -> float:
        """Take up the next loss. Returns when it was computed."""
        while (line := self.program.answer(STEP_WITHIN_S)).get("event") != "loss":
            pass
        self.losses.append(line["loss"])
        at: float = line["at"]
        return at

    def await_ready(self) -> None:
        while self.program.answer(READY_WITHIN_S).get("event") != "ready":
            pass

    def pids(self) -> set[int]:
        root = psutil.Process(self.program.pid)
        return {root.pid, *(each.pid for each in root.children(recursive=True))}


def start(bench: Bench, workers: int = 0) -> Run:
    rehearsed = is_rehearsal()
    program, *words = training.command(REHEARSED if rehearsed else TRAINED, rehearse=rehearsed)
    before = ["-c", WITH_CONTEXT] if rehearsed else []
    command = [program, *before, *words, "--losses", "--steps=1000000", f"--workers={workers}"]
    return Run(bench.run(command, bench.environment()))


def same_losses(workers: int, processes: int, bench: Bench) -> Seen:
    """Trainings that are suspended again and again, together, and two that are not: all at once."""
    if why := refusal(bench):
        return unknown(why)
    job = [start(bench, workers) for _ in range(processes)]
    others = [start(bench, workers) for _ in range(2)]
    for each in (*job, *others):
        each.await_ready()
    took_s: list[float] = []
    most = 0
    for _ in range(TIMES):
        now = time.monotonic()
        for each in job:
            each.go_on(now)
        begun = time.monotonic()
        suspended, why = suspend_once(lambda: set().union(*(each.pids() for each in job)))
        took_s.append(time.monotonic() - begun)
        if why:
            return judge(False, f"after {len(took_s) - 1} suspensions: {why}")
        most = max(most, suspended)
    now = time.monotonic()
    for each in job:
        each.go_on(now)
    count = min(len(each.losses) for each in job)
    for each in others:
        each.reach(count)
    plain, again = (each.losses[:count] for each in others)
    if plain != again:
        return unknown("two trainings that were not suspended have other losses, too")
    same = all(each.losses[:count] == plain for each in job)
    return judge(
        same and most == processes,
        f"suspended {TIMES} times (processes: {most}): {count} losses are"
        f" {'equal to the last bit' if same else 'not the same'}",
        losses=count,
        suspensions=len(took_s),
        processes=most,
        cycle_s=sum(took_s) / len(took_s),
    )


def suspend_once(find_pids: Callable[[], Collection[int]]) -> tuple[int, str]:
    """How many processes were suspended and resumed as a job is; and what went wrong."""
    checkpoints = Checkpoints()
    outcome = checkpoints.suspend(find_pids, LOCK_WITHIN_S, WITHIN_S)
    if not outcome.done:
        return 0, f"it is not suspended: {outcome.why}"
    pids = find_pids()
    states = list(checkpoints.states(pids).values())
    outcome = checkpoints.resume(pids, (), WITHIN_S)
    return states.count(State.CHECKPOINTED), outcome.why and f"it does not resume: {outcome.why}"


# -- processes of other kinds, and their end -------------------------------------------------------


def managed(bench: Bench) -> Seen:
    """Whatever comes of it must not be wrong contents, nor a process that cannot go on."""
    if why := refusal(bench):
        return unknown(why)
    probe, caller = bench.probe(), Caller(bench)
    crc = probe.ask("managed", mib=ours.WRITTEN_MIB)["crc"]
    before = bench.memory()[0]
    said = ""
    try:
        caller.lock(probe)
        caller.checkpoint(probe)
        freed_mib = before - bench.memory()[0]
        caller.restore(probe)
        caller.unlock(probe)
    except ProbeFailed as error:
        said, freed_mib = str(error), 0
    state = caller.state(probe)
    if state is State.LOCKED:
        caller.unlock(probe)
        state = caller.state(probe)
    if state is not State.RUNNING:
        return judge(False, f"{said}; the process is {state}", state=state)
    same = probe.ask("read")["crc"] == crc
    seen = f"refused ({said})" if said else f"suspended, {freed_mib} MiB are free meanwhile"
    return judge(
        same,
        f"{seen}; it goes on, its contents are {'the same' if same else 'not the same'}",
        refused=bool(said),
        freed_mib=freed_mib,
    )


def killed(bench: Bench) -> Seen:
    if why := refusal(bench) or lack_of_room(bench, bench.mib(KILLED_MIB)):
        return unknown(why)
    has_pids = lists_pids(bench)
    before = bench.memory()[0]
    probe, _ = fill(bench, bench.mib(KILLED_MIB))
    caller = Caller(bench)
    caller.lock(probe)
    caller.checkpoint(probe)
    begun = time.monotonic()
    probe.kill()
    ended_s = time.monotonic() - begun
    back = before + NEAR_MIB
    free = bench.until(lambda its: (its.memory_used_mib or 0) <= back, GONE_WITHIN_S)
    listed = has_pids and bench.use(probe) is not None
    state = caller.state(probe)
    other = bench.probe()
    other.ask("spin", s=0.1)
    return judge(
        bool(free) and not listed and state is State.NONE,
        f"it ended after {ended_s:.1f} s; the GPU's memory is {'free' if free else 'not free'},"
        f" the process is {'still' if listed else 'not'} listed, its state is {state}; a new"
        " process runs",
        ended_s=ended_s,
        free=bool(free),
        state=state,
    )


# -- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    asked: str  # for the page
    check: Check
    takes_s: float  # on a GPU, by estimate

    @property
    def fact(self) -> Fact:
        return Fact(self.name, "", self.check)


def _sizes() -> Iterator[Case]:
    for gib, takes_s in zip(SIZES_GIB, (8.0, 20.0, 45.0), strict=True):
        asked = f"{gib} GiB: out and in, with the same contents"
        yield Case(f"{gib} GiB", asked, partial(of_size, gib), takes_s)


SIZES: Sequence[Case] = tuple(_sizes())
CASES: Sequence[Case] = (
    *SIZES,
    Case(
        "data loader",
        f"a training with {WORKERS} workers of a data loader and pinned memory, suspended"
        f" {TIMES} times, has the losses of one that was not",
        partial(same_losses, WORKERS, 1),
        35.0,
    ),
    Case("killed", "a process that is killed while it is suspended leaves nothing", killed, 8.0),
    Case(
        "training",
        "the same without a data loader",
        partial(same_losses, 0, 1),
        30.0,
    ),
    Case(
        "two processes",
        "two trainings that are suspended together, as processes of one job",
        partial(same_losses, 0, 2),
        35.0,
    ),
    Case("MPS", "a client of MPS is refused, and goes on", suspending.mps_client, 8.0),
    Case(
        "managed memory",
        "a process with managed memory (UVM) goes on unharmed",
        managed,
        6.0,
    ),
    Case(
        "another GPU",
        "a process moves to another GPU of its kind",
        ours.moves,
        8.0,
    ),
    Case(
        "memory limits",
        "a cgroup's hard limit is kept, can be changed, and its soft limit is left free by others",
        partial(memory_limits.check, False),
        15.0,
    ),
    Case(
        "memory limits under MPS",
        "the same of a client of MPS",
        partial(memory_limits.check, True),
        20.0,
    ),
)
