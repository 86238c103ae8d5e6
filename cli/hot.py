"""The verbs that scripts call by the thousand: `submit`, `queue`, `wait` and `cancel`. They are
read by argparse, from the tables that typer reads otherwise, and print plainly: nothing is imported
but the standard library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from carmad.errors import CarmaError
from carmad.states import ENDED
from cli import client, output, verbs
from cli.options import CANCEL, QUEUE, SUBMIT, WAIT, selection
from cli.problems import Problem, Usage, report
from cli.reader import Parser

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

TABLES = {"submit": SUBMIT, "queue": QUEUE, "wait": WAIT, "cancel": CANCEL}


class AsksForHelp(Exception):
    """The words do: typer has it."""


def run(verb: str, words: list[str]) -> int:
    """The exit code. Raises AsksForHelp."""
    parser = Parser(f"carma {verb}", TABLES[verb])
    try:
        return verbs.elsewhere(verbs.OWN[verb]).function()(read(parser, words))
    except CarmaError as error:
        own = parser.split(words)[0] if verb == "submit" else words
        return report(error, as_json="--json" in own)


def read(parser: Parser, words: list[str]) -> Namespace:
    """The options, and the words that are none: the jobs, or the command with the `--` in front of
    it, if there is one. Raises AsksForHelp."""
    verb = parser.prog.removeprefix("carma ")
    own, others, marked = parser.split(words)
    if verb != "submit":
        own, others = parser.sort_out(words)
    if parser.asks_for_help(own):
        raise AsksForHelp
    options = parser.parse_args(own)
    if verb == "submit":
        options.command = ["--", *others] if marked else others
        return options
    if verb == "queue" and others:
        raise Usage(f"{parser.prog} takes no word {others[0]}", f"{parser.prog} -j {others[0]}")
    if verb != "queue":
        options.jobs = others
        if not others:
            raise Usage("name a job", f"see `{parser.prog} --help`")
    return options


def cancel(options: Namespace) -> int:
    return act("cancel", options.jobs, options.user, bool(options.json))


def act(verb: str, jobs: Sequence[str], user: str | None, json: bool | None, **more: object) -> int:
    """Ask for what a verb of the daemon's does to these jobs, and say what became of it."""
    body = {"select": selection(jobs), "user": user, **more}
    answer = client.requeue(body) if verb == "requeue" else client.post(f"/v1/{verb}", body)
    if json:
        output.print_json(answer)
    for name, ok, message in client.outcomes(answer["results"]) if not json else ():
        print(f"job {name}: {message}", file=sys.stdout if ok else sys.stderr)
    return 0 if all(result["ok"] for result in answer["results"]) else 1


def wait(options: Namespace) -> int:
    select = selection(options.jobs)
    if options.any:
        return _wait_any(select, options.json)
    found = client.get("/v1/jobs", select=select)["jobs"]
    if not found and select != "all":
        raise Problem(f"there is no job {select}", "see `carma queue` and `carma history`")
    ended = []
    for job in found:
        ended.append(client.wait_for(job["label"]))
        if not options.json:
            print(f"job {job['label']}: {ended[-1]['state'].replace('_', ' ')}", flush=True)
    if options.json:
        output.print_json({"schema": 1, "jobs": ended})
    return next((code for job in ended if (code := client.exit_code(job))), 0)


def _wait_any(select: str, as_json: bool | None) -> int:
    for event in client.events(output.note, select=select):
        if event["event"] in ("watching", "missed"):  # from here on, no end is missed
            jobs = client.get("/v1/jobs", select=select)["jobs"]
            ended = [job for job in jobs if job["state"] in ENDED]
        else:
            ended = [event["job"]] if event["event"] == "ended" else []
        if ended:
            first = min(ended, key=lambda job: job.get("ended_at") or "")
            job = client.get(f"/v1/jobs/{first['id']}")
            if as_json:
                output.print_json({"schema": 1, "jobs": [job]})
            else:
                print(f"job {job['label']}: {job['state'].replace('_', ' ')}")
            return client.exit_code(job)
    raise Usage("no job is selected", "see `carma queue`")
