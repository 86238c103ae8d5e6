"""The past: `history` of jobs, `stats` of users, `report` of what a period was used for."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError

from carmad.readable import clean
from cli import client, output, parse
from cli.options import add_json, add_states, add_user, check, states_of, user_of
from cli.overview import HISTORY, ORDERS, job_table, params
from cli.problems import Problem, Usage
from cli.text import Table, columns, energy, span

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Any, TextIO

    from carmad.api.server import StatsOut
    from cli.parser import Parser
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


def _add_period(parser: Parser) -> None:
    add = parser.add_argument
    add("-S", "--since", metavar="TIME", help="start of the period: 7d or 12h (ago), or 2026-11-20")
    add("-E", "--until", metavar="TIME", help="end of the period, in the same form")


def _period(options: Namespace) -> dict[str, Any]:
    return {name: check(parse.since, getattr(options, name)) for name in ("since", "until")}


def history_options(parser: Parser) -> None:
    add = parser.add_argument
    about = "only jobs with all these words in their id, name, parameters or command"
    add("words", nargs="*", metavar="WORD", help=about)
    add_user(parser, me=True)
    add_states(parser)
    _add_period(parser)
    add("--sort", choices=ORDERS, metavar="BY", help=f"the order: {', '.join(ORDERS)}")
    add("-r", "--reverse", action="store_true", help="the smallest or earliest first")
    about = "list every task of an array; --json and --csv always do"
    add("--array", action="store_true", help=about)
    at_least_one = parse.whole(1, 10**9)
    about = "at most N rows (default 100; in CSV, all)"
    add("-n", "--limit", type=at_least_one, metavar="N", help=about)
    add_json(parser)
    add("--table", metavar="FILE", help="write all jobs as the table that models are trained on")
    add("--csv", action="store_true", help="print CSV, with memory in MiB")
    add("--export", metavar="FILE", help="write all jobs as a trace for `carma simulate`")


def history(options: Namespace) -> int:
    """Tasks of an array that ended alike share a row: with the first start, the longest time and
    waiting, the largest peak, and the energy of all.
    """
    if options.export or options.table:
        _check_whole(options)
    if options.export:
        return _export(options)
    query: dict[str, Any] = {"user": user_of(options.user, options.me), **_period(options)}
    if options.table:
        _write_table(options.table, **query)
        return 0
    query["text"] = " ".join(options.words) or None
    query["states"], codes = states_of(options.states)
    if options.csv:
        if options.sort or options.reverse:
            raise Usage("--csv lists jobs as they were submitted", "leave --sort and --reverse out")
        found = _pages(query, options.limit or sys.maxsize)
        _write_csv(job for job in found if not codes or job["code"] in codes)
        return 0
    query |= {"order": options.sort, "reverse": options.reverse or None}
    query["fold"] = None if options.array or options.json else True
    answer = client.get("/v1/history", **query, limit=options.limit or SHOWN)
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if options.json:
        output.print_json(answer)
    else:
        output.show(job_table(answer["jobs"], usual=HISTORY))
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


def _check_whole(options: Namespace) -> None:
    """For files with every job. Raises Usage."""
    chosen = options.words or options.states or options.limit or options.json or options.csv
    chosen = chosen or options.sort or options.reverse
    if chosen or (options.export and options.table):
        raise Usage(
            "--export and --table write every job, in one form",
            "choose by --user, --since and --until alone",
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


def _export(options: Namespace) -> int:
    """The simulator does it, if it is installed."""
    from cli.main import dispatch

    words = ["simulate", "--history", "--export", options.export]
    chosen = {"user": user_of(options.user, options.me)}
    chosen |= {"since": options.since, "until": options.until}
    words += [f"--{name}={value}" for name, value in chosen.items() if value is not None]
    return dispatch(words)


def stats_options(parser: Parser) -> None:
    add_user(parser, me=True)
    _add_period(parser)
    add = parser.add_argument
    add("--by", choices=("user", "month"), default="user", help="a row per user or per month")
    add_json(parser)
    add("--csv", action="store_true", help="print CSV, with energy in kWh")


def stats(options: Namespace) -> int:
    user = user_of(options.user, options.me)
    answer = client.get("/v1/stats", user=user, by=options.by, **_period(options))
    if options.json:
        output.print_json(answer)
    elif options.csv:
        rows = answer[f"{options.by}s"]  # without the total: it would count twice in a sum
        _write_rows(rows, sys.stdout, (options.by, *TOTALS))
    else:
        output.show(totals_table(answer))
        _tell_external(answer["external"])
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


def _whole_period(word: str) -> str:
    if word in ("week", "month"):
        return word
    hint = "; jobs report their steps by carma report-step" if word[:1].isdigit() else ""
    raise ArgumentTypeError(f"{word!r} is not week or month{hint}")


def _path(word: str) -> Path:
    from pathlib import Path  # takes 8 ms

    return Path(word)


def report_options(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "period",
        nargs="?",
        type=_whole_period,
        default="week",
        metavar="PERIOD",
        help="week or month",
    )
    add("-S", "--since", metavar="TIME", help="instead: from this time on, 7d (ago) or 2026-11-20")
    add("-E", "--until", metavar="TIME", help="with --since: up to this time (default: now)")
    add("--html", type=_path, metavar="FILE", help="write it to this file, as a page")
    add("--mail", action="store_true", help="send it to your addresses (see carma notify)")
    add_json(parser)


def report(options: Namespace) -> int:
    """Users and their GPU-hours, what sharing saved and cost, memory estimates, the longest waits,
    and jobs that held GPUs without using them. Of others' jobs, all but administrators see totals.
    """
    if options.html:
        output.check_writable(options.html)
    answer = client.get("/v1/report", **_query(options))
    if options.html:
        from carmad.report import as_page

        options.html.write_text(as_page(answer), encoding="utf-8")
        output.note(f"wrote {options.html}")
    if options.mail:
        return _mail(answer)
    if options.json:
        output.print_json(answer)
    elif not options.html:
        from carmad.report import as_markdown

        print(as_markdown(answer), end="")
    return 0


def _query(options: Namespace) -> dict[str, Any]:
    if options.since:
        return {name: check(parse.since, getattr(options, name)) for name in ("since", "until")}
    if options.until:
        from cli.problems import Usage

        raise Usage("--until goes with --since")
    from datetime import date

    from carmad.report import last

    since, until = last(options.period, date.today())
    return {"since": since.isoformat(), "until": until.isoformat()}


def _mail(answer: Any) -> int:
    from carmad.report import as_markdown, title
    from cli.messages import send

    return send(title(answer), as_markdown(answer, titled=False))


def _write_table(name: str, **query: Any) -> None:
    """To a file, by its suffix .csv or .parquet, or as CSV to standard output for "-"."""
    if name == "-":
        _write_rows(_rows(**query), sys.stdout)
        return
    from pathlib import Path

    file = Path(name)
    if file.suffix not in (".csv", ".parquet"):
        raise Problem(f"{file} is neither .csv nor .parquet", "use one of these, or - for CSV")
    output.check_writable(file)
    if file.suffix == ".parquet":
        rows = _write_parquet(file, **query)
    else:
        rows = _rows(**query)
        with file.open("w", newline="", encoding="utf-8") as opened:
            _write_rows(rows, opened)
    print(f"wrote {len(rows)} jobs")


def _rows(**query: Any) -> list[dict[str, Any]]:
    """In order of submission."""
    rows: list[dict[str, Any]] = []
    query["limit"] = PAGE
    while page := client.get("/v1/past", **query)["rows"]:
        rows += page
        query["before"] = page[-1]["job"]
    return rows[::-1]


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The union of all rows' columns: not every job has the same indicators."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_rows(
    rows: Sequence[dict[str, Any]], file: TextIO, columns: Sequence[str] | None = None
) -> None:
    import csv

    writer = csv.DictWriter(file, columns or _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _write_parquet(file: Path, **query: Any) -> list[dict[str, Any]]:
    from importlib import import_module

    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        from carmad.installed import how_to_add

        hint = f"{how_to_add('sim')}; or write .csv"
        raise Problem("Parquet needs pyarrow, which CARMA's Python does not have", hint) from None
    rows = _rows(**query)
    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    parquet.write_table(arrow.table(columns), file)
    return rows
