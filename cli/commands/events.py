"""What happens, as it happens: `watch`."""

from __future__ import annotations

import json

from carmad.readable import clean
from cli import output, parse
from cli.client import events
from cli.options import add_user, check, selection, user_of

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser


def watch_options(parser: Parser) -> None:
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help="job ids: 42, 1,3,5-8, 42_3, last, or all (yours); ends when they all have",
    )
    add_user(parser)
    parser.add_argument("--me", action="store_true", help="only my jobs")
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="begin with what happened since then, if the daemon still knows: 10m or 2026-11-20",
    )
    parser.add_argument(
        "--json", action="store_true", help="print each event as a line of JSON, for programs"
    )


def watch(options: Namespace) -> int:
    """Print what happens, as it happens: jobs that start, run, end, are retried; GPUs that are
    lost or drained."""
    query = {
        "select": selection(options.jobs) if options.jobs else None,
        "user": user_of(options.user, options.me),
        "since": check(parse.since, options.since),
    }
    for event in events(output.note, **query):
        if options.json:
            print(json.dumps(event), flush=True)
        elif event["event"] == "missed":
            output.note(event["text"])
        elif event["event"] != "watching":
            print(line(event), flush=True)
    return 0


def line(event: dict[str, Any]) -> str:
    from cli.format import local_time

    job, gpu = event.get("job"), event.get("gpu")
    who = "carmad"
    if job:
        label = job["label"].partition("_")[0] if "count" in event else job["label"]
        who = f"job {label}" + (f" {job['name']}" if job["name"] != "-" else "")
        who += f" ({job['user']})"
    elif gpu:
        who = f"GPU {gpu['id'] if gpu['index'] is None else gpu['index']}"
    return clean(f"{local_time(event['at'])}  {who}: {event['text']}")
