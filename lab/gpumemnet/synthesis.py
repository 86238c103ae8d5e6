"""Draws networks to train GPUMemNet on, by the five rules of the CARMA paper, 2.3: (1) realistic
depths, widths and batches, (2) drawn evenly on a logarithmic scale, (3) of uniform, pyramid and
hourglass shape, (4) with realistic combinations of layers, (5) with inputs and outputs of many
sizes. Pure: `networks` builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from random import Random

from estimators.gpumemnet.features import ACTIVATIONS

SHAPES: dict[str, Callable[[float], float]] = {  # relative width at a relative depth of 0–1
    "uniform": lambda depth: 1.0,
    "pyramid": lambda depth: 2.0 ** (-3 * depth),
    "hourglass": lambda depth: 2.0 ** (-3 * (1 - abs(2 * depth - 1))),
}
INPUTS = ("encoder", "decoder", "vision")  # of a transformer
PATCHES = (49, 64, 144, 196, 256, 576)  # that an image is cut into
GB = 10**9


@dataclass(frozen=True, slots=True)
class Block:
    """A kind of building block of CNNs."""

    most: int  # of them in a network
    widest: int  # channels
    kept: float  # roughly, what it keeps for the backward pass, as a multiple of its output


BLOCKS = {
    "plain": Block(24, 768, 2.5),  # as in VGG
    "basic": Block(24, 768, 6),  # ResNet-18
    "bottleneck": Block(24, 1024, 6),  # ResNet-50
    "inverted": Block(24, 320, 20),  # MobileNet, EfficientNet
    "dense": Block(16, 512, 7),  # DenseNet
}


@dataclass(frozen=True, slots=True)
class Mlp:
    batch: int
    inputs: int
    outputs: int
    widths: tuple[int, ...]
    activation: str
    batch_norm: bool
    dropout: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """The blocks of a CNN at one resolution."""

    width: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Cnn:
    batch: int
    image: int  # pixels on a side
    outputs: int
    stem: int  # stride of the first convolution; from 4 on, half of it by a pool
    stages: tuple[Stage, ...]
    block: str  # of BLOCKS
    activation: str
    batch_norm: bool
    dropout: bool
    hidden: int  # width of fully connected layers before the last one; 0: none


@dataclass(frozen=True, slots=True)
class Transformer:
    batch: int
    kind: str  # of INPUTS
    length: int  # tokens
    outputs: int  # words or classes
    width: int
    heads: int
    feed_forward: tuple[int, ...]  # width in each block
    activation: str
    dropout: bool
    fused: bool  # attention in one kernel, that never keeps its weights
    joint: bool  # one linear layer for queries, keys and values


Network = Mlp | Cnn | Transformer


def synthesise(family: str, seed: int) -> Iterator[Network]:
    """Infinite; the same seed draws the same networks."""
    draws: dict[str, Callable[[Random], Network]] = {
        "mlp": _mlp,
        "cnn": _cnn,
        "transformer": _transformer,
    }
    draw = draws[family]
    random = Random(f"{family} {seed}")
    while True:
        yield draw(random)


def _mlp(random: Random) -> Mlp:
    network = Mlp(
        batch=1,
        inputs=_even(random, 8, 16384),
        outputs=_even(random, 2, 2048),
        widths=_widths(random, _even(random, 32, 12_288), random.randint(1, 12)),
        activation=random.choice(ACTIVATIONS),
        batch_norm=random.random() < 0.5,
        dropout=random.random() < 0.5,
    )
    layers = 2 + network.batch_norm + network.dropout
    widths = (network.inputs, *network.widths, network.outputs)
    weights = sum(one * next_one for one, next_one in pairwise(widths))
    sample = 4 * layers * sum(widths)
    return replace(network, batch=_batch(random, 4096, 16 * weights, sample, 9 * GB))


def _cnn(random: Random) -> Cnn:
    image = random.choice((28, 32, 48, 64, 96, 112, 128, 160, 192, 224, 256, 299, 384))
    block = random.choice(tuple(BLOCKS))
    stages = random.randint(2, 5)
    blocks = _even(random, stages, BLOCKS[block].most)
    widths = _widths(random, _even(random, 64, BLOCKS[block].widest), stages)
    if random.random() < 0.7:
        widths = widths[::-1]  # narrow where the image is large, as most CNNs are
    shares = [random.random() + 0.3 for _ in widths]
    deep = [max(1, round(blocks * share / sum(shares))) for share in shares]
    stem = random.choice((1, 2) if image < 96 else (1, 2, 4, 4))
    network = Cnn(
        batch=1,
        image=image,
        outputs=_even(random, 2, 2000),
        stem=stem,
        stages=tuple(Stage(width, number) for width, number in zip(widths, deep, strict=True)),
        block=block,
        activation=random.choice(ACTIVATIONS),
        batch_norm=random.random() < 0.8,
        dropout=random.random() < 0.5,
        hidden=_even(random, 128, 4096) if random.random() < 0.3 else 0,
    )
    kept = sum(
        stage.width * stage.blocks * max(4, image // stem >> number) ** 2
        for number, stage in enumerate(network.stages)
    )
    sample = round(4 * kept * BLOCKS[block].kept)
    return replace(network, batch=_batch(random, 512, 0, sample, 46 * GB))


def _transformer(random: Random) -> Transformer:
    kind = random.choice(INPUTS)
    vision = kind == "vision"
    width = 64 * _even(random, 1, 20)
    depth = _even(random, 1, 24)
    ratio = random.choice((1, 2, 3, 4, 4, 4))
    network = Transformer(
        batch=1,
        kind=kind,
        length=random.choice(PATCHES) if vision else 8 * _even(random, 2, 128),
        outputs=_even(random, 2, 1000) if vision else _even(random, 1000, 60_000),
        width=width,
        heads=max(1, width // random.choice((32, 64, 64, 64))),
        feed_forward=_widths(random, ratio * width, depth),
        activation=random.choice(("ReLU", "GELU", "GELU", "SiLU", "Tanh")),
        dropout=random.random() < 0.7,
        fused=random.random() < 0.7,
        joint=random.random() < 0.5,
    )
    weights = depth * 4 * width**2 + 2 * width * sum(network.feed_forward)
    weights += network.outputs * width * (1 if vision else 2)
    token = depth * 10 * width + 2 * sum(network.feed_forward)
    token += 0 if vision else 3 * network.outputs
    token += 0 if network.fused else 3 * depth * network.heads * network.length
    sample = 4 * token * network.length
    return replace(network, batch=_batch(random, 256, 16 * weights, sample, 46 * GB))


def _batch(random: Random, largest: int, fixed: int, sample: int, limit: int) -> int:
    """Half of the time any size, half of the time one that takes a number of bytes drawn at random.

    The rough sizes in bytes, `fixed` and per `sample`, only prevent most networks from being tiny
    or larger than a GPU. `limit` is above the largest class, so that this one has samples, too.
    """
    most = max(2, min(largest, (limit - fixed) // sample))
    if random.random() < 0.5:
        return _even(random, 2, most)
    return max(2, min(most, int(random.uniform(0, limit) - fixed) // sample))


def _even(random: Random, low: int, high: int) -> int:
    """Evenly on a logarithmic scale, from `low` to `high`."""
    return round(exp(random.uniform(log(low), log(high))))


def _widths(random: Random, widest: int, depth: int) -> tuple[int, ...]:
    shape = SHAPES[random.choice(tuple(SHAPES))]
    last = max(1, depth - 1)
    return tuple(max(8, 8 * round(widest * shape(i / last) / 8)) for i in range(depth))
