"""Changes jobs and waits for them: `cancel`, `hold`, `release`, `suspend`, `resume`, `move`,
`requeue`, `update`, `wait`."""

from __future__ import annotations

import sys

from carmad.states import ENDED
from cli import client, output
from cli.client import exit_code, wait_for
from cli.options import add_json, add_select, add_user, selection
from cli.problems import Problem, Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser


def _choice_options(parser: Parser) -> None:
    add_select(parser)
    add_user(parser)
    add_json(parser)


cancel_options = hold_options = release_options = _choice_options
suspend_options = resume_options = _choice_options


def cancel(options: Namespace) -> int:
    return _ask("cancel", options)


def hold(options: Namespace) -> int:
    return _ask("hold", options)


def release(options: Namespace) -> int:
    return _ask("release", options)


def suspend(options: Namespace) -> int:
    """What they hold on GPUs moves to the host's memory; their processes live on, and nothing is
    lost."""
    return _ask("suspend", options)


def resume(options: Namespace) -> int:
    return _ask("resume", options)


def move_options(parser: Parser) -> None:
    _choice_options(parser)
    parser.add_argument(
        "--to",
        metavar="GPU",
        required=True,
        help="indices or UUIDs of as many GPUs as the job has, separated by commas",
    )


def move(options: Namespace) -> int:
    return _ask("move", options, {"gpus": options.to.split(",")})


def requeue_options(parser: Parser) -> None:
    _choice_options(parser)
    about = "of an array, also the tasks that succeeded"
    parser.add_argument("--all", action="store_true", help=about)


def requeue(options: Namespace) -> int:
    """Of an array, it runs those tasks again that have failed."""
    return client.outlive_stop(
        lambda: _ask("requeue", options, {"all": True} if options.all else {})
    )


def update_options(parser: Parser) -> None:
    from argparse import SUPPRESS

    from carmad.options import OPTIONS
    from cli.submission import add_option

    _choice_options(parser)
    group = parser.add_argument_group("new values")
    for option in OPTIONS.values():
        if option.change:
            add_option(group, option, SUPPRESS)


def update(options: Namespace) -> int:
    """Only administrators can give a running job more time."""
    from carmad.options import OPTIONS

    given = {name: value for name, value in vars(options).items() if name in OPTIONS}
    if "after" in given:
        given["after"] = [{**one, "job": client.resolve(one["job"])} for one in given["after"]]
    if "array" in given:
        given["array"] = _array_limit(given["array"])
    return _ask("update", options, given)


def _array_limit(array: dict[str, Any]) -> dict[str, Any]:
    """Of `--array %N`."""
    if array["indices"]:
        raise Usage("--array: the indices of an array cannot be changed", "give its limit: %N")
    return {"limit": array["limit"]}


def _ask(verb: str, options: Namespace, more: dict[str, Any] | None = None) -> int:
    body = {"select": selection(options.jobs), "user": options.user, **(more or {})}
    answer = client.requeue(body) if verb == "requeue" else client.post(f"/v1/{verb}", body)
    if options.json:
        output.print_json(answer)
    for name, ok, message in client.outcomes(answer["results"]) if not options.json else ():
        print(f"job {name}: {message}", file=sys.stdout if ok else sys.stderr)
    return 0 if all(result["ok"] for result in answer["results"]) else 1


def wait_options(parser: Parser) -> None:
    add_select(parser)
    parser.add_argument(
        "--any", action="store_true", help="return when the first has ended, with its exit code"
    )
    add_json(parser)


def wait(options: Namespace) -> int:
    if options.any:
        return _wait_any(selection(options.jobs), options.json)
    select = selection(options.jobs)
    found = client.get("/v1/jobs", select=select)["jobs"]
    if not found and select != "all":
        raise Problem(f"there is no job {select}", "see `carma queue` and `carma history`")
    ended = []
    for job in found:
        ended.append(wait_for(job["label"]))
        if not options.json:
            print(f"job {job['label']}: {ended[-1]['state'].replace('_', ' ')}", flush=True)
    if options.json:
        output.print_json({"schema": 1, "jobs": ended})
    return next((code for job in ended if (code := exit_code(job))), 0)


def _wait_any(select: str, as_json: bool) -> int:
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
            return exit_code(job)
    raise Usage("no job is selected", "see `carma queue`")
