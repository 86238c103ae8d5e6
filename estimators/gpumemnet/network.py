"""The classifiers' forward pass in numpy: `lab.gpumemnet.training` has the same ones in torch, with
the same weight names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from estimators.gpumemnet.features import Features

Array = NDArray[np.float32]
Weights = Mapping[str, Array]

HEADS = 4
EPSILON = 1e-5  # of torch's LayerNorm
SPREAD = 5.0  # most of a logarithm of the need's spread, either way


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Each member's weights, including mean and deviation of the sizes in the training data, and
    the upper edges of all bins but the last, in GB."""

    members: tuple[Weights, ...]

    def probabilities(self, seen: Features) -> Array:
        """Probability of each bin, by member: (members, bins)."""
        return np.stack([bin_probabilities(member, seen) for member in self.members])


@cache
def load(path: Path) -> Ensemble:
    """An .npz whose arrays are named MEMBER/WEIGHT. Raises OSError."""
    members: dict[str, dict[str, Array]] = {}
    with np.load(path) as file:
        for name, array in file.items():
            member, _, weight = name.partition("/")
            members.setdefault(member, {})[weight] = array.astype(np.float32)
    return Ensemble(tuple(members.values()))


def bin_probabilities(weights: Weights, seen: Features) -> Array:
    """Probabilities, (bins,), from an MLP, or from a transformer, which also uses the layers."""
    sums = np.log(np.exp(weights["mix"]) @ np.asarray(seen.tensors, np.float32))
    scalars = np.asarray(seen.scalars, np.float32)
    scalars = np.concatenate([(scalars - weights["mean"]) / weights["deviation"], sums])
    if "position" in weights:
        read = _encode(weights, np.asarray(seen.tokens, np.float32))
        scalars = np.concatenate([scalars, read])
    layers = list(_parts(weights, "head"))
    for layer in layers[:-1]:
        scalars = np.maximum(_linear(weights, layer, scalars), 0)
    shift, spread = _linear(weights, layers[-1], scalars)
    steep = np.exp(-np.clip(spread, -SPREAD, SPREAD))
    over = (sums[0] + shift - np.log(weights["edges"])) * steep
    below = 1 / (1 + np.exp(np.clip(over, -50, 50)))
    return np.diff(below, prepend=0, append=1)


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _encode(weights: Weights, tokens: Array) -> Array:
    """(tokens, features) to (width,): pre-norm encoder layers, then the mean of the outputs."""
    out = _linear(weights, "embed", tokens) + weights["position"][: len(tokens)]
    for layer in _parts(weights, "layers"):
        out = out + _attention(weights, f"{layer}.self_attn", _norm(weights, f"{layer}.norm1", out))
        wide = _linear(weights, f"{layer}.linear1", _norm(weights, f"{layer}.norm2", out))
        out = out + _linear(weights, f"{layer}.linear2", np.maximum(wide, 0))
    return np.asarray(out.mean(0))


def _attention(weights: Weights, name: str, tokens: Array) -> Array:
    joint = tokens @ weights[f"{name}.in_proj_weight"].T + weights[f"{name}.in_proj_bias"]
    heads = joint.reshape(len(tokens), 3, HEADS, -1).transpose(1, 2, 0, 3)
    query, key, value = heads
    mixed = softmax(query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])) @ value
    return _linear(weights, f"{name}.out_proj", mixed.swapaxes(0, 1).reshape(len(tokens), -1))


def _linear(weights: Weights, name: str, values: Array) -> Array:
    return np.asarray(values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])


def _norm(weights: Weights, name: str, values: Array) -> Array:
    centred = values - values.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(centred.var(-1, keepdims=True) + EPSILON)
    return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])


def _parts(weights: Weights, name: str) -> Iterator[str]:
    """NAME.0, NAME.3 …: the parts of a list in torch that have weights, in order."""
    starts = {tuple(key.split(".")[:2]) for key in weights if key.startswith(f"{name}.")}
    for _, number in sorted(starts, key=lambda start: int(start[1])):
        yield f"{name}.{number}"
