"""Looking at jobs: `queue`, `show`, `why`."""

from __future__ import annotations

from carmad.states import NEW
from cli import client, output
from cli.options import add_job, add_json, add_states, add_user, interval, states_of, user_of
from cli.overview import COLUMNS, QUEUE_LONG, job_table, sort
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

    from cli.plain import Options

WATCH_S = 2.0


def queue_options(parser: Options) -> None:
    add_user(parser, me=True)
    add_states(parser)
    add = parser.add_argument
    add("-j", "--jobs", metavar="JOBS", help="only these jobs: 1,3,5-8")
    add("-S", "--sort", metavar="COLUMN", help="sort by this column; -COLUMN reverses the order")
    add("-h", "--noheader", action="store_true", help="omit the header line")
    add("-l", "--long", action="store_true", help="show more columns")
    add("-o", "--format", metavar="COLUMNS", help=f"choose columns: {', '.join(COLUMNS)}")
    add(
        "-r",
        "--array",
        action="store_true",
        help="list every task of an array; --json always does",
    )
    add(
        "-w",
        "--watch",
        type=interval,
        nargs="?",
        const=WATCH_S,
        metavar="SECONDS",
        help=f"keep it up to date, by default every {WATCH_S:g} seconds; q quits",
    )
    add(
        "--start",
        action="store_true",
        help="from when to when waiting jobs are expected to start; with -u",
    )
    add_json(parser)


def queue(options: Namespace) -> int:
    """Tasks that wait for the same reason share a row."""
    if options.start:
        _starts(user_of(options.user, options.me), options.json)
        return 0
    shown = _fields(options.format) if options.format else QUEUE_LONG if options.long else ()
    if options.sort:
        _fields(options.sort.removeprefix("-"))
    if options.watch:
        return _watch(options, shown)
    if options.json:
        output.print_json(_jobs(options))
        return 0
    answer = _jobs(options)
    output.show(job_table(answer["jobs"], shown, options.noheader))
    if more := answer.get("more"):
        output.note(f"and {more} more: select a user with -u, or jobs with -j")
    return 0


def _watch(options: Namespace, shown: Sequence[str]) -> int:
    if why := "it prints no --json" if options.json else output.why_no_screen():
        raise Usage(f"--watch needs a terminal: {why}", "programs: carma wait, or poll")
    from cli import top

    return top.run(lambda: _jobs(options), options.watch, shown)


def _jobs(options: Namespace) -> Any:
    names, codes = states_of(options.states)
    answer = client.get("/v1/jobs", **_query(options, names))
    if codes:
        answer["jobs"] = [job for job in answer["jobs"] if job["code"] in codes]
    if options.sort:
        answer["jobs"] = sort(answer["jobs"], options.sort)
    return answer


def _query(options: Namespace, states: str | None) -> dict[str, Any]:
    return {
        "select": options.jobs,
        "user": user_of(options.user, options.me),
        "states": states,
        "fold": None if options.array or options.json else True,
    }


def _starts(user: str | None, json: bool) -> None:
    answer = client.get("/v1/starts", user=user)
    if json:
        output.print_json(answer)
        return
    for job in answer["starts"]:
        print(f"job {job['label']} of {job['user']}: {job['text']}")
    if not answer["starts"]:
        print("no job waits for GPUs")
    if more := answer["more"]:
        output.note(f"and {more} more: select a user with -u")


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(text.lower().split(","))
    for field in fields:
        if field not in COLUMNS:
            raise Usage(f"there is no column {field!r}", f"columns: {', '.join(COLUMNS)}")
    return fields


def _job_options(parser: Options) -> None:
    add_job(parser)
    add_json(parser)


show_options = why_options = _job_options


def show(options: Namespace) -> int:
    """Of several jobs, such as an array's, it shows how many are in each state."""
    answer, jobs = client.named(options.job)
    if options.json:
        output.print_json({"schema": 1, "jobs": jobs} if jobs else answer)
        return 0
    from cli import render

    if jobs:
        failed = render.first_failure(jobs)
        of = "the first that failed" if failed else "one of them"
        of += f": carma show {(failed or jobs[0])['label']}"
        output.show([*render.several(jobs), of])
    else:
        output.show(render.show(answer))
    return 0


def why(options: Namespace) -> int:
    """Of several jobs, such as an array's, it explains the first that failed, or that waits."""
    from cli import render

    answer, jobs = client.named(options.job, "/why")
    if jobs:
        waiting = (job for job in jobs if job["state"] in NEW)
        one = render.first_failure(jobs) or next(waiting, jobs[0])
        answer = client.get(f"/v1/jobs/{one['label']}/why")
    if options.json:
        output.print_json({"schema": 1, "jobs": jobs, "why": answer} if jobs else answer)
    else:
        output.show([*([*render.several(jobs), ""] if jobs else ()), *render.why(answer)])
    return 0
