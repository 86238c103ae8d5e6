"""`carma estimate`: the memory that a command will need, by every estimator, and what fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli import client, output, parse
from cli.commands import submit, submit_options
from cli.problems import Problem, Usage

if TYPE_CHECKING:
    from argparse import Namespace

    from carmad.api.responses.estimates import EstimateOut, EstimatesOut
    from cli.vary import Fit

ESTIMATE_S = 600.0  # the job's script runs for its first steps, and other users' may go first
VARIED = "batch-size"


def estimate(context: typer.Context) -> None:
    """Predict how much GPU memory a command needs, and where it fits. Nothing runs on a GPU."""
    from cli import estimate_view as view

    options, body = submit.read(context.args, build_parser())
    _check(options)
    if options.fit is None:
        answer = _ask(body)
        _tell(options, answer, lambda: view.estimates(answer))
        explained = view.explainable(answer)
        good = view.chosen(answer) is not None
    else:
        found = _fit(body, options.vary or VARIED, options.fit)
        _tell(options, found.as_json(), lambda: view.fitted(found))
        good, explained = found.largest is not None, found.best
        body["argv"] = found.command.filled(found.largest or found.command.value)
    if good and (options.explain or options.plot):
        good = _explain(options, explained, body["argv"])
    if not good:
        raise typer.Exit(Problem.exit_code)


def build_parser() -> submit_options.Parser:
    """The parser of `carma submit`, plus a group of options of its own at the end."""
    parser = submit_options.build_parser()
    parser.prog = "carma estimate"
    parser.usage = (
        "carma estimate [OPTION…] [--] COMMAND [ARG…]\n"
        "       carma estimate [OPTION…] timm:MODEL [--batch-size N] [--optimizer NAME]"
    )
    parser.description = (
        "Predict how much GPU memory a command needs, with every installed estimator. "
        "Takes the options of `carma submit`, so a submission can be tried without changes."
    )
    parser.epilog = "Exits with 0 if there is an estimate, with 1 if there is none or nothing fits."
    add = parser.add_argument_group("estimate").add_argument
    add(
        "--fit",
        type=parse.mebibytes,
        metavar="SIZE",
        help="find the largest batch size that fits into this much memory: 24G, 900M",
    )
    add(
        "--vary",
        metavar="NAME",
        help=f"with --fit: the option of COMMAND to vary (default {VARIED})",
    )
    add("--explain", action="store_true", help="show what the memory is used for")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="write the breakdown of --explain as an image (.png) or a page (.html)",
    )
    return parser


def _ask(body: dict[str, Any]) -> EstimatesOut:
    answer: EstimatesOut = client.post("/v1/estimate", body, ESTIMATE_S)
    return answer


def _fit(body: dict[str, Any], name: str, limit_mib: int) -> Fit:
    from cli import vary

    command = vary.opened(body["argv"], name)
    with _progress(name, limit_mib) as tell:
        return vary.search(
            # The user's declaration is about the command as it is.
            lambda argv: _ask({**body, "argv": argv, "memory_mib": None}),
            command,
            limit_mib,
            tell,
        )


def _check(options: Namespace) -> None:
    """Check the options before anything slow starts."""
    if options.vary is not None and options.fit is None:
        raise Usage("--vary goes with --fit", "as in --fit 24G --vary batch-size")
    if options.fit is not None and options.wrap is not None:
        raise Usage("--fit does not work with --wrap", "give the command itself")
    file: Path | None = options.plot
    if file is None:
        return
    if file.suffix not in (".png", ".html"):
        raise Usage(f"--plot {file}: only .png and .html can be written")
    if file.suffix == ".png" and find_spec("matplotlib") is None:
        message = "a PNG needs matplotlib, which is not installed"
        raise Problem(message, "pip install 'carma[sim]', or --plot FILE.html")
    output.check_writable(file)


def _tell(options: Namespace, answer: object, renderable: Callable[[], Any]) -> None:
    if options.json:
        output.print_json(answer)
    else:
        output.show(renderable())


def _explain(options: Namespace, one: EstimateOut | None, argv: list[str]) -> bool:
    """False if a file was requested but there is nothing to write."""
    from cli import estimate_view as view

    if one is None:
        output.note("no estimator breaks its estimate down")
        return options.plot is None
    if options.explain and not options.json:
        output.show(view.explanation(one))
    if options.plot is not None:
        _write(options.plot, one, argv)
    return True


def _write(file: Path, explained: EstimateOut, argv: list[str]) -> None:
    from cli import estimate_plot as plot

    try:
        if file.suffix == ".png":
            file.write_bytes(plot.image(explained, argv))
        else:
            file.write_text(plot.page(explained, argv), encoding="utf-8")
    except OSError as error:
        raise Problem(f"cannot write {file}: {error.strerror}") from error
    output.note(f"wrote {file}")


@contextmanager
def _progress(name: str, limit_mib: int) -> Iterator[Callable[[int, Mapping[int, int]], None]]:
    """A line on stderr, called with each value before it is tried and with the MiB by value so far.
    It shows what these tell."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from cli import estimate_view as view

    hidden = not sys.stderr.isatty()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=hidden) as line:
        task = line.add_task(name, total=None)

        def tell(value: int, mib: Mapping[int, int]) -> None:
            learnt = view.learnt(mib, limit_mib)
            line.update(task, description=f"{name} {value} is traced{learnt}")

        yield tell
