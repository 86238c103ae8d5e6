"""Markdown tables, aligned so that they are also readable in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()
) -> str:
    """`numbers` are the right-aligned columns, counted from 0."""
    lines = [headings, *([_escaped(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def written(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if n in numbers else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    rule = "|".join(
        "-" * (width + 1) + (":" if n in numbers else "-") for n, width in enumerate(widths)
    )
    return "\n".join([written(headings), f"|{rule}|", *map(written, lines[1:])])


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")
