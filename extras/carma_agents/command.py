"""A server of tools for agents: `mcp`."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Annotated, Any

from cli.app import option
from cli.parse import exact
from cli.problems import Problem

VERBS = ("estimate", "submit", "cancel", "hold", "release", "requeue")


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


def _verbs(flag: str, does: str) -> Any:
    about = f"{does}: {', '.join(VERBS)}; may be repeated"
    return option(flag, metavar="VERB", read=exact(*VERBS), help=about)


ASK = "the same, but the program that the agent runs in asks you each time"
FOLDER = (
    "let the agent submit and change only jobs whose working directory is below this one; may be"
    " repeated"
)
HOURS = "what the agent lets run may take so many GPU-hours in all, by the jobs' time limits"


def mcp(
    allow: Annotated[list[Any] | None, _verbs("--allow", "let the agent do this, too")] = None,
    ask: Annotated[list[Any] | None, _verbs("--ask", ASK)] = None,
    folder: Annotated[
        list[Any] | None, option("--folder", metavar="DIR", read=_folder, help=FOLDER)
    ] = None,
    max_gpu_hours: Annotated[
        float | None, option("--max-gpu-hours", metavar="HOURS", read=_hours, help=HOURS)
    ] = None,
) -> int:
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
    limits = Limits(folder or [], max_gpu_hours)
    server(allow or [], ask or [], limits).run("stdio")
    return 0
