"""`sacct`: jobs of the past and of now, from CARMA's database. Imports stay light."""

from __future__ import annotations

from cli import client
from cli.options import user_of
from cli.problems import Usage
from cli.slurm import words
from cli.slurm.fields import TITLES
from cli.slurm.formats import delimit, lay_out, parse_titles, show
from cli.slurm.squeue import name_of
from cli.slurm.states import carma_states, parse_states, state_of

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any

    from carmad.api.job import JobOut
    from cli.plain import Options

ABOUT = "List jobs, also those that have ended. Steps of jobs are not recorded, so none is listed."
USUAL = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobIDRaw,JobName,Partition,MaxRSS,AllocCPUS,Elapsed,State,ExitCode,ReqMem,AllocTRES"
    ",Submit,Start,End,NodeList"
)
MOST = 10_000  # of the past, in one answer


def declare(parser: Options) -> None:
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
    add("-T", "--truncate", action="store_true", help="ignored")
    add("-v", "--verbose", action="store_true", help="ignored")


def _fields() -> str:
    return ", ".join(title for title, _ in TITLES.values())


def sacct(args: list[str]) -> int:
    options = words.read("sacct", ABOUT, declare, args)
    if options.helpformat:
        print("\n".join(title for title, _ in TITLES.values()))
        return 0
    usual = BRIEF if options.brief else LONG if options.long else USUAL
    columns = parse_titles(options.format or usual, TITLES)
    found = select(options)
    if options.json:
        from cli.slurm.records import print_accounts

        print_accounts(found)
    elif options.parsable or options.parsable2:
        sign = options.delimiter or "|"
        show(delimit(columns, found, not options.noheader, sign, ends=options.parsable))
    else:
        lines = lay_out(columns, found, not options.noheader, gap=" ", after=" ")
        if not options.noheader:
            rule = " ".join("-" * (column.width or 0) for column in columns)
            lines.insert(1, f"{rule} ")
        show(lines)
    return 0


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
        found += client.get("/v1/jobs", user=name_of(user), **query)["jobs"]
    if jobs and options.starttime:
        since = moment(options.starttime)
        found = [job for job in found if (job.get("ended_at") or since) >= since]
    if options.endtime:
        until = moment(options.endtime)
        found = [job for job in found if job["submitted_at"] <= until]
    if names := words.split(options.name):
        found = [job for job in found if job["name"] in names]
    chosen = [job for job in found if state_of(job) in wanted]
    return sorted(chosen, key=lambda job: job["id"])


def _job(word: str) -> str:
    """A step is part of its job: 42.batch, 42.0."""
    return word.partition(".")[0]


def moment(text: str) -> str:
    """Slurm's forms of a time, in local time: HH:MM[:SS], MMDD[YY], MM/DD[/YY], YYYY-MM-DD[THH:MM],
    now, now-2days, today, midnight. Returns UTC, as the API has it."""
    from datetime import UTC

    found = _moment(text.strip().lower())
    if found is None:
        raise Usage(f"Invalid time specification: {text}", "such as 2026-11-20T09:00 or now-2days")
    return f"{found.astimezone(UTC):%Y-%m-%dT%H:%M:%S.000Z}"


def _moment(word: str) -> Any:
    from datetime import datetime, timedelta

    now = datetime.now().astimezone()
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "midnight"):
        return day
    if word == "now":
        return now
    if word.startswith(("now-", "now+")):
        from cli.parse import span_s

        away_s = float(word[4:]) if word[4:].isdecimal() else span_s(word[4:])
        if away_s is None:
            return None
        away = timedelta(seconds=away_s)
        return now - away if word[3] == "-" else now + away
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            clock = datetime.strptime(word, form)
        except ValueError:
            continue
        return day.replace(hour=clock.hour, minute=clock.minute, second=clock.second)
    for form in ("%m%d%y", "%m/%d/%y", "%m.%d.%y", "%m/%d/%y-%H:%M", "%m/%d/%y-%H:%M:%S"):
        try:
            return datetime.strptime(word, form).astimezone()
        except ValueError:
            continue
    try:
        return datetime.fromisoformat(word.upper()).astimezone()
    except ValueError:
        return None
