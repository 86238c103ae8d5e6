"""`carma doctor --gpu`: runs the self-test here, without the daemon, and shows its report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from carmad import paths
from cli import output

if TYPE_CHECKING:
    from carmad.selftest.facts import Fact
    from carmad.selftest.report import Finding, Report
    from cli.table import Block

STYLE = {"holds": "green", "differs": "bold red", "cannot be told here": "dim"}


def run(device: str, json: bool, write: bool) -> None:
    """Exits with 1 if anything differs."""
    from carmad import configfile
    from carmad.selftest import run as selftest
    from carmad.selftest import settings

    path = Path(paths.config_path())
    in_effect = configfile.load(path if path.exists() else None, os.environ)
    report = selftest.run(in_effect, device, told=_tell if sys.stderr.isatty() else _silent)
    if json:
        print(report.to_json())
    else:
        output.show(table(report))
        if report.settings and not write:
            print("\nSettings that fit what was found (--write puts them into the file):\n")
            print(settings.lines(report.settings).rstrip())
    if write and report.settings:
        settings.write(path, report.settings)
        output.note(f"{path} has {', '.join(report.settings)}; restart carmad to use them")
    if report.differs:
        raise typer.Exit(1)


def table(report: Report) -> list[Block]:
    from carmad.readable import clean
    from carmad.selftest.facts import FACTS
    from cli.table import Table, columns, in_style

    followed = {fact.name: fact.otherwise for fact in FACTS}
    made = Table(columns("- - -*"), header=False)
    for found in report.findings:
        text = clean(found.detail)
        if found.verdict.value == "differs":
            text += f"\n→ {followed.get(found.fact, '')}"
        style = STYLE[found.verdict.value]
        made.add(in_style(found.verdict.value, style), found.fact, text)
    head = (
        f"{report.gpu}, driver {report.driver}, CUDA {report.cuda}, as {report.user};"
        f" CARMA {report.carma} {report.commit}".rstrip()
    )
    return [head, "", made]


def _tell(fact: Fact, found: Finding | None) -> None:
    if found is None and fact.check is not None:
        print(f"\r\x1b[K{fact.name} …", end="", file=sys.stderr, flush=True)
    elif found is not None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _silent(fact: Fact, found: Finding | None) -> None:
    pass
