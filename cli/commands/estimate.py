"""`carma estimate`: the memory that a command will need, by every estimator, and what fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import estimation, output, parse, submission
from cli.parser import Parser
from cli.problems import Problem, Usage

if TYPE_CHECKING:
    from argparse import Namespace

    from carmad.api.guesses import EstimateOut, EstimatesOut
    from carmad.explanation import ExplanationOut
    from cli.text import Block
    from cli.vary import Fit

TERMINAL = Path("-")


def estimate(args: list[str]) -> int:
    from cli import estimate_view as view

    parser = build_parser()
    options, body = estimation.read(args, parser)
    _refuse_unusable(options)
    if options.within is not None:
        body["within_s"] = options.within
    explain = options.explain or options.plot is not None
    if options.fit is None:
        answer = estimation.ask(body, explain)
        _tell(options, answer, lambda: view.estimates(answer))
        good = estimation.choice(answer) is not None
        good = good and not (answer["crash"] or answer.get("too_large"))
    else:
        found = _fit(body, options.vary or estimation.VARIED, options.fit)
        _tell(options, found.as_json(), lambda: view.fit_view(found))
        good = found.largest is not None
        body["argv"] = found.command.fill(found.largest or found.command.value)
        if good and explain:
            answer = estimation.ask(body, explain)
    if good and explain:
        good = _explain(options, answer, body["argv"])
    return 0 if good else Problem.exit_code


def build_parser() -> Parser:
    """The parser of `carma submit`, plus a group of options of its own at the end."""
    parser = submission.build_parser()
    parser.prog = "carma estimate"
    parser.usage = (
        "carma estimate [OPTION…] [--] COMMAND [ARG…]\n"
        "       carma estimate [OPTION…] timm:MODEL [--batch-size N] [--optimizer NAME]"
    )
    parser.description = (
        "Predict how much GPU memory a command needs, with every installed estimator. "
        "Takes the options of `carma submit`, so a submission can be tried without changes."
    )
    parser.epilog = (
        "Exits with 0 if there is an estimate, with 1 if there is none, nothing fits, no GPU has as"
        " much, or the script stops by itself."
    )
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
        help=f"with --fit: the option of COMMAND to vary (default {estimation.VARIED})",
    )
    add(
        "--within",
        type=parse.processor_time,
        metavar="SECONDS",
        help="how many seconds of processor time the first two steps of COMMAND may take, its "
        "imports not counted (default: estimation.patient_s)",
    )
    add("--explain", action="store_true", help="show what the memory is used for")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the memory over two training steps: .svg, .png, .html, or - for the terminal",
    )
    return parser


def _fit(body: dict[str, Any], name: str, limit_mib: int) -> Fit:
    with _progress(name, limit_mib) as tell:
        return estimation.find_largest(body, name, limit_mib, tell)


def _refuse_unusable(options: Namespace) -> None:
    """Raises Usage or Problem for options that cannot work, before anything slow starts."""
    if options.vary is not None and options.fit is None:
        raise Usage("--vary goes with --fit", "as in --fit 24G --vary batch-size")
    if options.fit is not None:
        estimation.refuse_wrap(options)
    file: Path | None = options.plot
    if file is None or file == TERMINAL:
        return
    if file.suffix not in (".svg", ".png", ".html"):
        raise Usage(
            f"--plot {file}: only .svg, .png and .html can be written, or - for the terminal"
        )
    if find_spec("matplotlib") is None:
        from carmad.installed import how_to_add

        message = "a drawing needs matplotlib, which is not installed"
        raise Problem(message, f"{how_to_add('sim')}; or --plot - to see it here")
    output.check_writable(file)


def _tell(
    options: Namespace, answer: Mapping[str, object], picture: Callable[[], list[Block]]
) -> None:
    if options.json:
        output.print_json(answer)
    else:
        output.show(picture())


def _explain(options: Namespace, answer: EstimatesOut, argv: list[str]) -> bool:
    """False if a drawing was requested but there is nothing to draw."""
    from cli import estimate_view as view

    one, found = view.explainable(answer), answer["explanation"]
    if one is None:
        output.note("no estimator breaks its estimate down")
        return options.plot is None
    if options.explain and not options.json:
        output.show(view.explanation(one, found))
    if options.plot is None:
        return True
    if found is None:
        output.note("only a trace can be drawn, and there is none")
        return False
    if options.plot == TERMINAL:
        output.show(view.drawing(found["moments"], one, output.console().width))
    else:
        _write(options.plot, one, found, argv)
    return True


def _write(file: Path, one: EstimateOut, found: ExplanationOut, argv: list[str]) -> None:
    from cli import estimate_view as plot

    try:
        if file.suffix == ".html":
            file.write_text(plot.page(one, found, argv), encoding="utf-8")
        else:
            file.write_bytes(plot.image(one, found, argv, file.suffix[1:]))
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
