"""The whole server at a glance: `status`, and `top` that keeps it up to date."""

from __future__ import annotations

import sys

from cli import client, dashboard, output, parse
from cli.options import add_json

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

status_options = add_json


def status(options: Namespace) -> int:
    """Show the GPUs, the jobs on them, and the queue."""
    answer = client.get("/v1/status")
    if options.json:
        output.print_json(answer)
        return 0
    tty = sys.stdout.isatty()
    height = output.size()[1] - 1 if tty else None  # and the shell's next prompt
    output.show(dashboard.status(answer, output.room(), height, bars=tty, plain=output.is_ascii()))
    return 0


def top_options(parser: Parser) -> None:
    parser.add_argument(
        "-w",
        "--watch",
        type=parse.interval,
        default=2.0,
        metavar="SECONDS",
        help="refresh interval (default: %(default)g)",
    )
    parser.add_argument("-1", "--once", action="store_true", help="print once and exit")


def top(options: Namespace) -> int:
    """Show `carma status` live, with keys: ? lists them, q quits."""
    if options.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        options.json = False
        return status(options)
    from cli import top as live

    return live.run(options.watch)
