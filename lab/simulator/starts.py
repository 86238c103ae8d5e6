"""Does `carma queue --start` hold? In a simulated week, each waiting job's forecast every five
minutes, beside when it did start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import inf
from statistics import median

from benchmarks.harness import Report, columns
from carma_simulator import hardware, interference
from carma_simulator.experiment import Experiment, Physics
from carma_simulator.run import Recorder, catch_up, core, for_simulation, without_collection
from carma_simulator.traces import sources
from carma_simulator.workload import Clock, Workload, submit_in_time
from carma_simulator.world import World
from carmad.api.outlook import foresee
from carmad.config import Settings
from carmad.core.jobs.attempt import JobId
from carmad.loop import turn
from lab.main import main
from lab.processes import in_processes

WEEK = "generate:lab?seed={seed}&tasks=672"  # one job every 15 minutes
GPUS = "3xA100-40GB"
SEEDS = range(1, 6)
EVERY_S = 300.0
POLICIES = (("magm", "none"), ("magm", "oracle"), ("exclusive", "none"), ("carma", "oracle"))
ERRORS = (0.0, 0.5)  # σ of the log-normal factor on each predicted duration
SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    policy: str
    estimator: str
    error: float
    seed: int


@dataclass(frozen=True, slots=True)
class Held:
    case: Case
    forecasts: int
    early: int  # the job started before
    late: int
    open: int  # no latest start could be given
    widths_s: list[float]  # of those that are not open


def measure() -> Report:
    cases = [Case(*of, error, seed) for of in POLICIES for error in ERRORS for seed in SEEDS]
    held = list(in_processes(run, cases, lambda one: f"{one.case}: {_share(one):.3f}"))
    groups = [
        [one for one in held if (one.case.policy, one.case.estimator, one.case.error) == key]
        for key in dict.fromkeys((c.policy, c.estimator, c.error) for c in cases)
    ]
    return Report(
        "Expected starts",
        [
            columns(
                groups,
                ("policy", "{0[0].case.policy}"),
                ("memory estimates", "{0[0].case.estimator}"),
                ("σ of durations", "{0[0].case.error}"),
                ("forecasts", lambda group: f"{sum(one.forecasts for one in group):,}"),
                ("hold", lambda group: f"{_overall(group):.1%}"),
                ("worst week", lambda group: f"{min(map(_share, group)):.1%}"),
                ("no latest", lambda group: f"{_rate(group, 'open'):.1%}"),
                ("median width, h", lambda group: f"{_width_s(group) / 3600:.1f}"),
                text=(0, 1),
            )
        ],
        {"runs": [{**asdict(one), "widths_s": len(one.widths_s)} for one in held]},
        [
            f"{WEEK.format(seed='1 to 5')} on {GPUS}; a forecast for each waiting job every five"
            " minutes"
        ],
    )


def run(case: Case) -> Held:
    trace = sources.load(WEEK.format(seed=case.seed))
    settings = for_simulation(Settings(policy=case.policy))
    physics = Physics(duration_error=case.error)
    experiment = Experiment(
        trace,
        hardware.parse(GPUS),
        settings,
        case.estimator,
        physics=physics,
        seed=case.seed,
    )
    scheduler, clock = core(settings), Clock()
    workload, recorder = Workload(experiment), Recorder()
    model = interference.make(experiment.interference)
    world = World(experiment, settings, workload, model, clock)
    submit_in_time(workload.tasks, clock, world.submit)
    asked: list[tuple[JobId, float, float, float]] = []
    due = 0.0
    with without_collection():
        turn(scheduler, recorder, world, *world.opening())
        while clock.advance():
            catch_up(scheduler, recorder, world)
            if clock.now >= due and recorder.queued:
                due = clock.now + EVERY_S
                for id, found in foresee(scheduler.snapshot(clock.now)).items():
                    asked.append((id, clock.now, found.earliest, found.latest.at))
    starts = {id: [each.launched_at for each in its] for id, its in recorder.attempts.items()}
    return _judge(case, list(_answered(asked, starts)))


def _answered(
    asked: list[tuple[JobId, float, float, float]], starts: Mapping[JobId, list[float]]
) -> Iterator[tuple[float, float, float]]:
    """Of each forecast, its range and when the job did start. Not of jobs that never did."""
    for id, at, earliest, latest in asked:
        later = [start for start in starts.get(id, ()) if start >= at]
        if later:
            yield earliest, latest, later[0]


def _judge(case: Case, found: list[tuple[float, float, float]]) -> Held:
    return Held(
        case,
        len(found),
        sum(start < earliest - SLACK_S for earliest, _, start in found),
        sum(start > latest + SLACK_S for _, latest, start in found),
        sum(latest == inf for _, latest, _ in found),
        [latest - earliest for earliest, latest, _ in found if latest < inf],
    )


def _share(one: Held) -> float:
    return 1 - (one.early + one.late) / max(1, one.forecasts)


def _overall(group: list[Held]) -> float:
    return 1 - _rate(group, "early") - _rate(group, "late")


def _rate(group: list[Held], what: str) -> float:
    return float(sum(getattr(one, what) for one in group) / sum(one.forecasts for one in group))


def _width_s(group: list[Held]) -> float:
    return median(width for one in group for width in one.widths_s)


if __name__ == "__main__":
    main("simulator_starts", measure)
