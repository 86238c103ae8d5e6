"""The past: `history` of jobs, `stats` of users."""

from __future__ import annotations

import sys

from carmad.readable import clean
from cli import client, output, parse, render
from cli.columns import HISTORY, params, with_params
from cli.options import (
    add_json,
    add_states,
    add_user,
    check,
    states_of,
    user_of,
)
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator
    from typing import Any

    from cli.parser import Parser

SHOWN = 100  # jobs, unless --limit says otherwise
PAGE = 2000  # jobs requested at a time
TOTALS = (
    *("jobs", "succeeded", "failed", "oom", "gpu_hours", "energy_kwh"),
    *("wait_mean_s", "wait_p95_s", "run_mean_s"),
)

# The columns of --csv: of a job, of its `memory`, of its `exit`.
OWN = (
    *("label", "name", "user", "state", "submitted_at", "started_at", "ended_at", "wait_s"),
    *("elapsed_s", "gpus_wanted", "gpu_seconds", "energy_j", "sm_active_mean", "attempt", "mode"),
)
MEMORY = ("declared_mib", "estimate_mib", "peak_mib")
EXIT = ("cause", "code", "signal")


def _add_period(parser: Parser) -> None:
    add = parser.add_argument
    add("-S", "--since", metavar="TIME", help="start of the period: 7d or 12h (ago), or 2026-11-20")
    add("-E", "--until", metavar="TIME", help="end of the period, in the same form")


def _period(options: Namespace) -> dict[str, Any]:
    return {name: check(parse.since, getattr(options, name)) for name in ("since", "until")}


def history_options(parser: Parser) -> None:
    add_user(parser, me=True)
    add_states(parser)
    _add_period(parser)
    add = parser.add_argument
    at_least_one = parse.whole(1, 10**9)
    about = "at most N jobs (default 100; in CSV, all)"
    add("-n", "--limit", type=at_least_one, metavar="N", help=about)
    add_json(parser)
    add("--table", metavar="FILE", help="write all jobs as the table that models are trained on")
    add("--csv", action="store_true", help="print CSV, with memory in MiB")
    add("--export", metavar="FILE", help="write all jobs as a trace for `carma simulate`")


def history(options: Namespace) -> int:
    """List ended jobs, newest first."""
    query: dict[str, Any] = {"user": user_of(options.user, options.me), **_period(options)}
    if options.export or options.table:
        _check_whole(options)
        if options.export:
            _export(options.export, **query)
        else:
            from pathlib import Path

            from cli.past_table import write

            write(Path(options.table), **query)
        return 0
    query["states"], codes = states_of(options.states)
    if options.csv:
        found = _pages(query, options.limit or sys.maxsize)
        _write_csv(job for job in found if not codes or job["code"] in codes)
        return 0
    answer = client.get("/v1/history", **query, limit=options.limit or SHOWN)
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if options.json:
        output.print_json(answer)
    else:
        output.show(render.jobs(answer["jobs"], with_params(HISTORY, answer["jobs"])))
        if answer["more"]:
            output.note("there are older jobs: give --limit N, or --csv for all of them")
    return 0


def _pages(query: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """The newest jobs, `most` at most, as they come."""
    more = True
    while more and most:
        answer = client.get("/v1/history", **query, limit=min(most, PAGE))
        yield from answer["jobs"]
        more = answer["more"]
        if more:
            most -= len(answer["jobs"])
            query = {**query, "before": answer["jobs"][-1]["id"]}
    if more:
        output.note("there are older jobs: give a larger --limit, or none for all of them")


def _check_whole(options: Namespace) -> None:
    """For files with every job. Raises Usage."""
    chosen = options.states or options.limit or options.json or options.csv
    if chosen or (options.export and options.table):
        raise Usage(
            "--export and --table write every job: they take no --states, --limit, --json or --csv",
            "choose by --user, --since and --until",
        )


def _write_csv(jobs: Iterable[Any]) -> None:
    """Flat CSV for programs: numbers without units, times as in the API."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*OWN, *MEMORY, *EXIT, "params"])
    for job in jobs:
        how = job.get("exit") or {}
        writer.writerow(
            [job.get(key) for key in OWN]
            + [job["memory"][key] for key in MEMORY]
            + [how.get(key) for key in EXIT]
            + [params(job)]
        )


def _export(file: str, user: str | None, since: str | None, until: str | None) -> None:
    import shlex
    from pathlib import Path

    from carmad.sim.report.runs import gpus
    from carmad.sim.shadow import from_history
    from carmad.sim.traces import native

    history = from_history(client.get, user, since, until)
    experiment, physics = history.experiment, history.experiment.physics
    for note in history.notes:
        output.note(note)
    words = (
        f"--gpus {gpus(experiment.cluster)} --estimator {experiment.estimator}"
        f" --set physics.first_kernel_s={physics.first_kernel_s:.3g}"
        f" --set physics.oom_s={physics.oom_s:.3g}"
    )
    if file == "-":
        native.write_csv(experiment.trace, sys.stdout)
        output.note(f"to simulate it: carma simulate FILE {words}")
        return
    native.write(experiment.trace, Path(file))
    print(f"wrote {len(experiment.trace.tasks)} jobs; to simulate them:")
    print(f"carma simulate {shlex.quote(file)} {words}")


def stats_options(parser: Parser) -> None:
    add_user(parser, me=True)
    _add_period(parser)
    add = parser.add_argument
    add("--by", choices=("user", "month"), default="user", help="a row per user or per month")
    add_json(parser)
    add("--csv", action="store_true", help="print CSV, with energy in kWh")


def stats(options: Namespace) -> int:
    """Add up jobs, GPU hours, energy and waiting, by user or by month."""
    user = user_of(options.user, options.me)
    answer = client.get("/v1/stats", user=user, by=options.by, **_period(options))
    if options.json:
        output.print_json(answer)
    elif options.csv:
        _write_totals(options.by, answer[f"{options.by}s"])
    else:
        output.show(render.stats(answer))
        _tell_external(answer["external"])
    return 0


def _tell_external(users: list[dict[str, Any]]) -> None:
    for row in users:
        peak = "unknown" if row["peak_mib"] is None else f"{row['peak_mib']} MiB"
        print(
            f"outside of the queue: {clean(row['user'])}, {row['processes']} processes,"
            f" {row['gpu_hours']:.1f} GPU-hours, peak memory {peak}"
        )


def _write_totals(by: str, rows: list[dict[str, Any]]) -> None:
    """Without the total: it would count twice in a sum."""
    import csv

    writer = csv.DictWriter(sys.stdout, (by, *TOTALS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
