"""What is measured of the systems: jobs, one and many; listings; daemons. And CARMA's goals."""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.harness import markdown_table, verdict
from carmad.readable import number
from lab.peers.system import LONG, System, python_ms
from lab.peers.systems import Carma, GflowProcess, Spooler

GPUS = 8
GOES = 2  # in each, every system takes its turn
STARTS = 3  # of a job, in a go
ROUNDS = 9  # of a command
MANY = 300
SINGLE = 200
CLIENTS = 8
WITHIN_S = 20.0  # what has not run by then is not waited for
SLOW_S = 10.0  # who takes longer takes part in one go only
SETTLE_S = 2.0  # for what follows the submission or the end of jobs: to be idle again
NEAR_EMPTY = 2 * ROUNDS + 2  # jobs in line: enough to hold and cancel one each time
CANCELLED = 5_000
PY = "py"
LISTINGS = ("queue", "queue, as JSON")
FOR_SCRIPTS = ("submit", *LISTINGS, "cancel")  # called by the thousand
GOAL_FOR_SCRIPTS, GOAL_FOR_PEOPLE, GOAL_OF_MANY = (7.0, PY), (20.0, PY), (500.0, "")
PROCESS = GflowProcess.name

Runs = dict[str, dict[str, list[float]]]  # by what was measured, and by system


@dataclass(frozen=True, slots=True)
class Line:
    """A number of each system that has it."""

    COMPUTED: ClassVar = ("met",)
    what: str
    unit: str
    values: Mapping[str, float]  # by system
    py_ms: float = 0.0  # `python -c pass` in the same go; 0: this is no time to compare with it
    goal: float | None = None
    than: str = ""  # the goal is a multiple of this: PY, or a system; "": of the unit
    least: bool = False

    @property
    def met(self) -> bool | None:
        """None: there is no goal, or nothing to compare with."""
        unit = self.py_ms if self.than == PY else self.values.get(self.than) if self.than else 1.0
        if self.goal is None or not unit or Carma.name not in self.values:
            return None
        value = self.values[Carma.name]
        return value >= self.goal * unit if self.least else value <= self.goal * unit

    def describe_goal(self) -> str:
        if self.goal is None:
            return ""
        unit = f"× {self.than}" if self.than else self.unit
        return f"{'≥' if self.least else '≤'} {self.goal:g} {unit}"

    def cell(self, name: str) -> str:
        if name not in self.values:
            return ""
        value = f"{number(self.values[name])} {self.unit}"
        return f"{short(self.values[name] / self.py_ms)} × ({value})" if self.py_ms else value

    def cells(self, names: Sequence[str]) -> tuple[str, ...]:
        first, *others = map(self.cell, names)
        py = f"{self.py_ms:.1f} ms" if self.py_ms else ""
        return self.what, self.describe_goal(), first, verdict(self.met), *others, py


def short(value: float) -> str:
    """With three digits, or as a whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(lines: Sequence[Line], titles: Mapping[str, str]) -> str:
    first, *others = titles.values()
    rows = [line.cells(list(titles)) for line in lines]
    return markdown_table(["", "goal", first, "", *others, PY], rows)


def summarize(lines: Sequence[Line]) -> str:
    judged = [line for line in lines if line.met is not None]
    missed = [line.what for line in judged if not line.met]
    text = f"CARMA meets {len(judged) - len(missed)} of {len(judged)} goals"
    return text + (f"; MISSED: {'; '.join(missed)}" if missed else "") + "."


# -- one system at a time: how soon jobs start, how many, and what they cost


def measure_jobs(
    kinds: Sequence[type[System]], goes: int = GOES, many: int = MANY, single: int = SINGLE
) -> list[Line]:
    runs: Runs = defaultdict(lambda: defaultdict(list))
    slow: set[str] = set()
    for _ in range(goes):
        for kind in kinds:
            runs[PY][PY] += [python_ms() for _ in range(STARTS)]
            with kind(GPUS) as system:
                for _ in range(STARTS):
                    runs["sh"][kind.name].append(system.started_ms(python=False))
                    runs["python"][kind.name].append(system.started_ms(python=True))
                time.sleep(SETTLE_S)
                runs["idle"][kind.name].append(system.pss_mb())
                runs["start"][kind.name].append(system.start_s * 1000)
                if kind.name in slow:
                    continue
                rate, cpu_ms = measure_array(system, many)
                runs["rate"][kind.name].append(rate)
                runs["array cpu"][kind.name].append(cpu_ms)
            with kind(GPUS) as system:
                accepted_ms, cpu_ms = measure_burst(system, single)
                runs["accepted"][kind.name].append(accepted_ms)
                runs["single cpu"][kind.name].append(cpu_ms)
                runs["start"][kind.name].append(system.start_s * 1000)
            if rate < many / SLOW_S:
                slow.add(kind.name)
    py_ms = statistics.median(runs[PY][PY])

    def line(what: str, name: str, unit: str = "ms", **more: Any) -> Line:
        return Line(what, unit, _medians(runs[name]), py_ms if unit == "ms" else 0.0, **more)

    cpu = "ms of CPU"
    return [
        line("a Python job: submission to first instruction", "python", goal=5, than=PY),
        line("a job of /bin/sh: the same", "sh", goal=1.5, than=PROCESS),
        line(f"{single} submissions by {CLIENTS} clients", "accepted", goal=1, than=PROCESS),
        line(f"{many} jobs at once, {GPUS} slots", "rate", "jobs/s", goal=80, least=True),
        line("processor time of one of these jobs", "array cpu", cpu, goal=10),
        line("the same, submitted singly", "single cpu", cpu, goal=15),
        line("daemon: start", "start", goal=1500),
        line("daemon: memory, idle", "idle", "MB", goal=95),
    ]


def _medians(runs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in runs.items()}


def measure_array(system: System, many: int) -> tuple[float, float]:
    """Jobs per second, and processor time in ms of each, without the client's."""
    before, begun = system.cpu_s(), time.monotonic()
    client_ms = system.submit_many(_mark(system), many)
    ran, taken_s = _await_marks(system, many, begun)
    return ran / taken_s, _cpu_ms(system, before, client_ms) / ran


def measure_burst(system: System, single: int) -> tuple[float, float]:
    """How many ms until all are accepted, and processor time in ms of each, without clients'."""
    words = system.submission(_mark(system), options=system.slot())
    before, begun = system.cpu_s(), time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = list(pool.map(lambda _: system.run(words), range(single)))
    accepted_ms = (time.monotonic() - begun) * 1000
    ran, _ = _await_marks(system, single, begun)
    client_ms = sum(client.cpu_ms for client in clients)
    return accepted_ms, _cpu_ms(system, before, client_ms) / ran


def _mark(system: System) -> list[str]:
    return ["/bin/sh", "-c", f"echo >> {system.out}/ran"]


def _await_marks(system: System, most: int, begun: float) -> tuple[int, float]:
    """How many jobs have run, and when that was known."""
    file = system.out / "ran"
    while True:
        ran = file.stat().st_size if file.exists() else 0
        taken_s = time.monotonic() - begun
        if ran >= most or (taken_s > WITHIN_S and ran):
            return ran, taken_s
        time.sleep(0.005)


def _cpu_ms(system: System, before: float, client_ms: float) -> float:
    time.sleep(SETTLE_S)
    return (system.cpu_s() - before) * 1000 - client_ms


# -- all systems at once, with jobs that wait: commands


def measure_commands(
    kinds: Sequence[type[System]], rounds: int = ROUNDS, sizes: tuple[int, int] = (1_000, 10_000)
) -> list[Line]:
    lines: list[Line] = []
    few, most = sizes
    with ExitStack() as stack:
        systems = [stack.enter_context(kind(GPUS)) for kind in kinds]
        for system in systems:
            system.block()
        jobs = {system.name: system.fill(NEAR_EMPTY) for system in systems}
        lines += _time(systems, "near-empty", jobs, rounds)
        lines += _time_arrays(systems, few, rounds)
        for system in systems:
            jobs[system.name] += system.fill(few)
        lines += _time(systems, f"{few:,} jobs in line", jobs, rounds)
        values = {system.name: system.pss_mb() for system in systems}
        lines.append(Line(f"daemon: memory, {few:,} jobs in line", "MB", values))
        able = [system for system in systems if not isinstance(system, Spooler)]
        for system in able:
            system.clear(jobs[system.name])
        lines += _time_arrays(able, most, rounds, GOAL_OF_MANY)
        lines += measure_cancel([system for system in able if system.folds])
        with ThreadPoolExecutor() as pool:
            filled = list(pool.map(lambda system: system.fill(most), able))
        jobs = {system.name: added for system, added in zip(able, filled, strict=True)}
        lines += _time(able, f"{most:,} jobs in line", jobs, rounds, LISTINGS, GOAL_OF_MANY)
    return lines


def _time(
    systems: Sequence[System],
    when: str,
    jobs: Mapping[str, list[str]],
    rounds: int,
    verbs: Sequence[str] = (),
    many: tuple[float, str] | None = None,
) -> Iterator[Line]:
    """Programs take turns, so that what else the machine does meets all of them."""
    time.sleep(SETTLE_S)
    for verb in verbs or systems[0].verbs():
        runs: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            runs[PY].append(python_ms())
            for system in systems:
                if words := system.verbs().get(verb):
                    job = jobs[system.name].pop(0) if "{job}" in words else ""
                    done = system.run([word.replace("{job}", job) for word in words])
                    runs[system.name].append(done.wall_ms)
                    if job and verb not in ("hold", "cancel"):
                        jobs[system.name].append(job)
        values = _medians(runs)
        usual = GOAL_FOR_SCRIPTS if verb in FOR_SCRIPTS else GOAL_FOR_PEOPLE
        yield Line(f"{verb}, {when}", "ms", values, values.pop(PY), *(many or usual))


def _time_arrays(
    systems: Sequence[System], count: int, rounds: int, many: tuple[float, str] | None = None
) -> list[Line]:
    folding = [system for system in systems if system.folds]
    arrays = {system.name: system.fill_array(count) for system in folding}
    when = f"an array of {count:,} in line"
    lines = list(_time(folding, when, arrays, rounds, LISTINGS, many))
    for system in folding:
        system.clear(arrays[system.name])
    return lines


def measure_cancel(systems: Sequence[System], tasks: int = CANCELLED) -> Iterator[Line]:
    """How long a whole array takes to cancel, and how much longer a submission takes meanwhile."""
    taken, longest, py_ms = {}, {}, []
    for system in systems:
        submit = system.submission(LONG, queued=True)
        array = system.fill_array(tasks)
        time.sleep(1.0)
        alone = statistics.median(system.run(submit).wall_ms for _ in range(5))
        py_ms += [python_ms() for _ in range(5)]
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(_repeat, system, submit, over)
            begun = time.monotonic()
            system.clear(array)
            taken[system.name] = (time.monotonic() - begun) * 1000
            over.set()
            longest[system.name] = max(0.0, max(waits.result()) - alone)
    unit = statistics.median(py_ms)
    yield Line(f"cancel an array of {tasks:,}", "ms", taken, unit, 300)
    yield Line("the longest delay of a submission meanwhile", "ms", longest, unit, 50)


def _repeat(system: System, words: list[str], over: threading.Event) -> list[float]:
    waits: list[float] = []
    while not waits or not over.is_set():
        waits.append(system.run(words).wall_ms)
    return waits
