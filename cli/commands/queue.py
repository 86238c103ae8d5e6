"""`carma queue`: running and waiting jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import client, output
from cli.options import WATCH_S, states_of, user_of
from cli.overview import COLUMNS, QUEUE_LONG, job_table, sort
from cli.problems import Usage

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any


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
    output.show([job_table(answer["jobs"], shown, bool(options.noheader))])
    if more := answer.get("more"):
        output.note(f"and {more} more: select a user with -u, or jobs with -j")
    return 0


def _watch(options: Namespace, shown: Sequence[str]) -> int:
    if why := "it prints no --json" if options.json else output.why_no_screen():
        raise Usage(f"--watch needs a terminal: {why}", "programs: carma wait, or poll")
    from cli import top

    return top.run(lambda: _jobs(options), options.every or WATCH_S, shown)


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


def _starts(user: str | None, json: bool | None) -> None:
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
