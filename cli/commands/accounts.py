"""The past: `history` of jobs, `stats` of users."""

from __future__ import annotations

import sys

from cli import client, output, parse, render
from cli.columns import HISTORY
from cli.commands.options import (
    add_json,
    add_states,
    add_user,
    checked,
    states_of,
    user_of,
)
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser

# The columns of --csv: of a job, of its `memory`, of its `exit`.
OWN = (
    *("label", "name", "user", "state", "submitted_at", "started_at", "ended_at", "wait_s"),
    *("elapsed_s", "gpus_wanted", "gpu_seconds", "energy_j", "sm_active_mean", "attempt", "mode"),
)
MEMORY = ("declared_mib", "estimate_mib", "peak_mib")
EXIT = ("cause", "code", "signal")


def _add_since(parser: Parser) -> None:
    parser.add_argument(
        "-S",
        "--since",
        metavar="TIME",
        help="start of the period: 7d or 12h (ago), or 2026-11-20",
    )


def history_options(parser: Parser) -> None:
    add_user(parser, me=True)
    add_states(parser)
    _add_since(parser)
    add = parser.add_argument
    add("-E", "--until", metavar="TIME", help="end of the period, in the same form")
    at_least_one = parse.whole(1, 10**9)
    add("-n", "--limit", type=at_least_one, metavar="N", help="at most N jobs (default 100)")
    add_json(parser)
    add("--table", metavar="FILE", help="write all jobs as the table that models are trained on")
    add("--csv", action="store_true", help="print CSV, with memory in MiB")
    add("--export", metavar="FILE", help="write all jobs as a trace for `carma simulate`")


def history(options: Namespace) -> int:
    """List ended jobs, newest first."""
    user = user_of(options.user, options.me)
    since, until = (checked(parse.since, text) for text in (options.since, options.until))
    if options.export or options.table:
        _check_whole(options)
        if options.export:
            _export(options.export, user, since, until)
        else:
            from pathlib import Path

            from cli.past_table import write

            write(Path(options.table), user, since, until)
        return 0
    names, codes = states_of(options.states)
    answer = client.get(
        "/v1/history",
        user=user,
        since=since,
        until=until,
        states=names,
        limit=options.limit or 100,
    )
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if options.json:
        output.print_json(answer)
    elif options.csv:
        _write_csv(answer["jobs"])
    else:
        output.show(render.jobs(answer["jobs"], HISTORY))
    return 0


def _check_whole(options: Namespace) -> None:
    """For files with every job. Raises Usage."""
    chosen = options.states or options.limit or options.json or options.csv
    if chosen or (options.export and options.table):
        raise Usage(
            "--export and --table write every job: they take no --states, --limit, --json or --csv",
            "choose by --user, --since and --until",
        )


def _write_csv(jobs: list[dict[str, Any]]) -> None:
    """Flat CSV for programs: numbers without units, times as in the API."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*OWN, *MEMORY, *EXIT])
    for job in jobs:
        how = job.get("exit") or {}
        writer.writerow(
            [job.get(key) for key in OWN]
            + [job["memory"][key] for key in MEMORY]
            + [how.get(key) for key in EXIT]
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
    _add_since(parser)
    add_json(parser)


def stats(options: Namespace) -> int:
    """Add up jobs, GPU hours, energy and waiting, by user."""
    user, since = user_of(options.user, options.me), checked(parse.since, options.since)
    answer = client.get("/v1/stats", user=user, since=since)
    if options.json:
        output.print_json(answer)
    else:
        output.show(render.stats(answer))
    return 0
