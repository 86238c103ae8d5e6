"""What was learned: the `models` of policies and predictors, how accurate the `estimators` of
memory are, and `gpumemnet`, which labels generated networks, trains classifiers on them and
evaluates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from carmad.readable import clean
from cli import client, output
from cli.options import add_json
from cli.parse import whole
from cli.problems import Problem, Usage
from cli.text import NOTHING, Table, bar, columns, heading, in_style, local_time, pairs, span

if TYPE_CHECKING:
    from argparse import Namespace

    from carmad.api.estimates import EstimatorsOut
    from carmad.api.models import BinOut, ModelDetailOut, ModelOut, ModelsOut, TrainingOut
    from cli.plain import Options
    from cli.text import Block
    from estimators.gpumemnet.files import Card, Origin, Sample, Score


def models_options(parser: Options) -> None:
    about = "draw this model: its tree, or its curves"
    parser.add_argument("name", nargs="?", metavar="NAME", help=about)
    about = "train the models now (administrators)"
    parser.add_argument("--train", action="store_true", help=about)
    add_json(parser)


def models(options: Namespace) -> int:
    """Some come with CARMA; others are trained, and regularly retrained, on this server's past
    jobs. ERROR is measured on jobs left out of the training.
    """
    name = options.name
    if options.train and name:
        raise Usage("--train takes no name: it trains all models", "leave the name out")
    if options.train:
        answer = client.post("/v1/models/train", None)
    else:
        answer = client.get("/v1/models" if name is None else f"/v1/models/{quote(name, safe='')}")
    if options.json:
        output.print_json(answer)
    elif options.train:
        print("training has started and takes minutes: see `carma models`")
    else:
        output.show(model_list(answer) if name is None else model_details(answer))
    return 0


MOST_BINS = 16  # drawn per curve: --json has all
WIDTH = 24  # of a bar, in characters


def model_list(answer: ModelsOut) -> list[Block]:
    made = Table(columns("MODEL~ KIND ROWS> TRAINED ERROR> PREDICTS*"))
    for one in answer["models"]:
        made.add(
            clean(one["name"]),
            one["kind"],
            str(one["rows"]),
            _training_time(one),
            _first_error(one),
            clean(one["about"]),
        )
    return [made, *(in_style(line, "dim") for line in _training(answer["training"]))]


def model_details(answer: ModelDetailOut) -> list[Block]:
    one = answer["model"]
    about = [
        ("model", f"{clean(one['name'])}  ({one['kind']})"),
        ("predicts", clean(one["about"])),
        ("learned from", f"{one['rows']} rows: {clean(one['source'])}"),
        ("trained", _training_time(one)),
        *((clean(name), f"{error:.3g}") for name, error in one["errors"].items()),
    ]
    parts: list[Block] = [pairs(about), *_importance(one)]
    if answer["tree"]:
        lines = answer["tree"].splitlines()
        parts += [*heading("tree"), *(f"  {clean(line)}" for line in lines)]
    if answer["curves"]:
        of = "the logarithm of the prediction" if answer["link"] == "log" else "the prediction"
        parts += heading(f"what each value adds to {of}")
    # One scale for all curves, so that small effects look small.
    scores = (abs(bin["score"]) for curve in answer["curves"] for bin in curve["bins"])
    greatest = max(scores, default=0.0)
    for curve in answer["curves"]:
        parts += heading(f"  {clean(curve['feature'])}")
        parts.append(_curve(curve["bins"], greatest))
    return parts


def _training(training: TrainingOut) -> Iterator[str]:
    days = training["every_days"]
    yield ""
    if training["lacking"]:
        what = training["lacking"]
        yield f"no models are trained here: {what} is missing (carma extras install policies)"
        return
    often = "only on request"
    if days:
        often = f"every {days:g} days" if days >= 1 else f"every {span(days * 86_400)}"
    yield f"trained {often}, last {local_time(training['last_at'])}"
    if training["under_way"]:
        yield "being trained now"
    yield from (f"  · {clean(line)}" for line in training["last_words"])


def _training_time(one: ModelOut) -> str:
    return local_time(one["trained_at"]) if one["trained_at"] else "shipped"


def _first_error(one: ModelOut) -> str:
    return next((f"{clean(name)} {error:.3g}" for name, error in one["errors"].items()), NOTHING)


def _importance(one: ModelOut) -> list[Block]:
    shares = one["importance"]
    greatest = max(shares.values(), default=0.0) or 1.0
    made = Table(columns("- - -"), header=False)
    for feature, share in shares.items():
        made.add(f"  {clean(feature)}", f"{share:.3f}", bar(share / greatest, WIDTH))
    return [*heading("importance"), made] if shares else []


def _curve(bins: Sequence[BinOut], greatest: float) -> Table:
    made = Table(columns("-> -> -"), header=False)
    for bin in _thin(bins):
        score = bin["score"]
        length = round(abs(score) / (greatest or 1.0) * WIDTH / 2)
        left, right = ("█" * length, "") if score < 0 else ("", "█" * length)
        drawn = f"{left:>{WIDTH // 2}}│{right}"
        made.add(f"    {clean(bin['label'])}", f"{score:+.3g}", drawn)
    return made


def _thin(bins: Sequence[BinOut]) -> list[BinOut]:
    """An even selection with the first and the last."""
    if len(bins) <= MOST_BINS:
        return list(bins)
    last = len(bins) - 1
    return [bins[round(n * last / (MOST_BINS - 1))] for n in range(MOST_BINS)]


estimators_options = add_json


def estimators(options: Namespace) -> int:
    """BIAS is the median error, positive for estimates that are too high. Half of the errors are
    within P50, 95% within P95. THEN is P50 of the older half of these jobs, NOW of the newer half:
    whether it has become better. UNTAUGHT is P50 without what the estimator has learned from
    similar jobs. UNDER is the share of jobs that used more than the upper end of their estimate.
    """
    answer = client.get("/v1/estimators")
    if options.json:
        output.print_json(answer)
    else:
        output.show(accuracy_table(answer))
    return 0


def accuracy_table(answer: EstimatorsOut) -> list[Block]:
    from carmad.readable import clean
    from cli.text import NOTHING, Table, columns, heading, in_style, memory

    made = Table(columns("ESTIMATOR~ JOBS> BIAS> P50> P95> THEN> NOW> UNTAUGHT> UNDER>"))
    for one in answer["estimators"]:
        bias, under = one["bias_mib"], one["under"]
        made.add(
            clean(one["name"]),
            str(one["jobs"]),
            NOTHING if bias is None else f"{'-' if bias < 0 else '+'}{memory(abs(bias))}",
            memory(one["p50_mib"]),
            memory(one["p95_mib"]),
            memory(one["early_p50_mib"]),
            memory(one["recent_p50_mib"]),
            memory(one["untaught_p50_mib"]),
            NOTHING if under is None else f"{under:.0%}",
        )
    head = f"in use: {clean(answer['estimator'])}; based on {answer['jobs']} jobs that succeeded"
    parts: list[Block] = [in_style(head, "bold"), made]
    if answer["contexts"]:
        parts += heading("context, as the trace estimator has learned it")
    for learned in answer["contexts"]:
        context = memory(learned["context_mib"])
        parts.append(f"  {clean(learned['stack'])}: {context}, {learned['jobs']} jobs")
    return parts


T = TypeVar("T")

NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "numpy": "numpy"}
MOST = 1 << 32  # of a seed, or of networks


class Family(StrEnum):
    MLP = "mlp"
    CNN = "cnn"
    TRANSFORMER = "transformer"


def gpumemnet_generate_options(parser: Options) -> None:
    parser.add_argument("to", metavar="FILE", type=Path, help="output file (.jsonl.gz)")
    families = [family.value for family in Family]
    about = "family of networks"
    parser.add_argument("--family", required=True, choices=families, help=about)
    about = "number of networks (default %(default)s)"
    parser.add_argument("--count", metavar="N", type=whole(1, MOST), default=1500, help=about)
    about = "random seed (default %(default)s)"
    parser.add_argument("--seed", metavar="N", type=whole(0, MOST), default=0, help=about)
    about = "measure on this machine's GPU instead of tracing"
    parser.add_argument("--measure", action="store_true", help=about)


def gpumemnet_generate(options: Namespace) -> int:
    _check_installed()
    import torch

    from estimators.gpumemnet import files, networks

    if options.measure and not torch.cuda.is_available():
        raise Problem("torch finds no GPU here", "leave out --measure to trace the networks")
    torch.set_num_threads(1)  # more would only wait
    label = networks.label_by_run if options.measure else networks.label_by_trace
    with _report_errors():
        origin = networks.origin(options.family, options.seed, options.measure)
        samples = networks.samples(options.family, options.seed, options.count, label)
        files.write_samples(options.to, origin, _track(samples, options.count))
    print(f"{options.count} networks, {origin.label}, in {options.to}")
    return 0


def gpumemnet_train_options(parser: Options) -> None:
    about = "files written by generate"
    parser.add_argument("data", metavar="DATA", nargs="+", type=Path, help=about)
    about = "output folder for the weights"
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help=about)


def gpumemnet_train(options: Namespace) -> int:
    _check_installed()
    import torch

    from estimators.gpumemnet.training import train as trained

    torch.set_num_threads(1)  # more would only wait
    cards = []
    for origin, samples in _datasets(options.data):
        output.note(f"{origin.family}: training on {len(samples)} networks")
        with _report_errors():
            made = trained(origin, samples)
            made.save(options.to)
        cards.append(made.card)
    output.show(_table((card, score) for card in cards for score in card.scores))
    return 0


def gpumemnet_evaluate_options(parser: Options) -> None:
    about = "evaluate on these instead of the test split"
    parser.add_argument("data", metavar="DATA", nargs="*", type=Path, help=about)
    about = "default: the weights that come with CARMA"
    parser.add_argument("--weights", metavar="FOLDER", type=Path, help=about)


def gpumemnet_evaluate(options: Namespace) -> int:
    """Without DATA, the accuracy recorded in training. Of DATA that they were trained on, only the
    test split is used.
    """
    from estimators.gpumemnet.files import WEIGHTS, read_card

    folder = options.weights or WEIGHTS
    rows: list[tuple[Card, Score]] = []
    with _report_errors():
        if not options.data:
            cards = [read_card(str(each), folder) for each in Family if _is_there(each, folder)]
            if not cards:
                raise Problem(f"no weights in {folder}", "create some with `carma gpumemnet train`")
            rows = [(card, score) for card in cards for score in card.scores]
        else:
            _check_installed()
            from estimators.gpumemnet.training import test

            for origin, samples in _datasets(options.data):
                card = read_card(origin.family, folder)
                rows += [(card, test(card, folder, origin, samples))]
    output.show(_table(rows))
    return 0


def _is_there(family: Family, folder: Path) -> bool:
    return (folder / f"{family}.json").exists()


def _check_installed() -> None:
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        what = f"this needs {', '.join(missing)}, which CARMA's Python does not have"
        from carmad.installed import how_to_add

        raise Problem(what, how_to_add("estimators"))


@contextmanager
def _report_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise Problem(str(error)) from error


def _datasets(paths: Iterable[Path]) -> list[tuple[Origin, list[Sample]]]:
    from estimators.gpumemnet.files import read_samples

    with _report_errors():
        read_in = [read_samples(path) for path in paths]
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
    from cli.text import NOTHING, Table, columns, fraction
    from estimators.gpumemnet.files import TABLE_3

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
