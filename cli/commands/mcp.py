"""A server of tools for agents: `mcp`."""

from __future__ import annotations

from cli.problems import Problem

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

CHANGES = ("submit", "cancel", "hold", "release", "requeue")


def mcp_options(parser: Parser) -> None:
    parser.add_argument(
        "--allow",
        action="append",
        choices=CHANGES,
        default=[],
        metavar="VERB",
        help=f"let the agent do this, too: {', '.join(CHANGES)}; may be repeated",
    )


def mcp(options: Namespace) -> int:
    """It speaks on stdin and stdout: the agent's program starts it. The agent sees what you may
    see, and changes nothing unless you allow it.
    """
    try:
        from cli.agents import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        from carmad.installed import how_to_add

        raise Problem(
            "the package mcp is not installed", f"install it: {how_to_add('mcp')}"
        ) from None
    server(options.allow).run("stdio")
    return 0
