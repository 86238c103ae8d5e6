"""The options that several verbs share. Imports stay light."""

from __future__ import annotations

from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cli.plain import Options


def add_json(parser: Options) -> None:
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")


def add_user(parser: Options, me: bool = False) -> None:
    parser.add_argument("-u", "--user", metavar="USER", help="only this user's jobs")
    if me:
        parser.add_argument("--me", action="store_true", help="only your own jobs")


def add_states(parser: Options) -> None:
    parser.add_argument(
        "-t",
        "--states",
        metavar="STATES",
        help="only jobs in these states: R,PD or running,queued; or all",
    )


def add_job(parser: Options) -> None:
    about = (
        "a job id: 42, 42_3, 42_[1-3] or last (the default); of an array, all tasks; slurm:42 for"
        " what runs in this job of Slurm's"
    )
    parser.add_argument("job", nargs="?", default="last", metavar="JOB", help=about)


def add_select(parser: Options) -> None:
    parser.add_argument(
        "jobs",
        nargs="+",
        metavar="JOB",
        help="job ids: 42, 1,3,5-8, 42_3, 42_[1-3], last, or all (yours)",
    )


def interval(text: str) -> float:
    """As the type of an option."""
    from cli import parse  # which argparse has to be imported for

    return parse.interval(text)


CODES = {
    "pd": "pending,queued",
    "h": "pending,queued",
    "rq": "pending,queued",
    "cf": "starting",
    "r": "running",
    "cg": "stopping",
    "cd": "succeeded",
    "f": "failed",
    "ca": "cancelled",
    "to": "timed_out",
    "oom": "out_of_memory",
}
NAMES = tuple(dict.fromkeys(name for names in CODES.values() for name in names.split(",")))


def selection(words: Sequence[str]) -> str:
    """`1 3 5-8` is the same as `1,3,5-8`."""
    return ",".join(words)


def user_of(user: str | None, mine: bool) -> str | None:
    if not mine:
        return user
    import os
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def states_of(text: str | None) -> tuple[str | None, frozenset[str]]:
    """The states to request, and the codes to keep: H and RQ are kinds of waiting."""
    if text is None:
        return None, frozenset()
    if text == "all":
        return ",".join(NAMES), frozenset()
    states, codes = set(), set()
    for word in text.lower().split(","):
        if word not in CODES and word not in NAMES:
            raise Usage(f"{word!r} is not a state", f"states: {', '.join(NAMES)}; or their codes")
        states.update(CODES.get(word, word).split(","))
        codes.update([word.upper()] if word in CODES else _codes_of(word))
    return ",".join(sorted(states)), frozenset(codes)


def _codes_of(state: str) -> list[str]:
    return [code.upper() for code, states in CODES.items() if state in states.split(",")]


def check(read: Callable[[str], Any], text: str | None) -> Any:
    """The result of one of cli.parse's parsers, with its error as a usage error."""
    from argparse import ArgumentTypeError

    if text is None:
        return None
    try:
        return read(text)
    except ArgumentTypeError as error:
        raise Usage(str(error)) from None
