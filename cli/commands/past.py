"""The past: `history` of jobs, `stats` of users and, as a page, of a period."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from carmad.readable import clean
from cli import client, output, parse
from cli.app import Json, Me, States, User, argument, option
from cli.options import states_of, user_of
from cli.overview import HISTORY, ORDERS, job_table, params
from cli.problems import Usage
from cli.text import Table, columns, energy, span

if TYPE_CHECKING:
    from carmad.api.server import StatsOut
    from cli.text import Block

SHOWN = 100  # jobs, unless --limit says otherwise
PAGE = 2000  # jobs requested at a time
TOTALS = (
    *("jobs", "succeeded", "failed", "oom", "gpu_hours", "energy_kwh"),
    *("wait_mean_s", "wait_p95_s", "run_mean_s", "cancelled"),
)

# The columns of --csv: of a job, of its `memory`, of its `exit`.
OWN = (
    *("label", "name", "user", "state", "submitted_at", "started_at", "ended_at", "wait_s"),
    *("elapsed_s", "gpus_wanted", "gpu_seconds", "energy_j", "sm_active_mean", "attempt", "mode"),
)
MEMORY = ("declared_mib", "estimate_mib", "peak_mib")
EXIT = ("cause", "code", "signal")


Since = Annotated[
    str | None,
    option(
        "-S",
        "--since",
        metavar="TIME",
        read=parse.since,
        help="start of the period: 7d or 12h (ago), or 2026-11-20",
    ),
]
Until = Annotated[
    str | None,
    option(
        "-E",
        "--until",
        metavar="TIME",
        read=parse.since,
        help="end of the period, in the same form",
    ),
]


def history(
    words: Annotated[
        list[str] | None,
        argument("WORD", "only jobs with all these words in their id, name, parameters or command"),
    ] = None,
    user: User = None,
    me: Me = False,
    states: States = None,
    since: Since = None,
    until: Until = None,
    sort: Annotated[
        str | None,
        option(
            "--sort",
            metavar="BY",
            read=parse.exact(*ORDERS),
            help=f"the order: {', '.join(ORDERS)}",
        ),
    ] = None,
    reverse: Annotated[
        bool, option("-r", "--reverse", help="the smallest or earliest first")
    ] = False,
    array: Annotated[
        bool, option("--array", help="list every task of an array; --json and --csv always do")
    ] = False,
    limit: Annotated[
        int | None,
        option(
            "-n",
            "--limit",
            metavar="N",
            read=parse.whole(1),
            help="at most N rows (default 100; in CSV, all)",
        ),
    ] = None,
    json: Json = False,
    as_csv: Annotated[bool, option("--csv", help="print CSV, with memory in MiB")] = False,
    table: Annotated[
        bool,
        option("--table", help="print all jobs as CSV, as the table that models are trained on"),
    ] = False,
) -> int:
    """Tasks of an array that ended alike share a row: with the first start, the longest time and
    waiting, the largest peak, and the energy of all.
    """
    period = {"since": since, "until": until}
    query: dict[str, Any] = {"user": user_of(user, me), **period}
    if table:
        if words or states or limit or json or as_csv or sort or reverse:
            raise Usage(
                "--table prints every job",
                "choose by --user, --since and --until alone; for a file: carma history --table"
                " >FILE",
            )
        _write_table(query)
        return 0
    query["text"] = " ".join(words or ()) or None
    query["states"], codes = states_of(states)
    if as_csv:
        if sort or reverse:
            raise Usage("--csv lists jobs as they were submitted", "leave --sort and --reverse out")
        found = _pages(query, limit or sys.maxsize)
        _write_csv(job for job in found if not codes or job["code"] in codes)
        return 0
    query |= {"order": sort, "reverse": reverse or None}
    query["fold"] = None if array or json else True
    answer = client.get("/v1/history", **query, limit=limit or SHOWN)
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if json:
        output.print_json(answer)
    else:
        output.show([job_table(answer["jobs"], usual=HISTORY)])
        if answer["more"]:
            output.note("there are more jobs: give --limit N, or --csv for all of them")
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


def _write_csv(jobs: Iterable[Any]) -> None:
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


def stats(
    user: User = None,
    me: Me = False,
    since: Since = None,
    until: Until = None,
    by: Annotated[
        Literal["user", "month"],
        option(
            "--by",
            metavar="user|month",
            help="a row per user (default) or per month",
        ),
    ] = "user",
    report: Annotated[
        Literal["week", "month"] | None,
        option(
            "--report",
            metavar="week|month",
            help="instead, report what the last whole week or month, or the time since --since, was"
            " used for, as one page of Markdown",
        ),
    ] = None,
    html: Annotated[
        Path | None, option("--html", metavar="FILE", help="with --report: write it as a page")
    ] = None,
    mail: Annotated[
        bool,
        option(
            "--mail", help="with --report: send it to your addresses (see carma doctor --notify)"
        ),
    ] = False,
    json: Json = False,
    as_csv: Annotated[bool, option("--csv", help="print CSV, with energy in kWh")] = False,
) -> int:
    """Below the rows it says what sharing GPUs gained or cost, as far as that was measured. A
    report has users and their GPU-hours, what sharing saved and cost, memory estimates, the
    longest waits, and jobs that held GPUs without using them. Of others' jobs, all but
    administrators see totals.
    """
    if report:
        if user or me or as_csv:
            raise Usage("--report takes no --user, --me and --csv", "it is about all users")
        return _report(report, since, until, html, mail, json)
    if html or mail:
        raise Usage("--html and --mail go with --report", "such as --report week")
    answer = client.get("/v1/stats", user=user_of(user, me), by=by, since=since, until=until)
    if json:
        output.print_json(answer)
    elif as_csv:
        rows = answer[f"{by}s"]  # without the total: it would count twice in a sum
        _write_rows(rows, (by, *TOTALS))
    else:
        output.show(totals_table(answer))
        _tell_external(answer["external"])
        if not (user or me):
            from carmad.report import sharing

            said = sharing(client.get("/v1/report", since=since, until=until))
            print(f"sharing{'' if since else ' in 7 days'}: {' '.join(said)}")
    return 0


def totals_table(answer: StatsOut) -> list[Block]:
    by = "MONTH" if answer["months"] else "USER"
    made = Table(
        columns(
            f"{by}~ JOBS> OK> FAILED> OOM> CANCELLED> GPU-HOURS> ENERGY>? WAIT(MEAN)> WAIT(P95)>?"
            " RUN(MEAN)>"
        )
    )
    users = [(row["user"], row) for row in answer["users"]]
    months = [(row["month"], row) for row in answer["months"]]
    for name, row in (*users, *months, ("total", answer["total"])):
        made.add(
            clean(name),
            *(str(row[key]) for key in ("jobs", "succeeded", "failed", "oom")),
            str(row.get("cancelled", "-")),  # an older carmad does not send it
            f"{row['gpu_hours']:.1f}",
            energy(row["energy_kwh"]),
            *(span(row[key]) for key in ("wait_mean_s", "wait_p95_s", "run_mean_s")),
            style="bold" if row is answer["total"] else "",
        )
    return [made]


def _tell_external(users: list[dict[str, Any]]) -> None:
    for row in users:
        peak = "unknown" if row["peak_mib"] is None else f"{row['peak_mib']} MiB"
        print(
            f"outside of the queue: {clean(row['user'])}, {row['processes']} processes,"
            f" {row['gpu_hours']:.1f} GPU-hours, peak memory {peak}"
        )


def _report(
    period: str, since: str | None, until: str | None, html: Path | None, mail: bool, json: bool
) -> int:
    from carmad.report import as_markdown, as_page, last, title

    if html:
        output.check_writable(html)
    if until and not since:
        raise Usage("--until goes with --since")
    if not since:
        since, until = (day.isoformat() for day in last(period, date.today()))
    answer = client.get("/v1/report", since=since, until=until)
    if html:
        html.write_text(as_page(answer), encoding="utf-8")
        output.note(f"wrote {html}")
    if mail:
        from cli.messages import send

        return send(title(answer), as_markdown(answer, titled=False))
    if json:
        output.print_json(answer)
    elif not html:
        print(as_markdown(answer), end="")
    return 0


def _write_table(query: dict[str, Any]) -> None:
    """In order of submission. Not every job has the same indicators: it has the columns of all."""
    rows: list[dict[str, Any]] = []
    query = {**query, "limit": PAGE}
    while page := client.get("/v1/past", **query)["rows"]:
        rows += page
        query["before"] = page[-1]["job"]
    _write_rows(rows[::-1], list(dict.fromkeys(name for row in rows[::-1] for name in row)))


def _write_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
