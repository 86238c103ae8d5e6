"""A decision tree: predicts a class from indicators, and says which conditions led to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isnan
from typing import Literal

LEAF = -1  # the feature of a node without children


@dataclass(frozen=True, slots=True)
class Node:
    """Values up to `threshold` go to the left child, greater ones to the right."""

    counts: tuple[int, ...]  # training rows at this node, per class
    feature: int = LEAF  # an index into the tree's features
    threshold: float = 0.0
    left: int = LEAF  # indices into the tree's nodes
    right: int = LEAF

    @property
    def impurity(self) -> float:
        """Gini impurity: the probability that two rows drawn at random differ in class."""
        rows = sum(self.counts)
        return 1 - sum((count / rows) ** 2 for count in self.counts)


@dataclass(frozen=True, slots=True)
class Tree:
    """`nodes[0]` is the root. The prediction is the most frequent class in a leaf."""

    about: str  # what it predicts, from what, in which units
    source: str  # what it was trained on, and that data's licence
    features: tuple[str, ...]
    classes: tuple[str, ...]
    nodes: tuple[Node, ...]
    rows: int
    trained_at: float  # Unix s; 0 for a model that CARMA ships
    errors: tuple[tuple[str, float], ...] = ()  # held-out measures by name
    kind: Literal["tree"] = "tree"

    def predict(self, values: Mapping[str, float]) -> str:
        *_, leaf = self._walk(values)
        return self._class(leaf)

    def path(self, values: Mapping[str, float]) -> tuple[str, ...]:
        """The conditions that led to the prediction: `gpu_utilization 0.42 ≤ 0.78`."""
        walked = list(self._walk(values))
        return tuple(
            self._condition(node, values, left=child is self.nodes[node.left])
            for node, child in pairwise(walked)
        )

    def text(self) -> str:
        """The tree, with one condition or class per line and children indented."""
        return "\n".join(self._lines(0, ""))

    def importance(self) -> tuple[tuple[str, float], ...]:
        """Each feature's share of the Gini impurity that the tree removes, greatest first."""
        removed = dict.fromkeys(self.features, 0.0)
        for node in self.nodes:
            if node.feature != LEAF:
                parts = (node, self.nodes[node.left], self.nodes[node.right])
                whole, left, right = (sum(part.counts) * part.impurity for part in parts)
                removed[self.features[node.feature]] += whole - left - right
        total = sum(removed.values()) or 1.0
        shares = ((name, gain / total) for name, gain in removed.items())
        return tuple(sorted(shares, key=lambda share: -share[1]))

    def _walk(self, values: Mapping[str, float]) -> Iterator[Node]:
        """From the root to a leaf; if a value is unknown, the way of most training rows."""
        node = self.nodes[0]
        yield node
        while node.feature != LEAF:
            left, right = self.nodes[node.left], self.nodes[node.right]
            value = self._value(node, values)
            if value is None:
                node = left if sum(left.counts) >= sum(right.counts) else right
            else:
                node = left if value <= node.threshold else right
            yield node

    def _value(self, node: Node, values: Mapping[str, float]) -> float | None:
        value = values.get(self.features[node.feature])
        return None if value is None or isnan(value) else value

    def _condition(self, node: Node, values: Mapping[str, float], left: bool) -> str:
        name = self.features[node.feature]
        value = self._value(node, values)
        sign = "≤" if left else ">"
        if value is None:
            return f"{name} unknown, most were {sign} {node.threshold:.3g}"
        return f"{name} {value:.3g} {sign} {node.threshold:.3g}"

    def _class(self, leaf: Node) -> str:
        return self.classes[leaf.counts.index(max(leaf.counts))]

    def _lines(self, index: int, indent: str) -> Iterator[str]:
        node = self.nodes[index]
        if node.feature == LEAF:
            right = max(node.counts)
            yield f"{indent}{self._class(node)} ({right} of {sum(node.counts)})"
            return
        name = self.features[node.feature]
        for sign, child in (("≤", node.left), (">", node.right)):
            yield f"{indent}{name} {sign} {node.threshold:.3g}"
            yield from self._lines(child, indent + "  ")
