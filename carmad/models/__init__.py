"""What was learned, as plain values: they predict in pure Python, inside the core; none is trained
here (`carmad.learning` does that). Each can be printed, and says why it predicts what it does."""

from __future__ import annotations

from carmad.models.additive import Additive, Pair, Shape
from carmad.models.boosted import Boosted
from carmad.models.lookup import Lookup
from carmad.models.tree import Node, Tree

Model = Tree | Boosted | Additive | Lookup

__all__ = ["Additive", "Boosted", "Lookup", "Model", "Node", "Pair", "Shape", "Tree"]
