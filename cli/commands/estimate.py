"""`carma estimate`: the memory that a command will need, by every estimator, and what fits."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cli import estimate_view as view
from cli import estimation, output, parse
from cli.app import UserCommand, option, takes
from cli.options import SUBMIT
from cli.problems import Problem, Usage

if TYPE_CHECKING:
    from carmad.api.guesses import EstimatesOut
    from cli.text import Block
    from cli.vary import Fit

TERMINAL = Path("-")


@takes(SUBMIT)
def estimate(
    command: UserCommand = None,
    fit: Annotated[
        int | None,
        option(
            "--fit",
            metavar="SIZE",
            read=parse.mebibytes,
            help="find the largest batch size that fits into this much memory: 24G, 900M",
        ),
    ] = None,
    vary: Annotated[
        str | None,
        option(
            "--vary",
            metavar="NAME",
            help=f"with --fit: the option of COMMAND to vary (default {estimation.VARIED})",
        ),
    ] = None,
    within: Annotated[
        float | None,
        option(
            "--within",
            metavar="SECONDS",
            read=parse.processor_time,
            help="how many seconds of processor time the first two steps of COMMAND may take, its"
            " imports not counted (default: estimation.patient_s)",
        ),
    ] = None,
    explain: Annotated[bool, option("--explain", help="show what the memory is used for")] = False,
    plot: Annotated[
        Path | None,
        option(
            "--plot",
            metavar="FILE",
            help="draw the memory over two training steps: .svg or .html, or - for the terminal",
        ),
    ] = None,
    **given: Any,
) -> int:
    """It takes the options of `carma submit`, so a submission can be tried without changes; and
    timm:MODEL with --batch-size N and --optimizer NAME. Exits with 0 if there is an estimate, with
    1 if there is none, nothing fits, no GPU has as much, or the script stops by itself.
    """
    options, body = estimation.complete(Namespace(**given), command or [])
    as_json = bool(options.json)
    _refuse_unusable(options, fit, vary, plot)
    if within is not None:
        body["within_s"] = within
    explains = explain or plot is not None
    if fit is None:
        answer = estimation.ask(body, explains)
        _tell(as_json, answer, lambda: view.estimates(answer))
        good = estimation.choice(answer) is not None
        good = good and not (answer["crash"] or answer.get("too_large"))
    else:
        found = _fit(body, vary or estimation.VARIED, fit)
        _tell(as_json, found.as_json(), lambda: view.fit_view(found))
        good = found.largest is not None
        body["argv"] = found.command.fill(found.largest or found.command.value)
        if good and explains:
            answer = estimation.ask(body, explains)
    if good and explains:
        good = _explain(answer, body["argv"], explain and not as_json, plot)
    return 0 if good else Problem.exit_code


def _fit(body: dict[str, Any], name: str, limit_mib: int) -> Fit:
    with _progress(name, limit_mib) as tell:
        return estimation.find_largest(body, name, limit_mib, tell)


def _refuse_unusable(
    options: Namespace, fit: int | None, vary: str | None, file: Path | None
) -> None:
    """Raises Usage or Problem for options that cannot work, before anything slow starts."""
    if vary is not None and fit is None:
        raise Usage("--vary goes with --fit", "as in --fit 24G --vary batch-size")
    if fit is not None:
        estimation.refuse_wrap(options)
    if file is None or file == TERMINAL:
        return
    if file.suffix not in (".svg", ".html"):
        raise Usage(f"--plot {file}: only .svg and .html can be written, or - for the terminal")
    output.check_writable(file)


def _tell(as_json: bool, answer: Mapping[str, object], picture: Callable[[], list[Block]]) -> None:
    if as_json:
        output.print_json(answer)
    else:
        output.show(picture())


def _explain(answer: EstimatesOut, argv: list[str], shows: bool, plot: Path | None) -> bool:
    """False if a drawing was requested but there is nothing to draw."""
    one, found = view.explainable(answer), answer["explanation"]
    if one is None:
        output.note("no estimator breaks its estimate down")
        return plot is None
    if shows:
        output.show(view.explanation(one, found))
    if plot is None:
        return True
    if found is None:
        output.note("only a trace can be drawn, and there is none")
        return False
    if plot == TERMINAL:
        output.show(view.drawing(found["moments"], one, output.console().width))
    else:
        try:
            view.save(plot, one, found, argv)
        except OSError as error:
            raise Problem(f"cannot write {plot}: {error.strerror}") from error
        output.note(f"wrote {plot}")
    return True


@contextmanager
def _progress(name: str, limit_mib: int) -> Iterator[Callable[[int, Mapping[int, int]], None]]:
    """A line on stderr, called with each value before it is tried and with the MiB by value so far.
    It shows what these tell."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    hidden = not sys.stderr.isatty()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=hidden) as line:
        task = line.add_task(name, total=None)

        def tell(value: int, mib: Mapping[int, int]) -> None:
            learnt = view.learnt(mib, limit_mib)
            line.update(task, description=f"{name} {value} is traced{learnt}")

        yield tell
