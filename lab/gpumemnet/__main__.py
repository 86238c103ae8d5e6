"""Makes GPUMemNet's weights: `generate` labels networks, by trace or, on a GPU, by measurement;
`train` learns from them; `evaluate` shows the accuracy of weights beside the paper's.

Without DATA, `evaluate` has the accuracy recorded in training. Of DATA that the weights were
trained on, it uses the test split only. New weights ship once they are in
`estimators/gpumemnet/weights`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from cli import output
from cli.parse import whole
from cli.text import NOTHING, Table, columns, fraction
from estimators.gpumemnet.features import FAMILIES
from estimators.gpumemnet.files import WEIGHTS, Card, Origin, Score, read_card
from lab.gpumemnet import networks, training
from lab.gpumemnet.data import TABLE_3, Sample, read_samples, write_samples

T = TypeVar("T")

MOST = 1 << 32  # of a seed, or of networks


def run(words: Sequence[str]) -> None:
    """Raises OSError, RuntimeError or ValueError with what went wrong."""
    options = build_parser().parse_args(words)
    torch.set_num_threads(1)  # more would only wait
    options.do(options)


def build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        "python -m lab.gpumemnet", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("generate")
    make.set_defaults(do=generate)
    make.add_argument("to", metavar="FILE", type=Path, help="output file (.jsonl.gz)")
    make.add_argument("--family", required=True, choices=FAMILIES, help="family of networks")
    about = "number of networks (default %(default)s)"
    make.add_argument("--count", metavar="N", type=whole(1, MOST), default=1500, help=about)
    about = "random seed (default %(default)s)"
    make.add_argument("--seed", metavar="N", type=whole(0, MOST), default=0, help=about)
    about = "measure on this machine's GPU instead of tracing"
    make.add_argument("--measure", action="store_true", help=about)
    learn = commands.add_parser("train")
    learn.set_defaults(do=train)
    about = "files written by generate, one for each family"
    learn.add_argument("data", metavar="DATA", nargs="+", type=Path, help=about)
    about = "output folder for the weights"
    learn.add_argument("--to", metavar="FOLDER", type=Path, required=True, help=about)
    judge = commands.add_parser("evaluate")
    judge.set_defaults(do=evaluate)
    about = "evaluate on these instead of the test split"
    judge.add_argument("data", metavar="DATA", nargs="*", type=Path, help=about)
    about = "default: the weights that come with CARMA"
    judge.add_argument("--weights", metavar="FOLDER", type=Path, default=WEIGHTS, help=about)
    return parser


def generate(options: Namespace) -> None:
    if options.measure and not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU here: leave out --measure to trace the networks")
    label = networks.label_by_run if options.measure else networks.label_by_trace
    origin = networks.origin(options.family, options.seed, options.measure)
    samples = networks.samples(options.family, options.seed, options.count, label)
    write_samples(options.to, origin, _track(samples, options.count))
    print(f"{options.count} networks, {origin.label}, in {options.to}")


def train(options: Namespace) -> None:
    cards = []
    for origin, samples in _datasets(options.data):
        print(f"{origin.family}: training on {len(samples)} networks", file=sys.stderr)
        made = training.train(origin, samples)
        made.save(options.to)
        cards.append(made.card)
    _show((card, score) for card in cards for score in card.scores)


def evaluate(options: Namespace) -> None:
    folder = options.weights
    if options.data:
        data = _datasets(options.data)
        cards = [read_card(origin.family, folder) for origin, _ in data]
        scores = [training.test(card, folder, *its) for card, its in zip(cards, data, strict=True)]
        _show(zip(cards, scores, strict=True))
        return
    known = [family for family in FAMILIES if (folder / f"{family}.json").exists()]
    if not known:
        raise ValueError(f"no weights in {folder}")
    cards = [read_card(family, folder) for family in known]
    _show((card, score) for card in cards for score in card.scores)


def _datasets(paths: Iterable[Path]) -> list[tuple[Origin, Sequence[Sample]]]:
    found = [read_samples(path) for path in paths]
    families = [origin.family for origin, _ in found]
    if twice := {family for family in families if families.count(family) > 1}:
        raise ValueError(f"two files of {', '.join(sorted(twice))}: give one per family")
    return found


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


def _show(rows: Iterable[tuple[Card, Score]]) -> None:
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
    output.show([made])


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(str(error))
