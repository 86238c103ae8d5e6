"""Trained models as plain values, which predict in pure Python inside the core. Training is in
`carmad.learning`. Each model can be printed, and can explain its predictions."""

from __future__ import annotations

from carmad.models.additive import Additive, Pair, Shape
from carmad.models.boosted import Boosted
from carmad.models.lookup import Lookup
from carmad.models.tree import Node, Tree

Model = Tree | Boosted | Additive | Lookup

__all__ = ["Additive", "Boosted", "Lookup", "Model", "Node", "Pair", "Shape", "Tree"]
