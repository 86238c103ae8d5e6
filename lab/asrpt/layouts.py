"""The nine models of A-SRPT's table I, and how each is spread over GPUs: what the workload's groups
of jobs train.

The paper profiled them on a V100 and prints no times. Here they follow from published sizes:

- A forward pass takes its floating-point operations at half of a V100's 15.7 TFLOPS (FP32, where
  the usual 350 to 400 images/s of ResNet-50 are 60 %), a backward pass twice as long.
- CNNs: operations and cuts as in torchvision's tables of weights and layers, at its image sizes.
- Transformers: 2 operations a parameter and token, and 4·tokens·width a token and layer for
  attention (Megatron-LM paper); layers and widths as in the models' papers. 512 tokens, as the
  paper has it for T5 and GPT; 384, usual for SQuAD, for BERT and XLNet.
- Parameters and mini-batches are table I's. "The processing of a single mini-batch by a stage is
  distributed over the GPUs" (III-A): replicas share one, also where that is less than a sample for
  each. Values are 4 bytes.

The paper's configurations come from a pipeline planner that it cites. Here: every equal split into
stages, with as many replicas of each as there are GPUs for, whose parameters fit; of VGG19, whose
last layers have most parameters and least work, these apart on one GPU, as PipeDream's planner has
it; of the other CNNs, replicas of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Literal

from carmad.core.jobs.layout import Layout, Stage

FLOPS = 15.7e12 / 2
VALUE_MIB = 4 / (1 << 20)
PARAMETER_BYTES = 8  # itself and its gradient: of optimizers nothing is said, SGD keeps no more
ROOM_BYTES = 24 << 30  # for these, of the 32 GiB of a V100


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive layers, by the sample."""

    operations: float  # of a forward pass
    parameters: float
    values: float = 0.0  # passed on to the next part


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    batch: int  # samples of a mini-batch, which the replicas of a stage share
    parts: tuple[Part, ...]
    layers: int = 1  # equal ones, that `parts`, then a single one, may be cut into


def _cnn(name: str, batch: int, gmacs: float, parameters: float) -> Network:
    return Network(name, batch, (Part(2e9 * gmacs, parameters),))


def _transformer(
    name: str, batch: int, parameters: float, layers: int, width: int, tokens: int, inner: int = 0
) -> Network:
    """`inner`: what attention works in, where that is not the width."""
    operations = 2 * parameters * tokens + 4.0 * layers * tokens**2 * (inner or width)
    return Network(name, batch, (Part(operations, parameters, tokens * width),), layers)


# Up to the third pooling, up to the last one, and the fully connected layers.
_VGG19 = (
    Part(2 * 11.18e9, 2.33e6, 256 * 28 * 28),
    Part(2 * 8.33e9, 17.70e6, 512 * 7 * 7),
    Part(2 * 0.124e9, 123.64e6),
)
NETWORKS = (
    Network("vgg19", 32, _VGG19),
    _cnn("resnet152", 4, 11.51, 60e6),
    _cnn("inception-v3", 32, 5.71, 24e6),
    _transformer("bert-large", 4, 340e6, 24, 1024, 384),
    _transformer("xlnet-large", 4, 550e6, 24, 1024, 384),
    _transformer("t5-11b", 8, 11e9, 48, 1024, 512, inner=128 * 128),
    _transformer("gpt-6.7b", 32, 6.7e9, 32, 4096, 512),
    _transformer("gpt-13b", 32, 13e9, 40, 5120, 512),
    _transformer("gpt-175b", 16, 175e9, 96, 12288, 512),
)


def drawn(gpus: int, random: Random) -> tuple[str, Layout]:
    """A network that so many GPUs have room for, each as likely, and one of its layouts; its
    all-reduce by ring or by tree."""
    name, layouts = random.choice(options(gpus))
    layout = random.choice(layouts)
    return name, _reducing(layout, "ring" if random.random() < 0.5 else "tree")


@cache
def options(gpus: int) -> tuple[tuple[str, tuple[Layout, ...]], ...]:
    """All networks that fit, with their layouts over so many GPUs."""
    found = ((network.name, tuple(_layouts(network, gpus))) for network in NETWORKS)
    return tuple((name, layouts) for name, layouts in found if layouts)


@cache  # equal layouts are one object, and so what is remembered of them is found quickly
def _reducing(layout: Layout, allreduce: Literal["ring", "tree"]) -> Layout:
    return replace(layout, allreduce=allreduce)


def _layouts(network: Network, gpus: int) -> Iterator[Layout]:
    for split in _splits(network, gpus):
        if all(part.parameters * PARAMETER_BYTES <= ROOM_BYTES for part, _ in split):
            yield _layout(network.batch, split)


def _splits(network: Network, gpus: int) -> Iterator[Sequence[tuple[Part, int]]]:
    """Parts, and how often each is there."""
    *front, last = network.parts
    whole = _together(network.parts)
    for stages in range(1, min(gpus, network.layers) + 1):
        if gpus % stages == 0:
            yield [(_slice(whole, stages), gpus // stages)] * stages
    if front and gpus > 1:
        yield [(_together(front), gpus - 1), (last, 1)]
    if len(front) > 1 and gpus > 3:
        yield [(front[0], gpus // 2), (_together(front[1:]), gpus - gpus // 2 - 1), (last, 1)]


def _together(parts: Sequence[Part]) -> Part:
    return Part(
        sum(part.operations for part in parts),
        sum(part.parameters for part in parts),
        parts[-1].values,
    )


def _slice(whole: Part, stages: int) -> Part:
    return Part(whole.operations / stages, whole.parameters / stages, whole.values)


def _layout(batch: int, split: Sequence[tuple[Part, int]]) -> Layout:
    """In an iteration each stage sees all samples, shared among its replicas."""
    stages = []
    before = 0.0
    for n, (part, replicas) in enumerate(split):
        share = batch / replicas
        forward_s = share * part.operations / FLOPS
        after = part.values if n + 1 < len(split) else 0.0
        stages.append(
            Stage(
                replicas,
                forward_s,
                2 * forward_s,
                share * before * VALUE_MIB,
                share * after * VALUE_MIB,
                part.parameters * VALUE_MIB,
            )
        )
        before = after
    return Layout(tuple(stages))
