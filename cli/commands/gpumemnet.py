"""`carma gpumemnet …`: label generated networks, train classifiers on them, evaluate them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cli import output
from cli.app import group
from cli.problems import Problem

if TYPE_CHECKING:
    from cli.table import Block
    from estimators.gpumemnet.card import Card, Score
    from estimators.gpumemnet.dataset import Origin, Sample

T = TypeVar("T")

NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "numpy": "numpy"}

gpumemnet = group("Train the memory estimator gpumemnet.")


class Family(StrEnum):
    MLP = "mlp"
    CNN = "cnn"
    TRANSFORMER = "transformer"


Data = Annotated[list[Path], typer.Argument(metavar="DATA…", help="Files written by generate.")]


@gpumemnet.command()
def generate(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="Output file (.jsonl.gz).")],
    family: Annotated[Family, typer.Option(help="Family of networks.")],
    count: Annotated[int, typer.Option(min=1, help="Number of networks.")] = 1500,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure on this machine's GPU instead of tracing.")
    ] = False,
) -> None:
    """Generate random networks of a family, labelled with the GPU memory that training needs."""
    _check_installed()
    import torch

    from estimators.gpumemnet import dataset, labels

    if measure and not torch.cuda.is_available():
        raise Problem("torch finds no GPU here", "leave out --measure to trace the networks")
    torch.set_num_threads(1)  # more would only wait
    label = labels.measured if measure else labels.traced
    with _report_errors():
        origin = labels.origin(str(family), seed, measure)
        samples = labels.samples(str(family), seed, count, label)
        dataset.write(to, origin, _track(samples, count))
    print(f"{count} networks, {origin.label}, in {to}")


@gpumemnet.command()
def train(
    data: Data,
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Output folder for the weights.")
    ],
) -> None:
    """Train the classifiers of each family, and print their accuracy."""
    _check_installed()
    import torch

    from estimators.gpumemnet.training import train as trained

    torch.set_num_threads(1)  # more would only wait
    cards = []
    for origin, samples in _datasets(data):
        output.note(f"{origin.family}: training on {len(samples)} networks")
        with _report_errors():
            made = trained(origin, samples)
            made.save(to)
        cards.append(made.card)
    output.show(_table((card, score) for card in cards for score in card.scores))


@gpumemnet.command()
def evaluate(
    data: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DATA…", help="Evaluate on these instead of the test split."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Default: the weights that come with CARMA."),
    ] = None,
) -> None:
    """Print the accuracy of the classifiers next to Table 3 of the CARMA paper.

    Without DATA, the accuracy recorded in training. Of DATA that they were trained on, only the
    test split is used.
    """
    from estimators.gpumemnet.card import WEIGHTS, read

    folder = weights or WEIGHTS
    rows: list[tuple[Card, Score]] = []
    with _report_errors():
        if not data:
            cards = [read(str(each), folder) for each in Family if _is_there(each, folder)]
            if not cards:
                raise Problem(f"no weights in {folder}", "create some with `carma gpumemnet train`")
            rows = [(card, score) for card in cards for score in card.scores]
        else:
            _check_installed()
            from estimators.gpumemnet.training import test

            for origin, samples in _datasets(data):
                card = read(origin.family, folder)
                rows += [(card, test(card, folder, origin, samples))]
    output.show(_table(rows))


def _is_there(family: Family, folder: Path) -> bool:
    return (folder / f"{family}.json").exists()


def _check_installed() -> None:
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        hint = "pip install 'carma-gpu[estimators]'"
        raise Problem(f"this needs {', '.join(missing)}, which CARMA's Python does not have", hint)


@contextmanager
def _report_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise Problem(str(error)) from error


def _datasets(paths: Iterable[Path]) -> list[tuple[Origin, list[Sample]]]:
    from estimators.gpumemnet.dataset import read

    with _report_errors():
        read_in = [read(path) for path in paths]
    families = [origin.family for origin, _ in read_in]
    if twice := {family for family in families if families.count(family) > 1}:
        raise Problem(f"two files of {', '.join(sorted(twice))}", "give one file per family")
    return [(origin, list(samples)) for origin, samples in read_in]


def _track(things: Iterable[T], total: int) -> Iterator[T]:
    """The things, with a progress bar."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        yield from progress.track(things, total=total)


def _table(rows: Iterable[tuple[Card, Score]]) -> list[Block]:
    from cli.format import NOTHING, fraction
    from cli.table import Table, columns
    from estimators.gpumemnet.card import TABLE_3

    made = Table(columns("FAMILY CLASSIFIERS BIN> NETWORKS> VALIDATED> ACCURACY> F1> PAPER> USED"))
    for card, score in rows:
        paper = TABLE_3.get((card.origin.family, score.ensemble, score.range_gb))
        made.add(
            card.origin.family,
            score.ensemble,
            f"{score.range_gb} GB",
            str(score.tested),
            fraction(score.validation),
            fraction(score.accuracy),
            fraction(score.f1),
            NOTHING if paper is None else f"{fraction(paper[0])} {fraction(paper[1])}",
            "yes" if (score.ensemble, score.range_gb) == ("both", card.range_gb) else "",
        )
    return [made]
