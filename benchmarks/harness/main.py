"""The entry point of every benchmark: options, printing, keeping."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path

import typer

from benchmarks.harness.report import Report, circumstances, write


def main(name: str, measure: Callable[..., Report]) -> None:
    """Run `measure` as a command: its parameters are the options, its module's text the help.

    Prints the report and writes NAME.md and .json in the RESULTS of the command's top package.
    """
    module = sys.modules["__main__"]
    assert module.__spec__
    path = module.__spec__.name.removesuffix(".__main__")
    command = ["python", "-m", path]
    results: Path = import_module(path.partition(".")[0]).RESULTS

    @wraps(measure)
    def run(**options: object) -> None:
        facts = circumstances()
        facts["command"] = f"`{shlex.join([*command, *sys.argv[1:]])}`"
        report = measure(**options)
        page = report.page(facts)
        print(page)
        if report.kept:
            write(results, report.name or name, page, {"facts": facts, **report.data})

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=module.__doc__)(run)
    app()
