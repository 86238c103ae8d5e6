"""`carma queue`: running and waiting jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from carmad.errors import CarmaError
from cli import client, output
from cli.options import WATCH_S, states_of, user_of
from cli.overview import COLUMNS, QUEUE_LONG, job_table, sort
from cli.problems import Usage
from cli.text import Table, in_style, layout

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
        _print_json(options)
        return 0
    answer = _jobs(options)
    output.show(job_table(answer["jobs"], shown, bool(options.noheader)))
    if more := answer.get("more"):
        output.note(f"and {more} more: select a user with -u, or jobs with -j")
    return 0


def _print_json(options: Namespace) -> None:
    """As the daemon has written it, where that will do: to read a long line takes long. What is not
    ASCII, and might control the terminal, is escaped; one of 0.1.0 writes no lines."""
    names, codes = states_of(options.states)
    if codes or options.sort:
        output.print_json(_jobs(options))
        return
    text = client.get_text("/v1/jobs", **_query(options, names))
    if text[:1] and text[0].startswith(b"{\n") and all(map(bytes.isascii, text)):
        output.print_text(text)
    else:
        output.print_json(client.parse(text))


def _watch(options: Namespace, shown: Sequence[str]) -> int:
    from cli.screen import Screen

    if options.json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise Usage("--watch needs a terminal, and no --json", "programs: carma wait, or poll")
    picture = job_table(_jobs(options)["jobs"], shown, bool(options.noheader))
    with Screen() as screen:
        while True:
            screen.draw(layout(picture, output.room()))
            if screen.key(options.every or WATCH_S) == "q":
                return 0
            try:
                picture = job_table(_jobs(options)["jobs"], shown, bool(options.noheader))
            except CarmaError as error:  # carmad is being restarted: what it said last stays
                alarm = in_style(error.message, "bold red")
                picture = [alarm, *(block for block in picture if isinstance(block, Table))]


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
