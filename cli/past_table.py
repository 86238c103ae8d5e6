"""Writes past jobs as a table for other programs: CSV, or Parquet if pyarrow is installed."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from cli import client, output
from cli.problems import Problem

PAGE = 2000  # jobs requested at a time


def write(file: Path, user: str | None, since: str | None, until: str | None) -> None:
    """To `file`, by its suffix .csv or .parquet, or as CSV to standard output for "-"."""
    if file == Path("-"):
        _write_csv(_rows(user, since, until), sys.stdout)
        return
    if file.suffix not in (".csv", ".parquet"):
        raise Problem(f"{file} is neither .csv nor .parquet", "use one of these, or - for CSV")
    output.check_writable(file)
    if file.suffix == ".parquet":
        rows = _write_parquet(file, user, since, until)
    else:
        rows = _rows(user, since, until)
        with file.open("w", newline="", encoding="utf-8") as opened:
            _write_csv(rows, opened)
    print(f"wrote {len(rows)} jobs")


def _rows(user: str | None, since: str | None, until: str | None) -> list[dict[str, Any]]:
    """In order of submission."""
    rows: list[dict[str, Any]] = []
    query: dict[str, Any] = {"user": user, "since": since, "until": until, "limit": PAGE}
    while page := client.get("/v1/past", **query)["rows"]:
        rows += page
        query["before"] = page[-1]["job"]
    return rows[::-1]


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The union of all rows' columns: not every job has the same indicators."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(rows: Sequence[dict[str, Any]], file: TextIO) -> None:
    writer = csv.DictWriter(file, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _write_parquet(
    file: Path, user: str | None, since: str | None, until: str | None
) -> list[dict[str, Any]]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        hint = "pip install 'carma-gpu[sim]', or write .csv"
        raise Problem("Parquet needs pyarrow, which CARMA's Python does not have", hint) from None
    rows = _rows(user, since, until)
    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    parquet.write_table(arrow.table(columns), file)
    return rows
