"""`carma simulate`: runs a trace under one or more policies on modelled GPUs.

The rest of `carma_simulator` simulates the runs, and formats and writes the results.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from carma_simulator.commands import what_if as program
from carmad import paths, registry
from carmad.errors import CarmaError
from carmad.readable import clean, duration
from cli import output
from cli.app import argument, option
from cli.options import check
from cli.problems import Problem, Usage

if TYPE_CHECKING:
    from rich.console import Console

    from carma_simulator.experiment import Experiment, Load, Outcome, Physics
    from carma_simulator.recorded import History
    from carma_simulator.run import Progress as Now
    from carma_simulator.sweep import Watch

    Ran = tuple[Experiment, Outcome]

GPUS = "3xA100-40GB"
POLICIES = registry.own_names("policies")
PHYSICS = "physics."
ALL = "all"  # instead of a policy's name
TOLD_REJECTED = 3
STDOUT = Path("-")


def simulate(
    trace: Annotated[
        str | None,
        argument("TRACE", "a CSV or Parquet file, KIND:PATH or generate:NAME"),
    ] = None,
    history: Annotated[
        bool, option("--history", help="use the jobs that this server ran as the trace")
    ] = False,
    since: Annotated[
        str | None,
        option(
            "-S", "--since", metavar="TIME", help="with --history: only jobs since 7d or 12h ago"
        ),
    ] = None,
    until: Annotated[
        str | None, option("-E", "--until", metavar="TIME", help="with --history: up to this time")
    ] = None,
    user: Annotated[
        str | None, option("-u", "--user", metavar="USER", help="with --history: only their jobs")
    ] = None,
    policies: Annotated[
        list[str] | None,
        option(
            "-p",
            "--policy",
            metavar="NAME",
            autocompletion=lambda incomplete: [
                name for name in registry.names("policies") if name.startswith(incomplete)
            ],
            help=f"policy to simulate; repeat, or all, to compare: {', '.join(POLICIES)}",
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        option(
            "--gpus",
            metavar="SPEC",
            help=f"GPUs: 4xV100-32GB, 250x8xA100-40GB (default {GPUS})",
        ),
    ] = None,
    estimators: Annotated[
        list[str] | None,
        option(
            "--estimator",
            metavar="NAME",
            help="memory estimator: none, oracle (exact), history, or one that the trace has",
        ),
    ] = None,
    interference: Annotated[
        str | None,
        option(
            "--interference",
            metavar="NAME",
            help="slowdown of jobs that share a GPU: none, additive, conserving, conserving:C"
            " with this coefficient, measured:FILE",
        ),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        option("--seed", min=0, metavar="N", help="seed for the errors in estimates"),
    ] = None,
    mps: Annotated[bool, option("--mps", help="share GPUs with MPS")] = False,
    as_daemon: Annotated[
        bool,
        option(
            "--as-daemon", help="queue as the daemon does: backfilling, fair share, looks often"
        ),
    ] = False,
    recovery: Annotated[
        str | None,
        option("--recovery", metavar="NAME", help="what to do after an out-of-memory crash"),
    ] = None,
    changes: Annotated[
        list[str] | None,
        option("--set", metavar="KEY=VALUE", help="change a setting: monitor.window_s=10"),
    ] = None,
    tune: Annotated[
        list[str] | None,
        option(
            "--tune",
            metavar="KEY=A,B",
            help="try each value of a setting, in all combinations; or propose settings: lucid",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option("--config", metavar="FILE", help="settings file to use instead of the defaults"),
    ] = None,
    html: Annotated[
        Path | None,
        option("--html", metavar="FILE", help="write a report with charts to this file"),
    ] = None,
    csv: Annotated[
        Path | None, option("--csv", metavar="FILE", help="write the metrics, one row per run")
    ] = None,
    csv_jobs: Annotated[
        Path | None, option("--csv-jobs", metavar="FILE", help="write one row per job and run")
    ] = None,
    json: Annotated[
        bool, option("--json", help="print metrics, jobs and attempts as JSON")
    ] = False,
    report: Annotated[
        Path | None,
        option("--report", metavar="FILE", help="of a single run: as `carma stats --report`"),
    ] = None,
    export: Annotated[
        Path | None,
        option(
            "--export",
            metavar="FILE",
            help="simulate nothing: write the trace, as .csv or .parquet",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        option("--jobs", min=1, metavar="N", help="parallel processes (default: one per CPU)"),
    ] = None,
    no_cache: Annotated[bool, option("--no-cache", help="do not reuse earlier results")] = False,
    what_if: Annotated[
        int | None,
        option(
            "--what-if",
            min=1,
            metavar="DAYS",
            help="for programs: the last days' jobs under --policy, news as lines of JSON",
        ),
    ] = None,
) -> int:
    from carma_simulator import tuning

    os.environ.pop("PYTHONPATH", None)  # it is not for the processes that do the work
    if what_if is not None:
        return program.what_if(what_if, policies or [])
    files = html, csv, csv_jobs, report
    _check_files(json, *files)
    base, results = _source(trace, history, user=user, since=since, until=until)
    if export is not None:
        _export(base, export, of_history=history)
        return 0
    if history:
        policies = [base.settings.policy, *(policies or ())]
    of_settings = [word for word in tune or () if "=" in word]
    of_policies = [word for word in tune or () if "=" not in word]
    words = list(changes or ())
    words += ["collocation.mps=true"] if mps else []
    words += [] if recovery is None else [f"recovery.name={recovery}"]
    with _as_usage():
        base = _with_settings(base, config, words, gpus, interference)
        base = replace(base, as_daemon=as_daemon)
        for name in of_policies:
            tuning.tunable(name)
        policies = [*(policies or ()), *of_policies]
        experiments = list(_variants(base, policies, estimators, seeds, of_settings))
    if report is not None and len(results) + len(experiments) > 1:
        raise Usage("--report is of a single run", "choose one policy, estimator and seed")
    note_idle_seeds(seeds or (), experiments)
    note_missing_pairs(base)
    note_mixed_names(base)
    note_oversized(base)
    run = partial(_sweep, jobs=jobs, cached=not no_cache)
    simulated = run(experiments)
    proposals = [
        tuning.propose(next(ran for ran in simulated if ran[0].settings.policy == name), run)
        for name in of_policies
    ]
    results += simulated + [proposal.best for proposal in proposals if proposal.holds]
    code = _report(results, json, *files, tuned=bool(of_settings))
    for proposal in proposals:
        output.note(proposal.text)
    return code


# -- experiments


def _source(
    source: str | None, history: bool, **chosen: str | None
) -> tuple[Experiment, list[Ran]]:
    """What to simulate; with `history`, also how this server ran it. `chosen`: options that say
    which of its jobs."""
    if (source is None) is not history:
        raise Usage("give either TRACE or --history", "see `carma simulate --help`")
    if not history and (given := [name for name, value in chosen.items() if value is not None]):
        raise Usage(f"--{given[0]} goes with --history", "see `carma simulate --help`")
    if source is None:
        past = _history(**chosen)
        return past.experiment, [(past.experiment, past.outcome)]
    return _trace(source), []


def _history(user: str | None, since: str | None, until: str | None) -> History:
    """What this server ran, with its current settings."""
    from carma_simulator import recorded
    from cli import client, parse

    period = {"since": check(parse.since, since), "until": check(parse.since, until)}
    past = recorded.from_history(client.get, user, **period)
    for note in past.notes:
        output.note(note)
    return past


def _trace(source: str) -> Experiment:
    """The trace with default settings, ignoring the server's file and the environment."""
    from carma_simulator import hardware
    from carma_simulator.experiment import Experiment
    from carma_simulator.traces import sources

    trace = sources.load(source)
    if rows := trace.rejected:
        first = "; ".join(f"line {row.line}: {clean(row.why)}" for row in rows[:TOLD_REJECTED])
        more = f"; and {len(rows) - TOLD_REJECTED:,} more" if len(rows) > TOLD_REJECTED else ""
        output.note(f"rows of the trace that are left out: {len(rows):,}; {first}{more}")
    if not trace.tasks:
        raise Problem(f"{source} has no job that can be simulated")
    return Experiment(trace, hardware.parse(GPUS))


@contextmanager
def _as_usage() -> Iterator[None]:
    """Turns errors into usage errors: they come from the command line."""
    try:
        yield
    except CarmaError as error:
        raise Usage(error.message, error.hint) from error


def _with_settings(
    base: Experiment,
    config: Path | None,
    words: Sequence[str],
    gpus: str | None,
    interference: str | None,
) -> Experiment:
    """The experiment with what all variants have in common."""
    from carma_simulator import hardware
    from carma_simulator import interference as models
    from carmad import configfile

    settings = base.settings if config is None else configfile.load(config, {})
    if interference is not None:
        models.make(interference)
    return replace(
        base,
        cluster=base.cluster if gpus is None else hardware.parse(gpus),
        settings=configfile.change(settings, (w for w in words if not w.startswith(PHYSICS))),
        interference=interference or base.interference,
        physics=_physics(base.physics, (w for w in words if w.startswith(PHYSICS))),
    )


def _variants(
    base: Experiment,
    policies: Sequence[str] | None,
    estimators: Sequence[str] | None,
    seeds: Sequence[int] | None,
    tuned: Sequence[str],
) -> Iterator[Experiment]:
    """Every combination of policy, estimator, seed and tuned settings, once."""
    from carmad import configfile

    registry.bare_recovery(base.settings)
    of_trace = {name for task in base.trace.tasks for name, _ in task.estimates}
    known = ["none", "oracle", "history", *sorted(of_trace)]
    for name in estimators or ():
        if name not in known:
            hint = f"choose one of {', '.join(known)}"
            raise CarmaError(f"the trace has no estimates by {name!r}", hint)
    for policy in dict.fromkeys(_policies(policies or [base.settings.policy])):
        for words in product(*map(_each, tuned)):
            settings = configfile.change(base.settings, [f"policy={policy}", *words])
            registry.bare_policy(settings)
            for estimator in dict.fromkeys(estimators or [base.estimator]):
                for seed in dict.fromkeys(seeds or [base.seed]):
                    yield replace(base, settings=settings, estimator=estimator, seed=seed)


def _policies(named: Sequence[str]) -> Iterator[str]:
    """`all`: every installed policy, except those whose libraries are missing."""
    from carmad.config import Settings

    for name in named:
        if name != ALL:
            yield name
            continue
        for each in registry.names("policies"):
            try:
                registry.bare_policy(Settings(policy=each))
                yield each
            except CarmaError as error:
                output.note(f"left out: {error.message}")


def _each(tuned: str) -> list[str]:
    """`KEY=A,B` as arguments of `--set`."""
    name, _, values = tuned.partition("=")
    return [f"{name}={value}" for value in dict.fromkeys(values.split(","))]


def _physics(base: Physics, words: Iterable[str]) -> Physics:
    """`--set physics.NAME=NUMBER`: parameters of the simulator, not settings of carmad."""
    values = asdict(base)
    for word in words:
        name, _, text = word.partition("=")
        key = name.removeprefix(PHYSICS)
        if key not in values:
            raise CarmaError(f"--set {name} is not a setting", f"there are {', '.join(values)}")
        try:
            values[key] = type(values[key])(text)
        except ValueError:
            values[key] = -1
        if not 0 <= values[key] < math.inf:
            raise CarmaError(f"--set {name} should be a number of 0 or more, not {text!r}")
    return replace(base, **values)


def _export(base: Experiment, file: Path, of_history: bool) -> None:
    """Writes the trace; of a server's own jobs, also says how to simulate them."""
    from carma_simulator.report.measures import gpus
    from carma_simulator.traces.rows import write_csv, write_trace

    words = ""
    if of_history:
        words = (
            f" --gpus {gpus(base.cluster)} --estimator {base.estimator}"
            f" --set physics.first_kernel_s={base.physics.first_kernel_s:.3g}"
            f" --set physics.oom_s={base.physics.oom_s:.3g}"
        )
    if file == STDOUT:
        write_csv(base.trace, sys.stdout)
        output.note(f"to simulate it: carma simulate FILE{words}")
        return
    write_trace(base.trace, file)
    print(f"wrote {len(base.trace.tasks)} jobs; to simulate them:")
    print(f"carma simulate {shlex.quote(str(file))}{words}")


# -- checks


def _check_files(json: bool, *files: Path | None) -> None:
    """Check output files before simulating, which may take hours."""
    if json + files.count(STDOUT) > 1:
        raise Usage("only one thing can be written to stdout", "name a file for the others")
    for file in files:
        if file is not None and file != STDOUT:
            output.check_writable(file)


# -- running and reporting


def _sweep(experiments: Sequence[Experiment], jobs: int | None, cached: bool) -> list[Ran]:
    from carma_simulator.sweep import Cache, sweep

    cache = Cache(Path(paths.user_cache_dir()) / "simulations") if cached else None
    processes = jobs or len(os.sched_getaffinity(0))
    with show_progress(len(experiments)) as watch:
        return list(sweep(experiments, processes, cache, watch))


def _report(
    results: Sequence[Ran],
    json: bool,
    html: Path | None,
    csv: Path | None,
    csv_jobs: Path | None,
    report: Path | None,
    tuned: bool,
) -> int:
    """Returns the exit code. Files come first: they exist even if `| less` is left early."""
    from carma_simulator.report import export, table
    from carma_simulator.report.export import page
    from carma_simulator.report.measures import runs

    found = runs(results)
    if csv is not None:
        _write(csv, lambda file: export.write_runs(found, file))
    if csv_jobs is not None:
        _write(csv_jobs, lambda file: export.write_jobs(found, file))
    if html is not None:
        text = page(found)
        _write(html, lambda file: file.write(text))
    if report is not None:
        _tell(results[0][1], report)
    for run in found:
        if stuck := [job.task for job in run.outcome.jobs if not job.attempts]:
            first = f"the first is {clean(stuck[0].name)}, for {stuck[0].gpus} GPUs"
            output.note(f"{run.name}: jobs that never start: {len(stuck):,}; {first}")
    if json:
        export.write_json(found, sys.stdout)
    elif STDOUT not in (html, csv, csv_jobs, report):
        output.show([table.comparison(found)])
    rated = [(run.figures.jct.mean, run.name) for run in found if run.figures.jct]
    if tuned and rated:
        output.note(f"the lowest mean JCT: {min(rated)[1]}")
    if not any(run.figures.finished for run in found):
        output.note("no job finished in any run")
        return Problem.exit_code
    return 0


def _tell(outcome: Outcome, path: Path) -> None:
    from carma_simulator.report.export import report_of
    from carmad.report import as_markdown, as_page

    page = as_page if path.suffix == ".html" else as_markdown
    text = page(report_of(outcome))
    _write(path, lambda file: file.write(text))


def _write(path: Path, content: Callable[[TextIO], object]) -> None:
    if path == STDOUT:
        content(sys.stdout)
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            content(file)
    except OSError as error:
        raise Problem(f"cannot write {path}: {error.strerror}") from error
    output.note(f"wrote {path}")


OF_A_NODE = 8  # GPUs per node, as in most large servers


def note_idle_seeds(seeds: Sequence[int], experiments: Sequence[Experiment]) -> None:
    """Note that the seeds make no difference, if no estimate has an error."""

    def has_errors(experiment: Experiment) -> bool:
        physics = experiment.physics
        of_memory = physics.estimate_error and experiment.estimator not in ("none", "history")
        return bool(of_memory or physics.duration_error)

    if len(set(seeds)) > 1 and not any(map(has_errors, experiments)):
        output.note(
            "the seeds make no difference, since estimates have no errors: see --estimator and"
            " --set physics.estimate_error or physics.duration_error."
            " For another workload, change the seed of the trace, as in generate:NAME?seed=1"
        )


def note_missing_pairs(base: Experiment) -> None:
    """Note how much of the trace a file of measured pairs covers."""
    from carma_simulator import interference as models
    from carmad.core.jobs.attempt import Mode

    model = models.make(base.interference)
    if isinstance(model, models.Measured):
        mode = Mode.MPS if base.settings.collocation.mps else Mode.STREAMS
        known, asked = model.coverage((task.load for task in base.trace.tasks), mode)
        if known < asked or not asked:
            _, _, file = base.interference.partition(":")
            output.note(
                f"{known:,} of {asked:,} models of the trace, at their batch sizes, have pairs"
                f" measured under {mode.value} in {file}; for the others: conserving"
            )


def note_mixed_names(base: Experiment) -> None:
    """Note jobs that policies take for runs of the same job, although they are not."""
    loads: dict[tuple[str, str, int], set[Load]] = {}
    for task in base.trace.tasks:
        loads.setdefault((task.user, task.name, task.gpus), set()).add(task.load)
    if mixed := [name for (_, name, _), found in loads.items() if len(found) > 1]:
        output.note(
            f"jobs of the same name, user and number of GPUs that differ in load: {len(mixed):,}"
            f" names, such as {clean(mixed[0])}; policies take them for runs of the same job"
        )


def note_oversized(base: Experiment) -> None:
    """Note jobs that want more GPUs, or more memory, than the cluster has."""
    nodes, tasks = base.cluster.nodes, base.trace.tasks
    gpus = max(1, sum(node.gpus for node in nodes if not node.instances))
    if wide := [task for task in tasks if task.gpus > gpus]:
        most = max(wide, key=lambda task: task.gpus)
        whole = math.ceil(most.gpus / OF_A_NODE)
        shape = f"{most.gpus}x" if whole == 1 else f"{whole}x{OF_A_NODE}x"
        output.note(
            f"jobs that want more GPUs than there are: {len(wide):,}; the largest,"
            f" {clean(most.name)}, wants {most.gpus}: --gpus {shape}{nodes[0].kind.name}"
        )
    mib = max(unit.memory_mib for node in nodes for unit in node.units)
    if big := [task for task in tasks if task.load.memory_mib > mib]:
        most = max(big, key=lambda task: task.load.memory_mib)
        output.note(
            f"jobs that want more memory than any GPU has: {len(big):,}; the largest,"
            f" {clean(most.name)}, wants {most.load.memory_mib:,} MiB"
        )


@contextmanager
def show_progress(runs: int, screen: Console | None = None) -> Iterator[Watch]:
    """Yields a function for `sweep`. A line per run, if it takes a while, and one for all runs;
    nothing if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    screen = screen or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[at]}"),
        TimeRemainingColumn(compact=True),
    )
    lines: dict[int, TaskID] = {}
    with Progress(
        *columns, console=screen, transient=True, expand=True, disable=not screen.is_terminal
    ) as progress:
        whole = progress.add_task("simulated", total=runs, unit="runs", at="")

        def watch(experiment: Experiment, now: Now | None) -> None:
            line = lines.get(id(experiment))
            if now is None:
                progress.advance(whole)
                if line is not None:
                    progress.update(line, visible=False)
                return
            if line is None:
                name = experiment.settings.policy
                line = progress.add_task(name, total=now.jobs, unit="jobs", at="")
                lines[id(experiment)] = line
            progress.update(line, completed=now.ended, at=f"at {duration(now.at_s)}")

        yield watch
