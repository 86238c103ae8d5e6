"""A paper's figures beside ours."""

from __future__ import annotations

from lab import compare

QUOTES = [
    compare.Quote("mean JCT, Venus", 18.57, 17.0, "h", "FIFO|SJF"),
    compare.Quote("makespan saved", 35, 31.5, "%"),
]


def test_quotes_as_markdown() -> None:
    assert compare.table(QUOTES).splitlines() == [
        r"|                 |  paper |   ours |  difference | note      |",
        r"|-----------------|-------:|-------:|------------:|-----------|",
        r"| mean JCT, Venus | 18.6 h | 17.0 h |       -8.5% | FIFO\|SJF |",
        r"| makespan saved  |   35 % | 31.5 % | -3.5 points |           |",
    ]
