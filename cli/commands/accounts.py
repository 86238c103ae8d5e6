"""The past: `history` of jobs, `stats` of users."""

from __future__ import annotations

import csv
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import client, output, parse
from cli.columns import HISTORY, params, with_params
from cli.commands.annotations import Json, Mine, States, User
from cli.commands.options import checked, states_of, user_of
from cli.problems import Usage

Since = Annotated[
    str | None,
    typer.Option("--since", "-S", help="Start of the period: 7d or 12h (ago), or 2026-11-20."),
]

# The columns of --csv: of a job, of its `memory`, of its `exit`.
OWN = (
    *("label", "name", "user", "state", "submitted_at", "started_at", "ended_at", "wait_s"),
    *("elapsed_s", "gpus_wanted", "gpu_seconds", "energy_j", "sm_active_mean", "attempt", "mode"),
)
MEMORY = ("declared_mib", "estimate_mib", "peak_mib")
EXIT = ("cause", "code", "signal")


def history(
    user: User = None,
    me: Mine = False,
    states: States = None,
    since: Since = None,
    until: Annotated[
        str | None, typer.Option("--until", "-E", help="End of the period, in the same form.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most N jobs (default 100).")
    ] = None,
    json: Json = False,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all jobs as the table that models are trained on."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with memory in MiB.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all jobs as a trace for `carma simulate`."),
    ] = None,
) -> None:
    """List ended jobs, newest first."""
    if export is not None or table is not None:
        if states or limit or json or as_csv or (export and table):
            raise Usage(
                "--export and --table write every job: they take no --states, --limit, --json or"
                " --csv",
                "choose by --user, --since and --until",
            )
        chosen = user_of(user, me), checked(parse.since, since), checked(parse.since, until)
        if export is not None:
            _export(export, *chosen)
        elif table is not None:
            from cli.past_table import write

            write(table, *chosen)
        return
    names, codes = states_of(states)
    answer = client.get(
        "/v1/history",
        user=user_of(user, me),
        since=checked(parse.since, since),
        until=checked(parse.since, until),
        states=names,
        limit=limit or 100,
    )
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if json:
        output.print_json(answer)
    elif as_csv:
        _write_csv(answer["jobs"])
    else:
        from cli import render

        output.show(render.JobTable(answer["jobs"], with_params(HISTORY, answer["jobs"])))


def _write_csv(jobs: list[Any]) -> None:
    """Flat CSV for programs: numbers without units, times as in the API."""
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


def _export(file: Path, user: str | None, since: str | None, until: str | None) -> None:
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
    if file == Path("-"):
        native.write_csv(experiment.trace, sys.stdout)
        output.note(f"to simulate it: carma simulate FILE {words}")
        return
    native.write(experiment.trace, file)
    print(f"wrote {len(experiment.trace.tasks)} jobs; to simulate them:")
    print(f"carma simulate {shlex.quote(str(file))} {words}")


def stats(user: User = None, me: Mine = False, since: Since = None, json: Json = False) -> None:
    """Add up jobs, GPU hours, energy and waiting, by user."""
    answer = client.get("/v1/stats", user=user_of(user, me), since=checked(parse.since, since))
    if json:
        output.print_json(answer)
        return
    from cli import render

    output.show(render.stats(answer))
