"""What happens on the server, as it happens: `carma status --follow`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from carmad.readable import clean
from cli import output
from cli.client import events
from cli.options import selection, user_of
from cli.text import local_time

if TYPE_CHECKING:
    from collections.abc import Sequence


def follow(
    jobs: Sequence[str] | None, user: str | None, me: bool, since: str | None, as_json: bool
) -> int:
    select = selection(jobs) if jobs else None
    for event in events(output.note, select=select, user=user_of(user, me), since=since):
        if as_json:
            print(json.dumps(event), flush=True)
        elif event["event"] == "missed":
            output.note(event["text"])
        elif event["event"] != "watching":
            print(line(event), flush=True)
    return 0


def line(event: dict[str, Any]) -> str:
    job, gpu = event.get("job"), event.get("gpu")
    who = "carmad"
    if job:
        label = job["label"].partition("_")[0] if "count" in event else job["label"]
        who = f"job {label}" + (f" {job['name']}" if job["name"] != "-" else "")
        who += f" ({job['user']})"
    elif gpu:
        who = f"GPU {gpu['id'] if gpu['index'] is None else gpu['index']}"
    return clean(f"{local_time(event['at'])}  {who}: {event['text']}")
