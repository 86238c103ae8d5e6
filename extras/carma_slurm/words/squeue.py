"""`squeue`: jobs that have not ended. Imports stay light."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from carma_slurm import FORGETS_S, words
from carma_slurm.words.fields import HOST, LETTERS, NAMES, has_started, names_this_node, uid
from carma_slurm.words.formats import lay_out, parse_names, parse_percent, show
from carma_slurm.words.states import ENDED, LIVE, carma_states, parse_states, state_of
from cli import client
from cli.options import user_of
from cli.problems import Usage

if TYPE_CHECKING:
    from typing import Any

    from carma_slurm.words.formats import Column
    from carmad.api.job import JobOut
    from cli.reader import Parser

ABOUT = "List jobs that have not ended, as CARMA has them on this server."
SHORT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
STARTS = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
INVALID = "slurm_load_jobs error: Invalid job id specified"


def declare(parser: Parser) -> None:
    add = parser.add_argument
    env = os.environ.get
    add("-h", "--noheader", action="store_true", help="omit the header line")
    add("-j", "--jobs", "--job", dest="jobs", metavar="JOBS", help="only these jobs: 1,3,5_2")
    user: dict[str, Any] = {"dest": "user", "default": env("SQUEUE_USERS"), "metavar": "USERS"}
    add("-u", "--user", "--users", **user, help="only these users' jobs")
    add("--me", action="store_true", help="only your own jobs")
    names: dict[str, Any] = {"dest": "name", "default": env("SQUEUE_NAMES"), "metavar": "NAMES"}
    add("-n", "--name", "--names", **names, help="only jobs of these names")
    states: dict[str, Any] = {"dest": "states", "default": env("SQUEUE_STATES")}
    add("-t", "--states", "--state", **states, metavar="STATES", help="R,PD,…, or all")
    add(
        "-p", "--partitions", "--partition", metavar="NAMES", help="ignored: there is one partition"
    )
    add("-o", "--format", metavar="FORMAT", help=f"such as '%%i %%T'; letters: {''.join(LETTERS)}")
    add("-O", "--Format", metavar="FIELDS", help=f"such as jobid:12,state; fields: {_fields()}")
    add("-l", "--long", action="store_true", help="show more columns")
    about = "letters of --format to sort by; -letter reverses"
    add("-S", "--sort", metavar="FIELDS", default=env("SQUEUE_SORT"), help=about)
    by_task = bool(env("SQUEUE_ARRAY"))
    about = "a line for each task of an array"
    add("-r", "--array", action="store_true", default=by_task, help=about)
    add("--start", action="store_true", help="of waiting jobs, when they are expected to start")
    add("-i", "--iterate", metavar="SECONDS", help="repeat every SECONDS")
    add("-a", "--all", action="store_true", help="ignored: all jobs are shown")
    add("-v", "--verbose", action="store_true", help="ignored")
    add("-M", "--clusters", metavar="NAMES", help="ignored: there is one server")
    add("-A", "--accounts", "--account", metavar="NAMES", help="ignored: there are no accounts")
    add("-q", "--qos", metavar="NAMES", help="ignored: there are none")
    about = f"jobs that run on these nodes: {HOST}"
    add("-w", "--nodelist", "--nodes", dest="nodelist", metavar="NAMES", help=about)
    add("--noconvert", action="store_true", help="ignored")
    add("--local", action="store_true", help="ignored")
    add("--json", action="store_true", help="print JSON")


def _fields() -> str:
    return ", ".join(NAMES)


def squeue(args: list[str]) -> int:
    options = words.read("squeue", ABOUT, declare, args)
    return words.repeat("squeue", lambda: _show(options), options)


def _show(options: Any) -> int:
    columns, after = _columns(options)
    chosen = select(options)
    if options.json:
        from carma_slurm.words.records import print_jobs

        print_jobs(chosen)
        return 0
    if options.long and not (options.noheader or options.iterate):
        print(words.today())
    show(lay_out(columns, chosen, not options.noheader, after=after))
    return 0


def _columns(options: Any) -> tuple[list[Column], str]:
    env = os.environ.get
    usual = LONG if options.long else STARTS if options.start else env("SQUEUE_FORMAT")
    letters = options.format or usual
    if names := options.Format or (not letters and env("SQUEUE_FORMAT2")):
        return parse_names(names, NAMES)
    return parse_percent(letters or SHORT, LETTERS)


def select(options: Any) -> list[JobOut]:
    """Raises Usage, as Slurm does, if the only job that is asked for is not there."""
    states = parse_states(words.split(options.states)) if options.states else frozenset(LIVE)
    select = ",".join(words.split(options.jobs)) or None
    past = bool(states.intersection(ENDED))
    query: dict[str, Any] = {"select": select, "states": carma_states(states) if past else None}
    if not options.array and select is None:
        query["fold"] = True
    if options.nodelist and not names_this_node(options.nodelist):
        raise Usage(f"Invalid node name {options.nodelist}", f"the only node is {HOST}")
    users: list[str | None] = [*words.split(options.user)] or [None]
    if options.me:
        users = [user_of(None, True)]
    found: list[JobOut] = []
    since = since_forgotten() if past and select is None else None
    for user in users:
        found += jobs_of(user, {**query, "since": since})
    if select and not found and not _is_there(select):
        raise Usage(INVALID)
    found = [job for job in found if state_of(job) in states]
    if options.nodelist:
        found = [job for job in found if has_started(job)]
    if options.start:
        found = [job for job in found if state_of(job) == "PENDING"]
    if names := words.split(options.name):
        found = [job for job in found if job["name"] in names]
    return _sort(found, options.sort)


def _is_there(select: str) -> bool:
    """Whether one of them is known at all; if they are several, Slurm does not mind."""
    if len(select.split(",")) > 1:
        return True
    return bool(client.get("/v1/jobs", select=select)["jobs"])


def jobs_of(user: str | None, query: dict[str, Any]) -> list[JobOut]:
    """The user's jobs. None: all users'. Slurm takes numbers, too. Raises Usage for a user who has
    none and is not known here."""
    name = user if user is None or not user.isdecimal() else _name_of(user)
    found: list[JobOut] = client.get("/v1/jobs", user=name, **query)["jobs"]
    if name is not None and not found and uid(name) < 0:
        raise Usage(f"Invalid user: {user}")
    return found


def _name_of(number: str) -> str:
    import pwd

    try:
        return pwd.getpwuid(int(number)).pw_name
    except (KeyError, OverflowError):
        raise Usage(f"Invalid user: {number}") from None


def since_forgotten() -> str:
    from datetime import UTC, datetime, timedelta

    return f"{datetime.now(UTC) - timedelta(seconds=FORGETS_S):%Y-%m-%dT%H:%M:%SZ}"


def _sort(jobs: list[JobOut], letters: str | None) -> list[JobOut]:
    for word in reversed(words.split(letters)):
        field = LETTERS.get(word.lstrip("+-"))
        if field is None:
            raise Usage(f"Invalid sort specification: {word}")
        text = field.text
        jobs = sorted(jobs, key=lambda job: _key(text(job)), reverse=word.startswith("-"))
    return jobs


def _key(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)
