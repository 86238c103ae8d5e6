"""The server and its GPUs: `status`, `top`, `gpus`, `drain`, `undrain`."""

from __future__ import annotations

import sys

from cli import client, output, overview
from cli.options import add_json, interval

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser

status_options = add_json


def status(options: Namespace) -> int:
    answer = client.get("/v1/status")
    if options.json:
        output.print_json(answer)
        return 0
    tty = sys.stdout.isatty()
    width, height = output.console().size
    lines = height - 1 if tty else None  # and the shell's next prompt
    output.show(overview.status(answer, width, lines, bars=tty, plain=output.is_ascii()))
    return 0


def top_options(parser: Parser) -> None:
    parser.add_argument(
        "-w",
        "--watch",
        type=interval,
        default=2.0,
        metavar="SECONDS",
        help="refresh interval (default: %(default)g)",
    )
    parser.add_argument("-1", "--once", action="store_true", help="print once and exit")


def top(options: Namespace) -> int:
    why = output.why_no_screen()
    if options.once or why:
        if not options.once and sys.stdout.isatty():
            output.note(f"printed once: {why}")
        options.json = False
        return status(options)
    from cli import top as screen

    return screen.run(screen.status, options.watch)


gpus_options = add_json


def gpus(options: Namespace) -> int:
    answer = client.get("/v1/gpus")
    if options.json:
        output.print_json(answer)
    else:
        from cli import overview

        output.show(overview.gpu_report(answer))
    return 0


def undrain_options(parser: Parser) -> None:
    parser.add_argument("gpus", nargs="+", metavar="GPU", help="GPU indices or UUIDs, or all")
    add_json(parser)


def drain_options(parser: Parser) -> None:
    undrain_options(parser)
    parser.add_argument(
        "-r",
        "--reason",
        metavar="TEXT",
        default="maintenance",
        help="reason shown to users (default: %(default)s)",
    )
    parser.add_argument(
        "--move",
        action="store_true",
        help="let jobs on them go elsewhere, as soon as there is room; see `carma suspend`",
    )


def drain(options: Namespace) -> int:
    return _ask("drain", options, {"reason": options.reason, "move": options.move})


def undrain(options: Namespace) -> int:
    return _ask("resume", options, {})


def _ask(verb: str, options: Namespace, body: dict[str, Any]) -> int:
    for gpu in options.gpus:
        answer = client.post(f"/v1/gpus/{gpu}/{verb}", body)
        if options.json:
            output.print_json(answer)
        for one in answer["gpus"] if not options.json else ():
            print(f"GPU {one['index']}: {'drained' if one['drained'] else 'takes jobs'}")
    return 0
