"""GPUs, and whether they take jobs: `gpus`, `drain`, `resume`."""

from __future__ import annotations

from cli import client, output
from cli.options import add_json

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser

gpus_options = add_json


def gpus(options: Namespace) -> int:
    """Show each GPU's collocation risk, and the limits that apply to it."""
    answer = client.get("/v1/gpus")
    if options.json:
        output.print_json(answer)
    else:
        from cli import dashboard

        output.show(dashboard.gpu_report(answer))
    return 0


def resume_options(parser: Parser) -> None:
    parser.add_argument("gpus", nargs="+", metavar="GPU", help="GPU indices or UUIDs, or all")
    add_json(parser)


def drain_options(parser: Parser) -> None:
    resume_options(parser)
    parser.add_argument(
        "-r",
        "--reason",
        metavar="TEXT",
        default="maintenance",
        help="reason shown to users (default: %(default)s)",
    )


def drain(options: Namespace) -> int:
    """Start no more jobs on these GPUs; running jobs continue. For administrators."""
    return _ask("drain", options, {"reason": options.reason})


def resume(options: Namespace) -> int:
    """Start jobs on drained GPUs again. For administrators."""
    return _ask("resume", options, {})


def _ask(verb: str, options: Namespace, body: dict[str, Any]) -> int:
    for gpu in options.gpus:
        answer = client.post(f"/v1/gpus/{gpu}/{verb}", body)
        if options.json:
            output.print_json(answer)
        for one in answer["gpus"] if not options.json else ():
            print(f"GPU {one['index']}: {'drained' if one['drained'] else 'takes jobs'}")
    return 0
