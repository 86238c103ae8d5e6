"""Stage `cost`: what CARMA takes of a training step, of the processor, and of a job's start.

A tick a second is too short to see in the time of one step, so a training is watched while the
daemon is stopped and continued in turn (SIGSTOP), and what is compared are the mean steps of
neighbouring phases. That keeps clocks, memory and kernels the same; the daemon's session with the
driver stays open in both. What a process of its own makes a difference to, the supervisor and MPS,
is compared over whole runs, in turn; they are too few for an interval, or for a verdict.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random

from benchmarks.daemon.carmad import Daemon, plain_environment
from benchmarks.harness import Row, bullets, of_runs, row_table, summary
from carmad.api.wire import unix
from carmad.config import Collocation, Monitor, Settings
from carmad.core.jobs.states import ENDED, JobState
from lab.hardware import pool, training
from lab.hardware.machine import end, has_mps, refuse_beside_another, running
from lab.hardware.training import Trained
from lab.hardware.visit import Entry, Portion, Stage, Visit

GOAL = 0.5  # % of a step
SHORT, LONG = "resnet18-b32", "vit_base_patch16_224-b32"
WHOLE = "resnet50-b64-nobench"  # cudnn.benchmark may choose other kernels in each process
REHEARSED = "mlp1024x4-b128"
PHASE_S, PAIRS = 2.0, 10
EDGE_S = 0.1  # of a phase, that is left out: the signal, and the step under way
SETTLE_S = 1.0  # after it was continued: it catches up
TICKS_S = 10.0
RUN_S, ROUNDS = 8.0, 3
READY_WITHIN_S = 120.0
END_WITHIN_S = 120.0
PARTS = (
    Portion("the daemon stopped and continued", 3.7),  # and 1.2 more with DCGM
    Portion("whole runs, two turns", 2.3),
    Portion("whole runs, a third turn", 1.2),
)
LIVE = frozenset(set(JobState) - ENDED)
RESAMPLED = 4000
START = 'date +%s%N; exec "$@"'  # the job's first act


@dataclass(frozen=True, slots=True)
class Times:
    phase_s: float = PHASE_S
    pairs: int = PAIRS
    ticks_s: float = TICKS_S
    run_s: float = RUN_S
    rounds: int = ROUNDS


def measure(visit: Visit) -> None:
    refuse_beside_another(visit)
    times = Times(0.5, 2, 1.0, 0.5, 1) if visit.rehearse else Times()
    takes_s = 2 * times.pairs * times.phase_s + times.ticks_s + 20
    for name, source in visit.todo(watched(visit), "paused/{0[0]}/{0[1]}".format, takes_s):
        keep(visit, f"paused/{name}/{source}", partial(paused, visit, times, name, source))
    turns = [(how, turn) for turn in range(times.rounds) for how in runs(visit)]
    for how, turn in visit.todo(turns, "run/{0[0]}/{0[1]}".format, times.run_s + 20):
        keep(visit, f"run/{how}/{turn}", partial(one_run, visit, times, how))


def keep(visit: Visit, key: str, measured: Callable[[], Entry]) -> None:
    """One that fails does not keep the others from being measured."""
    print(f"cost: {key}", file=sys.stderr, flush=True)
    try:
        found = measured()
    except Exception as error:  # noqa: BLE001 - it is told on the page
        found = {"failed": f"{type(error).__name__}: {error}"[:300]}
    visit.keep(key, found)


def outside(visit: Visit) -> dict[str, str]:
    """The environment of a training that is no job."""
    return plain_environment() | pool.on(visit.gpu)


def watched(visit: Visit) -> list[tuple[str, str]]:
    """Trainings, and the source of telemetry that the daemon reads once a second meanwhile."""
    if visit.rehearse:
        return [(REHEARSED, "emulated")]
    sources = ("nvml", "gpm", *(["dcgm"] if shutil.which("dcgmi") else []))
    return [*((SHORT, source) for source in sources), (LONG, "auto")]


def runs(visit: Visit) -> Sequence[str]:
    return ("alone", "job", *(["job under MPS"] if has_mps(visit) else []))


def settings(source: str = "auto", mps: bool = False) -> Settings:
    """The daemon looks once a second, as it does by default."""
    monitor = Monitor(source="auto" if source == "emulated" else source)
    return Settings(estimator="declared", monitor=monitor, collocation=Collocation(mps=mps))


# -- one training, the daemon stopped and continued


def paused(visit: Visit, times: Times, name: str, source: str) -> Entry:
    seconds = (2 * times.pairs + 2) * times.phase_s + SETTLE_S + times.ticks_s
    command = training.command(name, seconds=seconds, rehearse=visit.rehearse)
    with running(visit, settings(source)) as daemon, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=outside(visit), stdout=output)
        try:
            await_ready(process, output.fileno())
            phases = list(alternate(daemon, times))
            tick_s = per_tick(daemon, times.ticks_s)
            process.wait(timeout=seconds + 60)
            output.seek(0)
            trained = training.parse(output.read())
        finally:
            end(process)
        provides = daemon.get("/v1/gpus")["source"]["provides"]
    return {
        "workload": name,
        "source": source,
        "provides": provides,
        "step_s": trained.step_s,
        "stopped_s": [mean_step_s(trained, *phase) for phase in phases[0::2]],
        "running_s": [mean_step_s(trained, *phase) for phase in phases[1::2]],
        "cpu_ms_per_tick": 1000 * tick_s,
    }


def await_ready(process: subprocess.Popen[bytes], output: int) -> None:
    """Until its first window is under way."""
    deadline = time.monotonic() + READY_WITHIN_S
    while b'"ready"' not in os.pread(output, 1 << 20, 0):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the training is not ready after {READY_WITHIN_S:g} s")
        if process.poll() is not None:
            raise RuntimeError(f"the training ended with {process.returncode}")
        time.sleep(0.05)


def alternate(daemon: Daemon, times: Times) -> Iterator[tuple[float, float]]:
    """Stopped, running, …, stopped: when each phase began and ended (monotonic). What the daemon
    has started, such as dcgmi, stops and goes on with it."""
    try:
        for phase in range(2 * times.pairs + 1):
            os.killpg(daemon.pid, signal.SIGCONT if phase % 2 else signal.SIGSTOP)
            begun = time.monotonic()
            time.sleep(times.phase_s)
            yield begun + EDGE_S, time.monotonic()
    finally:
        os.killpg(daemon.pid, signal.SIGCONT)


def mean_step_s(trained: Trained, begun: float, ended: float) -> float:
    """Of the steps within that time. The mean, for a tick slows one step of many, which no median
    would show. The first step of a window, which begins with an empty queue, is left out."""
    steps = [
        after - before
        for window in trained.windows
        for before, after in pairwise(window.ended)
        if begun <= before and after <= ended
    ]
    if not steps:
        raise RuntimeError("no step fits into a phase: the workload is too slow")
    return statistics.fmean(steps)


def per_tick(daemon: Daemon, seconds: float) -> float:
    """Seconds of processor time of the daemon's for each reading of the GPUs."""
    time.sleep(SETTLE_S)
    before, begun = cpu_s(daemon), time.monotonic()
    time.sleep(seconds)
    took_s = cpu_s(daemon) - before
    return took_s / (time.monotonic() - begun) * Monitor().period_s


def cpu_s(daemon: Daemon) -> float:
    """By its clock, or where a sandbox has none of other processes, in hundredths of a second."""
    try:
        return time.clock_gettime(~daemon.pid << 3 | 2)  # clock_getcpuclockid(3)
    except OSError:
        return daemon.cpu_s()


# -- whole runs


def one_run(visit: Visit, times: Times, how: str) -> Entry:
    """Its steps, and for a job when its program and its first kernel began."""
    name = REHEARSED if visit.rehearse else WHOLE
    command = training.command(name, seconds=times.run_s, rehearse=visit.rehearse)
    argv = ["/bin/sh", "-c", START, "sh", *command]
    if how == "alone":
        sent = time.time()
        return steps_of(output_of(argv, outside(visit)), sent)
    with running(visit, settings(mps=how == "job under MPS")) as daemon:
        log = daemon.directory / "log"
        sent = time.time()
        id = daemon.run(argv, stdout=str(log), stderr="/dev/null")
        await_end(daemon, id)
        job = daemon.get(f"/v1/jobs/{id}")
        if job["state"] != "succeeded":
            raise RuntimeError(f"the training ended as {job['state']}: {job['exit']}")
        kernel = job["gpus"][0]["first_kernel_at"]
        seen_s = unix(kernel) - sent if kernel else None
        return {**steps_of(log.read_text(), sent), "mode": job["mode"], "seen_s": seen_s}


def output_of(argv: Sequence[str], env: dict[str, str]) -> str:
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=END_WITHIN_S)
    finally:
        end(process)
    if process.returncode:
        raise RuntimeError(f"the training ended with {process.returncode}")
    return output


def await_end(daemon: Daemon, id: int) -> None:
    """Asking seldom: the daemon's answers are not what is measured."""
    deadline = time.monotonic() + END_WITHIN_S
    while daemon.state(id) in LIVE and time.monotonic() < deadline:
        time.sleep(1.0)


def steps_of(output: str, sent: float) -> Entry:
    """`sent`: when it was started or submitted, by the wall clock."""
    trained = training.parse(output)
    begun = int(output.partition("\n")[0]) / 1e9
    warm = trained.windows[0].began + time.time() - time.monotonic()
    return {
        "step_s": trained.step_s,
        "mean_s": statistics.fmean(trained.steps),
        "program_s": begun - sent,
        "warm_s": warm - sent,
    }


# -- the page


def blocks(visit: Visit) -> list[str]:
    entries = visit.entries()
    kept = {key: entry for key, entry in entries.items() if "failed" not in entry}
    failed = [f"{key}: {entry['failed']}" for key, entry in entries.items() if key not in kept]
    rows = [
        row for key, entry in kept.items() if key.startswith("paused/") for row in _paused(entry)
    ]
    rows += _runs(kept)
    return [
        *((row_table(rows), summary(rows)) if rows else ()),
        *(("## Not measured", bullets(failed)) if failed else ()),
        METHOD,
    ]


METHOD = """\
A phase with the daemon running is compared with the phases before and after it, in which the daemon
was stopped, by the mean step; `runs` is the 95 % interval (bootstrap) of the median ratio. A whole
run is compared with that alone of the same turn; `runs` is the range, and nothing is judged."""


def _paused(entry: Entry) -> Iterator[Row]:
    what = f"{entry['source']} once a second, beside {entry['workload']}"
    between = [statistics.fmean(both) for both in pairwise(entry["stopped_s"])]
    ratios = _ratios(entry["running_s"], between)
    yield _slower("of a step", what, ratios, entry["step_s"])
    yield Row("processor", f"{what}: a tick", entry["cpu_ms_per_tick"], "ms")


def _runs(kept: dict[str, Entry]) -> Iterator[Row]:
    def of(how: str, what: str) -> list[float]:
        return [entry[what] for entry in _turns(kept, how).values() if entry[what] is not None]

    alone = _turns(kept, "alone")
    for how in ("job", "job under MPS"):
        its = _turns(kept, how)
        both = [turn for turn in its if turn in alone]
        if not both:
            continue
        slower = [_percent(its[turn]["mean_s"] / alone[turn]["mean_s"]) for turn in both]
        note = f"range of {len(both)} pairs, a step takes {1000 * alone[both[0]]['mean_s']:.1f} ms"
        yield of_runs("of a step", f"{how}, against alone", slower, "%", note=note)
        group = f"start of a {how}"
        yield of_runs(group, "submit to its program", _ms(of(how, "program_s")), "ms")
        yield of_runs(group, "program to warm: its own", _ms(_warm(kept, how)), "ms")
        if seen := of(how, "seen_s"):
            note = "first kernel as the daemon sees it, once a second"
            yield of_runs(group, "submit to RUNNING", _ms(seen), "ms", note=note)


def _warm(kept: dict[str, Entry], how: str) -> list[float]:
    return [entry["warm_s"] - entry["program_s"] for entry in _turns(kept, how).values()]


def _turns(kept: dict[str, Entry], how: str) -> dict[str, Entry]:
    """The runs of that kind, by turn."""
    prefix = f"run/{how}/"
    return {key.removeprefix(prefix): kept[key] for key in kept if key.startswith(prefix)}


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1000 * value for value in seconds]


def _slower(group: str, what: str, ratios: Sequence[float], step_s: float) -> Row:
    low, high = interval(ratios)
    return Row(
        group,
        what,
        _percent(statistics.median(ratios)),
        "%",
        bound=GOAL,
        spread=(_percent(low), _percent(high)),
        note=f"95 % interval of {len(ratios)} pairs, a step takes {1000 * step_s:.1f} ms",
    )


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def _ratios(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of neighbours in time."""
    return [one / other for one, other in zip(some, others, strict=False)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap's 95 % confidence interval of their median."""
    dice = Random(0)
    medians = sorted(
        statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLED)
    )
    return medians[int(0.025 * RESAMPLED)], medians[int(0.975 * RESAMPLED)]


STAGE = Stage(
    "cost",
    "What CARMA takes of a training step, of the processor, and of a job's start",
    PARTS,
    ("torch", "timm"),
    measure,
    blocks,
)
