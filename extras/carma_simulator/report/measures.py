"""The runs that a report compares, all reported measures (key for programs, label for people, and
meaning), and the measures of several runs as rows of text: one catalogue for the terminal, the
page, CSV and JSON, which format the numbers themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, groupby
from statistics import median
from typing import Any, Literal

from carma_simulator.experiment import Experiment, Outcome, Physics
from carma_simulator.hardware import Cluster, Node
from carma_simulator.metrics import Bounds, Figures, bounds, figures
from carmad.config import Settings
from carmad.configfile import by_name
from carmad.readable import change, clean, number, time_unit

# -- runs: each with a unique name, its figures and its settings


@dataclass(frozen=True, slots=True)
class Run:
    """One column of a report; the others are compared with the first run."""

    name: str  # unique in the report
    experiment: Experiment
    outcome: Outcome
    figures: Figures
    bounds: Bounds
    cluster: str  # in the form of `--gpus`
    settings: Mapping[str, str]  # those that differ from their defaults, by dotted name


def runs(results: Iterable[tuple[Experiment, Outcome]]) -> tuple[Run, ...]:
    """In the order given. A run is named by its policy and whatever else distinguishes it."""
    found = list(results)
    settings = [_changes(experiment) for experiment, _ in found]
    names = _names([_facets(o, changed) for (_, o), changed in zip(found, settings, strict=True)])
    return tuple(
        Run(
            name=name,
            experiment=experiment,
            outcome=outcome,
            figures=figures(outcome),
            bounds=bounds(outcome),
            cluster=gpus(outcome.cluster),
            settings=changed,
        )
        for name, (experiment, outcome), changed in zip(names, found, settings, strict=True)
    )


def gpus(cluster: Cluster) -> str:
    """The cluster in the form of `--gpus`: 3xA100-40GB, 250x8xV100-32GB, 1xA100-40GB/7x1g.5gb."""
    return ",".join(_merge_equal(f"{node.gpus}x{_kind_text(node)}" for node in cluster.nodes))


def _kind_text(node: Node) -> str:
    profiles = _merge_equal(instance.name.rpartition("/")[2] for instance in node.instances)
    return "/".join(filter(None, (node.kind.name, "+".join(profiles))))


def _merge_equal(words: Iterable[str]) -> list[str]:
    """Consecutive equal words merged: 7x1g.5gb."""
    runs = [(word, sum(1 for _ in alike)) for word, alike in groupby(words)]
    return [word if number == 1 else f"{number}x{word}" for word, number in runs]


def _changes(experiment: Experiment) -> dict[str, str]:
    """The changed settings, without policy and estimator, which have columns of their own."""
    own, usual = _all(experiment.settings, experiment.physics), _all(Settings(), Physics())
    apart = ("policy", "estimator")
    return {
        name: clean(value)
        for name, value in own.items()
        if name not in apart and usual.get(name) != value
    }


def _all(settings: Settings, physics: Physics) -> dict[str, Any]:
    return by_name(settings) | {f"physics.{name}": its for name, its in asdict(physics).items()}


def _facets(outcome: Outcome, changed: Mapping[str, str]) -> dict[str, str]:
    return {
        "policy": clean(outcome.policy),
        "estimator": _or_none(outcome.estimator, "estimator"),
        "interference": _or_none(outcome.interference, "interference"),
        "trace": clean(outcome.trace),
        "gpus": gpus(outcome.cluster),
        "seed": f"seed {outcome.seed}",
        **{name: f"{name}={value}" for name, value in changed.items()},
    }


def _or_none(name: str, what: str) -> str:
    return f"no {what}" if name == "none" else clean(name)


def _names(facets: Sequence[Mapping[str, str]]) -> list[str]:
    names: list[str] = []
    for own in facets:
        like = [other for other in facets if other["policy"] == own["policy"]]
        telling = [own["policy"]] + [
            text
            for facet, text in own.items()
            if facet != "policy" and any(other.get(facet) != text for other in like)
        ]
        name = " ".join(telling)
        numbered = (f"{name} #{n}" for n in count(2))
        names.append(name if name not in names else next(n for n in numbered if n not in names))
    return names


Better = Literal["lower", "higher", ""]
Unit = Literal["s", "share", "times", "MJ", "1/h", "1/s", "jobs", ""]


@dataclass(frozen=True, slots=True)
class Measure:
    key: str  # stable: a column in CSV, a field in JSON
    group: str
    name: str  # of the quantity, for people
    unit: Unit  # of the value: `share` is 0–1, `times` a ratio
    better: Better  # "": neither
    path: str  # from a Run to the value
    meaning: str  # the same for all statistics of a quantity
    statistic: str = ""  # mean, p95, …
    listed: bool = True  # shown in tables for people
    if_any: bool = False  # listed only if some run has a value other than 0

    @property
    def label(self) -> str:
        return f"{self.name} {self.statistic}".rstrip()

    @property
    def of_all_work(self) -> bool:
        """Whether a run looks better if it leaves jobs unfinished."""
        return self.group in (TIME, FAIRNESS) or self.key == "energy_mj"

    def of(self, run: Run) -> float | None:
        """The value in `run`; None if there is nothing to measure."""
        found: Any = run
        for name in self.path.split("."):
            found = None if found is None else getattr(found, name)
        value: float | None = found
        return value


TIME = "Time"
BOUNDS = "Lower bounds"
FAIRNESS = "Fairness"
SIMULATOR = "Simulator"  # the only group that differs between equal runs

_STATISTICS = {  # of a Spread, with their labels
    "mean": "mean",
    "median": "median",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "worst": "worst",
}
_MOST = ("mean", "median", "p95", "p99", "p999")
_TAIL = ("mean", "p95", "worst")


def _spread_measures(
    field: str,
    group: str,
    name: str,
    unit: Unit,
    meaning: str,
    listed: Collection[str],
    if_any: bool = False,
) -> Iterator[Measure]:
    ending = "_s" if unit == "s" else ""
    for statistic, words in _STATISTICS.items():
        yield Measure(
            key=f"{field}_{statistic}{ending}",
            group=group,
            name=name,
            unit=unit,
            better="lower",
            path=f"figures.{field}.{statistic}",
            meaning=meaning,
            statistic=words,
            listed=statistic in listed,
            if_any=if_any,
        )


def _use_measures(path: str, suffix: str, when: str, over: str) -> Iterator[Measure]:
    for field, name, what in (
        ("memory", "memory", "GPU memory in use, as a share of all"),
        ("sm_active", "SMACT", "SM activity"),
        ("sm_occupancy", "SMOCC", "SM occupancy"),
        ("dram_active", "DRAMA", "activity of the memory interface"),
    ):
        yield Measure(
            key=f"{field}{suffix}",
            group="GPUs",
            name=f"{name}{when}",
            unit="share",
            better="higher",
            path=f"figures.{path}.{field}",
            meaning=f"{what}; time-weighted mean over {over}",
        )


def _figure(
    name: str,
    group: str,
    label: str,
    unit: Unit,
    better: Better,
    meaning: str,
    if_any: bool = False,
) -> Measure:
    return Measure(name, group, label, unit, better, f"figures.{name}", meaning, if_any=if_any)


def _bound_measure(name: str, label: str, meaning: str) -> Measure:
    meaning += ". It holds if each job stayed on one kind of GPU"
    return Measure(f"bound_{name}", BOUNDS, label, "s", "", f"bounds.{name}", meaning)


_TIMES = (
    _figure(
        "makespan_s", TIME, "makespan", "s", "lower", "from the first submission to the last end"
    ),
    *_spread_measures(
        "jct", TIME, "JCT", "s", "job completion time: from submission to the end", _MOST
    ),
    *_spread_measures(
        "wait",
        TIME,
        "wait",
        "s",
        "queuing delay: in the queue, before the first and every later attempt",
        _MOST,
    ),
    *_spread_measures(
        "first_wait", TIME, "first wait", "s", "from submission to the first launch", ("mean",)
    ),
    *_spread_measures(
        "execution",
        TIME,
        "execution",
        "s",
        "on GPUs, launch included: the last attempt, and preempted ones that it continued;"
        " JCT = wait + lost + execution",
        _MOST,
    ),
    *_spread_measures(
        "lost",
        TIME,
        "lost",
        "s",
        "in attempts that crashed and were retried, or were preempted before their first kernel",
        ("mean",),
        True,
    ),
    _figure(
        "jobs_per_hour", TIME, "throughput", "1/h", "higher", "finished jobs over the makespan"
    ),
    _figure("queue_mean", TIME, "queue mean", "jobs", "lower", "jobs in the queue, over time"),
    _figure("queue_max", TIME, "queue longest", "jobs", "lower", "most jobs in the queue at once"),
)

_GPUS = (
    _figure("gpus_busy", "GPUs", "busy", "share", "", "share of GPU time with any job on the GPU"),
    *_use_measures("over_makespan", "", "", "all GPUs, up to the last end"),
    *_use_measures("while_busy", "_busy", " while busy", "the GPUs' busy time"),
    _figure(
        "sm_kept",
        "GPUs",
        "SM-busy kept",
        "share",
        "",
        "SM-busy seconds, over those that the same work takes alone; below 1, the model of"
        " interference makes work out of nothing",
        True,
    ),
    _figure("energy_mj", "GPUs", "energy", "MJ", "lower", "of all GPUs, up to the last end"),
)

_JOBS = (
    _figure("jobs", "Jobs", "in the trace", "jobs", "", "submitted"),
    _figure(
        "finished",
        "Jobs",
        "finished",
        "jobs",
        "higher",
        "reached the end that the trace has for them; times and fairness are about these",
    ),
    _figure(
        "errors",
        "Jobs",
        "with an error",
        "jobs",
        "",
        "finished with an error, as in the trace",
        True,
    ),
    _figure(
        "oom_crashes", "Jobs", "OOM crashes", "", "lower", "attempts that ran out of GPU memory"
    ),
    _figure("oom_lost", "Jobs", "lost to OOM", "jobs", "lower", "given up after OOM crashes"),
    _figure("timed_out", "Jobs", "timed out", "jobs", "lower", "ended by their time limit", True),
    _figure(
        "unfinished", "Jobs", "unfinished", "jobs", "lower", "never ended, or ended otherwise", True
    ),
    _figure(
        "preemptions", "Jobs", "preemptions", "", "lower", "attempts ended by the policy", True
    ),
    _figure(
        "shared", "Jobs", "shared a GPU", "jobs", "", "were on a GPU together with another job"
    ),
    _figure(
        "profiled",
        "Jobs",
        "profile known",
        "jobs",
        "",
        "started with a profile, from an earlier run of the same job or their own profiling run",
    ),
    _figure("deadlines", "Jobs", "with deadline", "jobs", "", "with a deadline", True),
    _figure("deadlines_met", "Jobs", "deadlines met", "share", "higher", "of jobs with a deadline"),
)

_FAIRNESS = (
    *_spread_measures(
        "slowdown",
        FAIRNESS,
        "slowdown",
        "times",
        "execution over its duration alone on the GPUs it ended on: the cost of sharing,"
        " preemption, checkpoints and moves. For a job that moved to another kind of GPU, it also"
        " includes the difference between the two",
        _TAIL,
    ),
    *_spread_measures(
        "finish_ratio",
        FAIRNESS,
        "finish ratio",
        "times",
        "ρ = JCT over the job's duration alone on the GPUs it ended on without waiting"
        " (after Themis, NSDI 2020, with the whole request instead of a 1/N share)",
        _TAIL,
    ),
    _figure(
        "jain",
        FAIRNESS,
        "Jain's index",
        "",
        "higher",
        "of ρ: (Σρ)²/(n·Σρ²), 1 if all jobs fare alike (Jain, Chiu and Hawe, 1984)",
    ),
)

_BOUNDS = (
    _bound_measure(
        "jct_mean_s", "no-wait JCT mean", "every finished job at once and alone on its GPUs"
    ),
    _bound_measure(
        "makespan_s",
        "no-wait makespan",
        "every finished job at once and alone on its GPUs: the longest job,"
        " and the last arrival plus its duration",
    ),
    _bound_measure(
        "unshared_makespan_s",
        "unshared makespan",
        "work over capacity: a lower bound for runs that share no GPU. Others may beat it,"
        " as a shared GPU can do more than one job's work at a time",
    ),
)

_SIMULATOR = (
    _figure(
        "events_per_s",
        SIMULATOR,
        "events",
        "1/s",
        "",
        "handled by the core, per second of wall-clock time",
    ),
    _figure(
        "decisions_per_s",
        SIMULATOR,
        "decisions",
        "1/s",
        "",
        "recorded, per second of wall-clock time",
    ),
)

MEASURES: tuple[Measure, ...] = (*_TIMES, *_GPUS, *_JOBS, *_FAIRNESS, *_BOUNDS, *_SIMULATOR)


# -- rows of text, for both the terminal and the page


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    change: str = ""  # against the first run
    best: bool = False  # of those compared, if not all are equal


@dataclass(frozen=True, slots=True)
class Row:
    """One measure in one unit, a cell for each run."""

    measure: Measure
    unit: str
    cells: tuple[Cell, ...]


def measure_rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """The listed measures that have values in these runs; times always, with at least a dash."""
    found = []
    for measure in MEASURES:
        values = [measure.of(run) for run in runs]
        told = [value for value in values if value is not None]
        said = told or measure.group in (TIME, BOUNDS)
        if measure.listed and (any(told) if measure.if_any else said):
            unit, scale = _unit(measure, told)
            cells = _cells(values, scale, measure.better, _comparable(measure, runs))
            found.append(Row(measure, unit, cells))
    return tuple(found)


def measure_notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What the figures of some runs do not show by themselves, and which runs."""
    unshared = [run for run in runs if not run.figures.shared]
    told = {
        "time, energy and fairness are not compared if fewer jobs finished": [
            run for run in runs if not _did_most(run, runs)
        ],
        "there is no makespan, nor anything derived from it, if some jobs never end": [
            run for run in runs if run.figures.makespan_s is None
        ],
        "no GPU was shared": unshared,
        "no job started with a known profile, and a policy that needs one does not share": [
            run for run in unshared if run.figures.profiled == 0
        ],
    }
    return tuple(
        f"{why}: {', '.join(run.name for run in these)}" for why, these in told.items() if these
    )


def _did_most(run: Run, runs: Sequence[Run]) -> bool:
    return run.figures.finished == max(other.figures.finished for other in runs)


def _comparable(measure: Measure, runs: Sequence[Run]) -> list[bool]:
    if not measure.better:
        return [False] * len(runs)
    return [not measure.of_all_work or _did_most(run, runs) for run in runs]


def _cells(
    values: Sequence[float | None], scale: float, better: Better, compared: Sequence[bool]
) -> tuple[Cell, ...]:
    texts = ["-" if value is None else number(value * scale) for value in values]
    told = {
        value: text
        for value, text, among in zip(values, texts, compared, strict=True)
        if among and value is not None
    }
    best = None
    if len(set(told.values())) > 1:
        best = told[min(told) if better == "lower" else max(told)]
    return tuple(
        Cell(
            text,
            _relative_change(value, values[0])
            if among and compared[0] and text != texts[0]
            else "",
            among and text == best,
        )
        for value, text, among in zip(values, texts, compared, strict=True)
    )


def _unit(measure: Measure, told: Sequence[float]) -> tuple[str, float]:
    """The unit to show, and the factor from the measure's own unit."""
    match measure.unit:
        case "s":
            unit = time_unit(median([value for value in told if value] or [0.0]))
            return unit.name, 1 / unit.seconds
        case "share":
            return "%", 100.0
        case "times":
            return "×", 1
        case plain:
            return plain, 1  # a count remains a count


def _relative_change(value: float | None, first: float | None) -> str:
    return "" if value is None or first is None else change(value, first)
