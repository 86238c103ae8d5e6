"""Trains the classifiers (torch) and evaluates them (scikit-learn), as in the CARMA paper, A.2:
cross-entropy and Adam, a held-out 30 % test split, and of the rest three stratified folds of 70 %
for training and 30 % for choosing the epoch.

Bins are ordered, and memory is a sum of tensors. So the networks begin with sums of these, with
learnt factors, and end in an ordered logit: where on the scale of the need's logarithm it is, and
how far from there it may be. That is trained on the finest bins; the wider ones are sums of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import StratifiedShuffleSplit
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from estimators.gpumemnet import network
from estimators.gpumemnet.features import TENSORS, TOKENS, TYPES, Features, features, kinds
from estimators.gpumemnet.files import GB, Card, Origin, Score, span_values
from lab.gpumemnet.data import Sample

Labels = NDArray[np.int64]
Indices = NDArray[np.intp]

RANGES_GB = (1, 2, 8)  # widths of bins that the paper tries
LIMITS_GB = {"mlp": 8, "cnn": 40, "transformer": 40}
GOOD = 0.9  # validation accuracy below which the next wider range is used
FOLDS = 3
SUMS = 8  # of tensors, each with factors of its own
HIDDEN = 64
WIDTH = 32  # of a token in the transformer
LAYERS = 2
BATCH = 64
EPOCHS = {"mlp": 200, "transformer": 20}  # by kind of classifier
ENSEMBLES = {kind: (kind,) for kind in EPOCHS} | {"both": tuple(EPOCHS)}
RATE = 2e-3
LEAST = 1e-6  # probability of a bin in the loss
SEED = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """A family's shipped ensemble: its card, and its weights by MEMBER/WEIGHT."""

    card: Card
    weights: Mapping[str, network.Array]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        family = self.card.origin.family
        arrays = {name: array.astype(np.float16) for name, array in self.weights.items()}
        np.savez_compressed(folder / f"{family}.npz", **arrays)  # type: ignore[arg-type]
        (folder / f"{family}.json").write_text(self.card.dumps())


def train(origin: Origin, samples: Sequence[Sample]) -> Trained:
    """Train both ensembles; use the finest range at which they do well together."""
    seen = [features(sample.layers, sample.batch) for sample in samples]
    limit = LIMITS_GB[origin.family]
    outcome = cross_validate(seen, samples, limit)
    together = [score for score in outcome.scores if score.ensemble == "both"]
    good = [score.range_gb for score in together if (score.validation or 0) >= GOOD]
    range_gb = min(good, default=RANGES_GB[-1])
    spans = [dict(span_values(each)) for each in seen]
    card = Card(
        origin,
        len(samples),
        range_gb=range_gb,
        limit_gb=limit,
        kinds=tuple(sorted({kind for sample in samples for kind in kinds(sample.layers)})),
        spans=tuple(
            (name, min(each[name] for each in spans), max(each[name] for each in spans))
            for name in spans[0]
        ),
        scores=outcome.scores,
    )
    edges = {"edges": _edges(range_gb, limit).numpy()}
    weights = {
        f"{member.name}/{name}": array
        for member in outcome.members
        for name, array in (*member.weights.items(), *edges.items())
    }
    return Trained(card, weights)


def test(card: Card, folder: Path, origin: Origin, samples: Sequence[Sample]) -> Score:
    """The score of the weights in `folder` on all samples, or, if they were trained on these, on
    the test split. Raises ValueError if that split cannot be determined."""
    truth = labels(samples, card.range_gb, card.limit_gb)
    among: Indices = np.arange(len(samples))
    if origin == card.origin:
        if len(samples) != card.samples:
            raise ValueError(
                f"{card.samples} {origin.family} networks of this seed were trained on, and here "
                f"are {len(samples)}: generate some with another seed"
            )
        among = split_test(labels(samples, RANGES_GB[-1], card.limit_gb))[1]
    ensemble = network.load(folder / f"{origin.family}.npz")
    asked = [samples[i] for i in among]
    told = [
        ensemble.probabilities(features(sample.layers, sample.batch)).mean(0) for sample in asked
    ]
    accuracy, f1 = judge([np.stack(told)], truth[among], np.arange(len(asked)))
    return Score("both", card.range_gb, len(asked), accuracy, f1)


def labels(samples: Sequence[Sample], range_gb: int, limit_gb: int) -> Labels:
    """Each sample's bin; the last one is for everything above the limit."""
    bins = [min(sample.mib, limit_gb * GB) // (range_gb * GB) for sample in samples]
    return np.array(bins, np.int64)


@dataclass(frozen=True, slots=True)
class Member:
    """A trained classifier, and its predictions for all samples."""

    kind: str
    fold: int
    weights: network.Weights
    probabilities: NDArray[np.float32]  # (samples, the finest bins)

    @property
    def name(self) -> str:
        return f"{self.kind}{self.fold}"


@dataclass(frozen=True, slots=True)
class Outcome:
    scores: tuple[Score, ...]  # by range: of the MLPs, of the transformers, of both together
    members: tuple[Member, ...]


def cross_validate(seen: Sequence[Features], samples: Sequence[Sample], limit_gb: int) -> Outcome:
    """`seen` are the samples' features. Splits are stratified by the widest bins."""
    truths = {range_gb: labels(samples, range_gb, limit_gb) for range_gb in RANGES_GB}
    rest, test = split_test(truths[RANGES_GB[-1]])
    checks: dict[int, Indices] = {}
    members: list[Member] = []
    for fold, (learn, check) in enumerate(_folds(rest, truths[RANGES_GB[-1]])):
        checks[fold] = check
        shared = (fold, seen, truths[RANGES_GB[0]], _edges(RANGES_GB[0], limit_gb), learn, check)
        members += [_fit(kind, *shared) for kind in EPOCHS]
    scores = []
    for range_gb, (ensemble, among) in product(RANGES_GB, ENSEMBLES.items()):
        truth = truths[range_gb]
        asked = [(m.fold, _wider(m.probabilities, range_gb)) for m in members if m.kind in among]
        validation = [
            judge([found for of, found in asked if of == fold], truth, check)[0]
            for fold, check in checks.items()
        ]
        accuracy, f1 = judge([found for _, found in asked], truth, test)
        mean = round(sum(validation) / FOLDS, 4)
        scores.append(Score(ensemble, range_gb, len(test), accuracy, f1, mean))
    return Outcome(tuple(scores), tuple(members))


def _wider(probabilities: NDArray[np.float32], range_gb: int) -> NDArray[np.float32]:
    """Of the finest bins, to bins of a wider range."""
    first = range(0, probabilities.shape[1], range_gb // RANGES_GB[0])
    return np.add.reduceat(probabilities, first, axis=1)


def _edges(range_gb: int, limit_gb: int) -> Tensor:
    """Upper bounds in GB of all bins but the last."""
    return torch.arange(range_gb, limit_gb + 1, range_gb, dtype=torch.float32)


def split_test(truth: Labels) -> tuple[Indices, Indices]:
    """The training indices, and the 30 % for testing; deterministic."""
    return next(_stratify(1, np.arange(len(truth)), truth))


def judge(
    probabilities: Sequence[NDArray[np.float32]], truth: Labels, among: Indices
) -> tuple[float, float]:
    """Accuracy, and F1 weighted by class size, of an ensemble with (samples, bins) per member."""
    told = np.mean(probabilities, axis=0)[among].argmax(1)
    accuracy = accuracy_score(truth[among], told)
    f1 = f1_score(truth[among], told, average="weighted", zero_division=0)
    return round(float(accuracy), 4), round(float(f1), 4)


def _folds(rest: Indices, truth: Labels) -> Iterator[tuple[Indices, Indices]]:
    for learn, check in _stratify(FOLDS, rest, truth[rest]):
        yield rest[learn], rest[check]


def _stratify(splits: int, among: Indices, truth: Labels) -> Iterator[tuple[Indices, Indices]]:
    """Stratified splits. A class with too few members to be split is merged with the one below."""
    strata = truth.copy()
    counts = Counter(strata.tolist())
    for label in sorted(counts, reverse=True):
        if counts[label] < 4 and label:
            below = max((other for other in counts if other < label), default=label)
            strata[strata == label] = below
            counts[below] += counts[label] if below != label else 0
    split = StratifiedShuffleSplit(splits, test_size=0.3, random_state=SEED)
    yield from split.split(among, strata)


class _Classifier(nn.Module):
    """Probabilities of bins, from sums of tensors and further inputs."""

    def __init__(self, inputs: int, edges: Tensor) -> None:
        super().__init__()
        self.register_buffer("bounds", edges.log(), persistent=False)
        self.mix = nn.Parameter(torch.randn(SUMS, len(TENSORS)) / 5)  # logarithms of factors
        self.head = nn.Sequential(
            nn.Linear(inputs + SUMS, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2),
        )
        with torch.no_grad():  # begin near the first sum, with a spread of some ten percent
            self.head[-1].weight.mul_(0.1)
            self.head[-1].bias.copy_(torch.tensor([0.0, -2.0]))

    def forward(self, tensors: Tensor, scalars: Tensor, tokens: Tensor, empty: Tensor) -> Tensor:
        sums = (tensors @ self.mix.exp().T).log()
        inputs = torch.cat([scalars, sums, *self.read(tokens, empty)], 1)
        shift, spread = self.head(inputs).T
        steep = (-spread.clamp(-network.SPREAD, network.SPREAD)).exp()
        centre = sums[:, 0] + shift
        below = ((self.bounds - centre[:, None]) * steep[:, None]).sigmoid()
        return nn.functional.pad(below, (0, 1), value=1).diff(dim=1, prepend=0 * below[:, :1])

    def read(self, tokens: Tensor, empty: Tensor) -> tuple[Tensor, ...]:
        """Further inputs of the head."""
        return ()


class _Transformer(_Classifier):
    def __init__(self, inputs: int, edges: Tensor) -> None:
        super().__init__(inputs + WIDTH, edges)
        self.embed = nn.Linear(len(TYPES) + 2, WIDTH)
        self.position = nn.Parameter(torch.randn(TOKENS, WIDTH) / 10)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, network.HEADS, 2 * WIDTH, dropout=0.05, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )

    def read(self, tokens: Tensor, empty: Tensor) -> tuple[Tensor, ...]:
        out = self.embed(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            out = layer(out, src_key_padding_mask=empty)
        kept = (~empty).unsqueeze(-1)
        return ((out * kept).sum(1) / kept.sum(1),)


def _fit(
    kind: str,
    fold: int,
    seen: Sequence[Features],
    truth: Labels,
    edges: Tensor,
    learn: Indices,
    check: Indices,
) -> Member:
    """Train; returns the state after the epoch that is best on `check`."""
    torch.manual_seed(SEED + fold)
    scalars = torch.tensor([each.scalars for each in seen])
    mean, deviation = scalars[learn].mean(0), scalars[learn].std(0) + 1e-3
    tensors = torch.tensor([each.tensors for each in seen])
    inputs = (tensors, (scalars - mean) / deviation, *_pad(seen))
    target = torch.from_numpy(truth)
    made = _Classifier if kind == "mlp" else _Transformer
    model = made(scalars.shape[1], edges)

    def loss_on(batch: Tensor | Indices) -> Tensor:
        found = model(*(each[batch] for each in inputs))
        return nn.functional.nll_loss((found + LEAST).log(), target[batch])

    optimizer = torch.optim.Adam(model.parameters(), RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS[kind])
    least, best = float("inf"), {}
    for _ in range(EPOCHS[kind]):
        model.train()
        for batch in torch.from_numpy(learn)[torch.randperm(len(learn))].split(BATCH):
            optimizer.zero_grad()
            loss_on(batch).backward()
            optimizer.step()
        rates.step()
        model.eval()
        with torch.no_grad():
            loss = float(loss_on(check))
        if loss < least:
            least = loss
            best = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(best)
    with torch.no_grad():
        probabilities = model(*inputs).numpy()
    best |= {"mean": mean, "deviation": deviation}
    return Member(kind, fold, {name: best[name].numpy() for name in best}, probabilities)


def _pad(seen: Sequence[Features]) -> tuple[Tensor, Tensor]:
    """(samples, most tokens, features), and the padding mask."""
    tokens = pad_sequence([torch.tensor(each.tokens) for each in seen], batch_first=True)
    lengths = torch.tensor([[len(each.tokens)] for each in seen])
    return tokens, torch.arange(tokens.shape[1]) >= lengths
