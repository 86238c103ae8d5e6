"""GPUMemNet's features of a network (CARMA paper, 2.3 and A.2): a few numbers, and its layers in
order. Pure Python; the classifiers are in `network`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import cos, log1p, pi, sin

from estimators.tracer.report import Layer

ACTIVATIONS = (
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "PReLU",
    "ELU",
    "SELU",
    "Softplus",
    "Tanh",
    "Sigmoid",
    "Hardswish",
    "SiLU",
    "Mish",
    "GELU",
)
TYPE_OF = {
    "Linear": "linear",
    "Conv2d": "convolution",
    "BatchNorm1d": "batch norm",
    "BatchNorm2d": "batch norm",
    "LayerNorm": "layer norm",
    "Embedding": "embedding",
    "Dropout": "dropout",
    "MaxPool2d": "pool",
    "AvgPool2d": "pool",
    "AdaptiveAvgPool2d": "pool",
    "Softmax": "softmax",
} | dict.fromkeys(ACTIVATIONS, "activation")
TYPES = tuple(dict.fromkeys(TYPE_OF.values()))
ALIASES = {  # classes of other libraries that use memory like the class of torch
    "BatchNormAct2d": "BatchNorm2d",
    "Conv2dSame": "Conv2d",
    "DropPath": "Dropout",
    "FastAdaptiveAvgPool2d": "AdaptiveAvgPool2d",
    "GELUActivation": "GELU",
    "NonDynamicallyQuantizableLinear": "Linear",
    "StochasticDepth": "Dropout",
}
VIEWS = frozenset({"Flatten", "Identity", "Unflatten"})  # they allocate nothing

SIZES = (
    "linear layers",
    "batch norm layers",
    "dropout layers",
    "convolutions",
    "batch size",
    "parameters",
    "activations per sample",
)
# Tensors whose bytes are summed by what decides how long they are kept: the type of the layer that
# writes them and that of the next one, and the activation function.
END = "end"  # after the last layer
LARGEST = 3  # outputs that also count on their own: their gradients exist one at a time
TENSORS = (
    "context",
    "parameters",
    *product(TYPES, (*TYPES, END)),
    *ACTIVATIONS,
    *(f"largest output {n}" for n in range(LARGEST)),
)
CONTEXT_GB = 0.5  # of CUDA, roughly: training finds the factor
COPIES = 4  # of the parameters: gradients and Adam's two moments
BYTES = 4  # of a float32
GB = 1000 * 2**20  # bytes in the unit of the paper's bins
TOKENS = 64  # longer networks are reduced to this many groups of adjacent layers
FAMILIES = ("mlp", "cnn", "transformer")


@dataclass(frozen=True, slots=True)
class Features:
    sizes: tuple[float, ...]  # by SIZES
    activation: tuple[float, float]  # the activation function, as sine and cosine of an angle
    tokens: tuple[tuple[float, ...], ...]  # per piece: share of each of TYPES, two logarithms
    tensors: tuple[float, ...]  # GB, by TENSORS

    @property
    def scalars(self) -> tuple[float, ...]:
        return (*map(log1p, self.sizes), *self.activation)


def kinds(layers: Sequence[Layer]) -> list[str]:
    """The layers' classes by torch's names, without those that are not layers."""
    return [ALIASES.get(layer.kind, layer.kind) for layer in layers if not _is_none(layer)]


def features(layers: Sequence[Layer], batch: int) -> Features:
    """Raises KeyError for a class of layer that is not in TYPE_OF."""
    kept = [layer for layer in layers if not _is_none(layer)]
    named = kinds(kept)
    types = [TYPE_OF[kind] for kind in named]
    number = Counter(types)
    parameters = sum(layer.parameters for layer in layers)
    sizes = (
        number["linear"],
        number["batch norm"],
        number["dropout"],
        number["convolution"],
        batch,
        parameters,
        sum(layer.activations for layer in kept),
    )
    pieces = [_token(types[part], kept[part]) for part in _pieces(len(kept))]
    tensors = _tensors(kept, named, types, batch, parameters)
    return Features(tuple(map(float, sizes)), _encode_activation(named), tuple(pieces), tensors)


def family(layers: Sequence[Layer]) -> str | None:
    """One of FAMILIES, or None.

    A transformer may have one or two convolutions, which split an image into patches.
    """
    types = Counter(TYPE_OF.get(kind) for kind in kinds(layers))
    if types["convolution"] > 2 or (types["convolution"] and not types["layer norm"]):
        return "cnn"
    if types["linear"] and types["layer norm"]:
        return "transformer"
    return "mlp" if types["linear"] and not types["embedding"] else None


def _is_none(layer: Layer) -> bool:
    """Of a module with children and parameters of an unknown kind, only the parameters count."""
    if layer.inner and ALIASES.get(layer.kind, layer.kind) not in TYPE_OF:
        return True
    return layer.kind in VIEWS or layer.kind.endswith("Loss")


def _tensors(
    layers: Sequence[Layer], named: Sequence[str], types: Sequence[str], batch: int, parameters: int
) -> tuple[float, ...]:
    """GB, by TENSORS."""
    elements: Counter[object] = Counter({"parameters": COPIES * parameters})
    for layer, kind, ends in zip(layers, named, pairwise((*types, END)), strict=True):
        elements[ends] += batch * layer.activations
        if kind in ACTIVATIONS:
            elements[kind] += batch * layer.activations
    outputs = sorted((layer.activations for layer in layers), reverse=True)
    elements.update({f"largest output {n}": batch * out for n, out in enumerate(outputs[:LARGEST])})
    found = [BYTES * elements[name] / GB for name in TENSORS]
    found[TENSORS.index("context")] = CONTEXT_GB
    return tuple(found)


def _encode_activation(named: Sequence[str]) -> tuple[float, float]:
    used = Counter(kind for kind in named if kind in ACTIVATIONS)
    if not used:
        return 0.0, 0.0
    angle = 2 * pi * ACTIVATIONS.index(used.most_common(1)[0][0]) / len(ACTIVATIONS)
    return sin(angle), cos(angle)


def _pieces(layers: int) -> list[slice]:
    count = min(layers, TOKENS)
    edges = [layers * i // count for i in range(count + 1)] if count else [0]
    return [slice(start, end) for start, end in pairwise(edges)]


def _token(types: Sequence[str], layers: Sequence[Layer]) -> tuple[float, ...]:
    shares = [types.count(each) / len(types) for each in TYPES]
    activations = sum(layer.activations for layer in layers)
    parameters = sum(layer.parameters for layer in layers)
    return (*shares, log1p(activations) / 10, log1p(parameters) / 10)
