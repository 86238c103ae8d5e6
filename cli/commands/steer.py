"""Changes jobs: `hold`, `release`, `suspend`, `resume`, `requeue`, `update`."""

from __future__ import annotations

from typing import Annotated, Any

from carmad.options import OPTIONS
from cli import client
from cli.app import Jobs, Json, User, option, takes
from cli.hot import act
from cli.options import settle
from cli.problems import Usage

CHANGEABLE = {name: option for name, option in OPTIONS.items() if option.change}


def hold(jobs: Jobs, user: User = None, json: Json = False) -> int:
    return act("hold", jobs, user, json)


def release(jobs: Jobs, user: User = None, json: Json = False) -> int:
    return act("release", jobs, user, json)


def suspend(jobs: Jobs, user: User = None, json: Json = False) -> int:
    """What they hold on GPUs moves to the host's memory; their processes live on, and nothing is
    lost."""
    return act("suspend", jobs, user, json)


def resume(jobs: Jobs, user: User = None, json: Json = False) -> int:
    return act("resume", jobs, user, json)


def requeue(
    jobs: Jobs,
    user: User = None,
    all: Annotated[bool, option("--all", help="of an array, also tasks that succeeded")] = False,
    json: Json = False,
) -> int:
    """Of an array, it runs those tasks again that have failed."""
    more = {"all": True} if all else {}
    return client.outlive_stop(lambda: act("requeue", jobs, user, json, **more))


@takes(CHANGEABLE, both=True)
def update(
    jobs: Jobs,
    user: User = None,
    to: Annotated[
        str | None,
        option(
            "--to",
            metavar="GPU,...",
            help="move running jobs to these GPUs, of the same kind and as many as the job has, by"
            " their indices or UUIDs; nothing is lost",
        ),
    ] = None,
    json: Json = False,
    **values: Any,
) -> int:
    """Only administrators can give a running job more time."""
    given = settle({name: value for name, value in values.items() if value is not None})
    if to and given:
        raise Usage("--to takes no other option", "move the job first, then change it")
    if to:
        return act("move", jobs, user, json, gpus=to.split(","))
    if "after" in given:
        given["after"] = [{**one, "job": client.resolve(one["job"])} for one in given["after"]]
    if "array" in given:
        given["array"] = _array_limit(given["array"])
    return act("update", jobs, user, json, **given)


def _array_limit(array: dict[str, Any]) -> dict[str, Any]:
    """Of `--array %N`."""
    if array["indices"]:
        raise Usage("--array: the indices of an array cannot be changed", "give its limit: %N")
    return {"limit": array["limit"]}
