"""Who has used how much: `share`."""

from __future__ import annotations

from cli import client, output
from cli.commands.options import add_json

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from cli.parser import Parser


def share_options(parser: Parser) -> None:
    add_json(parser)


def share(options: Namespace) -> int:
    """Show what each user has used of the GPUs of late. Who has used less goes first."""
    answer = client.get("/v1/share")
    if options.json:
        output.print_json(answer)
        return 0
    head = ("USER", "GROUP", "WEIGHT", "GPU-H", "GPUS NOW", "WAITING", "RANK")
    keys = ("user", "group", "weight", "gpu_hours", "gpus", "waiting", "rank")
    _print([head, *(tuple(_word(user[key]) for key in keys) for user in answer["users"])])
    if not answer["enabled"]:
        output.note("jobs start in order of arrival: fairness.enabled is off")
    return 0


def _print(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _word(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "-"
