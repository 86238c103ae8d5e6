"""What an estimate asks, for the terminal and for agents: the options of `carma estimate` as a
request, the answer of the daemon or, where there is none, of this process, and the
search for the largest number that fits."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from cli import client, submission
from cli.missing import refuse_missing
from cli.problems import Unreachable, Usage, note

if TYPE_CHECKING:
    from carmad.api.guesses import EstimateOut, EstimatesOut
    from cli.vary import Fit

ESTIMATE_S = 3600.0  # --within 600 may take 12 minutes, and other users' may go first
VARIED = "batch-size"
MODEL = "timm:"


def complete(given: Namespace, command: Sequence[str]) -> tuple[Namespace, dict[str, Any]]:
    """The options and the request for an estimate of a command. Raises Usage for a sweep, which has
    no single estimate, and for a command that is not there."""
    options, body = submission.complete(given, command)
    if body["array"] and body["array"].get("params"):
        raise Usage("a sweep has no single estimate", "leave --param out, and give its values")
    if not body["argv"][0].startswith(MODEL):
        refuse_missing(options, body)
    body.pop("script", None)  # nothing waits: it is traced where it is
    return options, body


def ask(body: dict[str, Any], explain: bool = False) -> EstimatesOut:
    """The answer of `/v1/estimate`. `explain`: with what the memory is used for."""
    path = "/v1/estimate?explain=true" if explain else "/v1/estimate"
    answer: EstimatesOut
    try:
        answer = client.post(path, body, ESTIMATE_S, again=True)
    except client.Broken:
        raise
    except Unreachable as error:
        from carmad.api.guesses import estimate_alone

        _note_alone(error.message)
        answer = estimate_alone(body, explain)
    return answer


@cache  # once, however many values are tried
def _note_alone(why: str) -> None:
    note(f"{why}; estimated without carmad, its GPUs and what it learned from your jobs")


def refuse_wrap(options: Namespace) -> None:
    """Raises Usage: a shell's line has no option to vary."""
    if options.wrap is not None:
        raise Usage("no option of a --wrap can be varied", "give the command itself")


def find_largest(
    body: dict[str, Any],
    name: str,
    limit_mib: int,
    tell: Callable[[int, Mapping[int, int]], None],
) -> Fit:
    """The largest number called `name` in the command with which it fits into `limit_mib`. `tell`
    is called with each value before it is tried, and the MiB by value so far."""
    from cli import vary

    return vary.search(
        # The user's declaration is about the command as it is.
        lambda argv: ask({**body, "argv": argv, "memory_mib": None}),
        vary.find_number(body["argv"], name),
        limit_mib,
        tell,
    )


def choice(answer: EstimatesOut) -> EstimateOut | None:
    """The estimate that would be used to place the job."""
    return next((one for one in answer["estimates"] if one["chosen"]), None)
