"""A server of tools for agents: `mcp`."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from cli.problems import Problem

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

VERBS = ("estimate", "submit", "cancel", "hold", "release", "requeue")


def mcp_options(parser: Parser) -> None:
    add = parser.add_argument
    for name, does in (
        ("--allow", f"let the agent do this, too: {', '.join(VERBS)}"),
        ("--ask", "the same, but the program that the agent runs in asks you each time"),
    ):
        add(
            name,
            action="append",
            choices=VERBS,
            default=[],
            metavar="VERB",
            help=f"{does}; may be repeated",
        )
    add(
        "--folder",
        action="append",
        type=_folder,
        default=[],
        metavar="DIR",
        help="let the agent submit and change only jobs whose working directory is below this one;"
        " may be repeated",
    )
    add(
        "--max-gpu-hours",
        type=_hours,
        metavar="HOURS",
        help="what the agent lets run may take so many GPU-hours in all, by the jobs' time limits",
    )


def _folder(text: str) -> Path:
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise ArgumentTypeError(f"{text!r} is not a directory; give one that is there")
    return folder


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of hours; try 24")
    return hours


def mcp(options: Namespace) -> int:
    """It speaks on stdin and stdout: the agent's program starts it. The agent sees what you may
    see, and changes nothing unless you allow it.
    """
    try:
        from carma_agents.limits import Limits
        from carma_agents.server import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        from carmad.installed import how_to_add

        raise Problem(
            "the package mcp is not installed", f"install it: {how_to_add('mcp')}"
        ) from None
    limits = Limits(options.folder, options.max_gpu_hours)
    server(options.allow, options.ask, limits).run("stdio")
    return 0
