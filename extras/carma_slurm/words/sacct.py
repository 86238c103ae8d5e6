"""`sacct`: jobs of the past and of now, from CARMA's database. Imports stay light."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from carma_slurm import words
from carma_slurm.words.fields import TITLES, gid, group
from carma_slurm.words.formats import delimit, lay_out, parse_titles, show
from carma_slurm.words.squeue import jobs_of
from carma_slurm.words.states import carma_states, parse_states, state_of
from cli.options import user_of
from cli.problems import Usage

if TYPE_CHECKING:
    from typing import Any

    from carma_slurm.words.formats import Column
    from carmad.api.job import JobOut
    from cli.reader import Parser

ABOUT = "List jobs, also those that have ended. Steps of jobs are not recorded, so none is listed."
USUAL = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobIDRaw,JobName,Partition,MaxRSS,AllocCPUS,Elapsed,State,ExitCode,ReqMem,AllocTRES"
    ",Submit,Start,End,NodeList"
)
CLOCK = r"\d\d?:\d\d(?::\d\d)?"
MOST = 10_000  # of the past, in one answer


def declare(parser: Parser) -> None:
    add = parser.add_argument
    add("-j", "--jobs", "--job", dest="jobs", action="append", metavar="JOBS", help="these: 1,3_2")
    add("-u", "--user", "--users", "--uid", dest="user", metavar="USERS", help="these users' jobs")
    add("-a", "--allusers", action="store_true", help="all users' jobs, if you may see them")
    add("-X", "--allocations", action="store_true", help="no steps; there are never any")
    add("-o", "--format", metavar="FIELDS", help=f"such as JobID%%20,State; fields: {_fields()}")
    add("-e", "--helpformat", action="store_true", help="list the fields")
    add("-b", "--brief", action="store_true", help="id, state and exit code")
    add("-l", "--long", action="store_true", help="most fields")
    add("-n", "--noheader", action="store_true", help="omit the header lines")
    add("-p", "--parsable", action="store_true", help="fields end with |")
    add("-P", "--parsable2", action="store_true", help="fields are separated by |")
    add("--delimiter", metavar="TEXT", help="instead of |")
    add("-S", "--starttime", metavar="TIME", help="jobs since this time; without -j: today's")
    add("-E", "--endtime", metavar="TIME", help="jobs that were there before this time")
    add("-s", "--state", "--states", dest="state", metavar="STATES", help="jobs in these states")
    add("--name", metavar="NAMES", help="only jobs of these names")
    add("--json", action="store_true", help="print JSON")
    add("-D", "--duplicates", action="store_true", help="ignored")
    add("-M", "--clusters", metavar="NAMES", help="ignored: there is one server")
    add("-L", "--allclusters", action="store_true", help="ignored: there is one server")
    add("-r", "--partition", metavar="NAMES", help="ignored: there is one partition")
    add("-A", "--accounts", metavar="NAMES", help="ignored: there are no accounts")
    add("-q", "--qos", metavar="NAMES", help="ignored: there are none")
    add("-N", "--nodelist", metavar="NAMES", help="ignored: there is one node")
    add("-g", "--group", "--gid", dest="group", metavar="GROUPS", help="jobs of these groups")
    add("-W", "--wckeys", metavar="NAMES", help="ignored: there are none")
    add("-k", "--timelimit-min", metavar="TIME", help="ignored")
    add("-K", "--timelimit-max", metavar="TIME", help="ignored")
    add("--units", metavar="UNIT", help="ignored")
    add("--noconvert", action="store_true", help="ignored")
    add("-T", "--truncate", action="store_true", help="ignored")
    add("-v", "--verbose", action="store_true", help="ignored")


def _fields() -> str:
    return ", ".join(title for title, _ in TITLES.values())


def sacct(args: list[str]) -> int:
    options = words.read("sacct", ABOUT, declare, args)
    if options.helpformat:
        print("\n".join(title for title, _ in TITLES.values()))
        return 0
    usual = os.environ.get("SACCT_FORMAT") or USUAL
    usual = BRIEF if options.brief else LONG if options.long else usual
    columns = parse_titles(options.format or usual, TITLES)
    found = select(options)
    if options.json:
        from carma_slurm.words.records import print_accounts

        print_accounts(found)
    elif options.parsable or options.parsable2:
        sign = options.delimiter or "|"
        show(delimit(columns, found, not options.noheader, sign, ends=options.parsable))
    else:
        show([] if options.noheader else _heading(columns))
        show(lay_out(columns, found, headed=False, gap=" ", after=" "))
    return 0


def _heading(columns: list[Column]) -> list[str]:
    """The titles, flush right whatever their columns are, and a rule."""
    widths = [column.width or 0 for column in columns]
    titles = [
        column.header[:width].rjust(width) for column, width in zip(columns, widths, strict=True)
    ]
    return ["".join(f"{word} " for word in line) for line in (titles, ["-" * n for n in widths])]


def select(options: Any) -> list[JobOut]:
    jobs, states = words.split(options.jobs), words.split(options.state)
    wanted = parse_states(states or ["all"])
    query: dict[str, Any] = {"limit": MOST}
    if jobs:
        query["select"] = ",".join(_job(word) for word in jobs)
    else:
        query |= {"states": carma_states(wanted), "since": moment(options.starttime or "00:00")}
    mine = not (jobs or options.allusers or options.user)
    users: list[str | None] = [*words.split(options.user)] or [None]
    if mine:
        users = [user_of(None, True)]
    found: list[JobOut] = []
    for user in users:
        found += jobs_of(user, query)
    if jobs and options.starttime:
        since = moment(options.starttime)
        found = [job for job in found if (job.get("ended_at") or since) >= since]
    if options.endtime:
        until = moment(options.endtime)
        found = [job for job in found if job["submitted_at"] <= until]
    if groups := words.split(options.group):
        found = [job for job in found if {group(job["user"]), str(gid(job["user"]))} & {*groups}]
    if names := words.split(options.name):
        found = [job for job in found if job["name"] in names]
    chosen = [job for job in found if state_of(job) in wanted]
    return sorted(chosen, key=lambda job: job["id"])


def _job(word: str) -> str:
    """A step is part of its job: 42.batch, 42.0."""
    return word.partition(".")[0]


def moment(text: str) -> str:
    """Slurm's forms of a time, in local time: HH:MM[:SS], MMDD[YY], MM/DD[/YY][-HH:MM[:SS]],
    YYYY-MM-DD[THH:MM], now, now-2days, today, midnight, noon. Returns UTC, as the API has it."""
    from argparse import ArgumentTypeError

    from cli import parse

    word = text.strip().lower()
    try:
        if word.startswith("now-"):
            span = word[4:]
            return parse.since(f"{span}s" if span.isdecimal() else span)
        return parse.moment(_with_date(word) or text.strip())
    except (ArgumentTypeError, ValueError):
        hint = "such as 2026-11-20T09:00, 11/20 or now-2days"
        raise Usage(f"Invalid time specification: {text}", hint) from None


def _with_date(word: str) -> str | None:
    """Those that name no whole date, in ISO 8601; None for others."""
    import re
    from datetime import date

    from cli.parse import CLOCKS

    today = date.today()
    if word in ("today", "midnight"):
        return f"{today}"
    clock = CLOCKS.get(word, word)
    if re.fullmatch(CLOCK, clock):
        return f"{today}T{_two_digits(clock)}"
    found = re.fullmatch(rf"(\d\d)([/.]?)(\d\d)(?:\2(\d\d))?(?:-({CLOCK}))?", word)
    if not found:
        return None
    month, _, day, year, clock = found.groups()
    date_of = f"{2000 + int(year) if year else today.year}-{month}-{day}"
    return f"{date_of}T{_two_digits(clock)}" if clock else date_of


def _two_digits(clock: str) -> str:
    return f"0{clock}" if clock[1] == ":" else clock
