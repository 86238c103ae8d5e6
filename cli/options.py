"""The options that several verbs share. Imports stay light."""

from __future__ import annotations

from carmad.states import CODES, HELD, NEW, RETRIED, named_by
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
        return ",".join(CODES), frozenset()
    states: set[str] = set()
    codes: set[str] = set()
    for word in text.split(","):
        kind = word.upper()
        named = NEW if kind in (HELD, RETRIED) else named_by(word)
        if not named:
            hint = f"states: {', '.join(CODES)}; or their codes"
            raise Usage(f"{word.lower()!r} is not a state", hint)
        states |= named
        is_name = kind.lower() in CODES
        codes |= {CODES[kind.lower()]} if is_name else {kind}
        codes |= {HELD, RETRIED} if is_name and named <= NEW else set()
    return ",".join(sorted(states)), frozenset(codes)


def check(read: Callable[[str], Any], text: str | None) -> Any:
    """The result of one of cli.parse's parsers, with its error as a usage error."""
    from argparse import ArgumentTypeError

    if text is None:
        return None
    try:
        return read(text)
    except ArgumentTypeError as error:
        raise Usage(str(error)) from None
