"""Sharing scores: how much a job suffers and harms beside another one (Lucid paper, 3.2 and 3.5.1).

Tiny, Medium or Jumbo is told from a job's profile by the Packing Analyze Model: the one that was
learned here if there is one, else the one that CARMA ships.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from carmad.models import Node
from carmad.plugin import Job, Model, Tree

NAME = "packing"  # of the model, among those that were learned
SCORES = {"tiny": 0, "medium": 1, "jumbo": 2}
WORDS = ("Tiny", "Medium", "Jumbo")  # by score


def model(models: Mapping[str, Model]) -> Tree:
    learned = models.get(NAME)
    return learned if isinstance(learned, Tree) else shipped()


def score(tree: Tree, job: Job, memory_mib: int) -> int | None:
    """On a GPU with so much memory; None for a job whose profile does not tell.

    Where a figure is missing a tree goes with most of its training jobs. That would be a guess, and
    to pack is to risk something: the profile must have all that the tree asks for. It has not if
    the job showed no kernel while it was profiled, or on a MIG instance, which has no utilisation
    of NVML's. SMACT cannot stand in for that: it is lower, so that everybody would look Tiny.
    """
    if job.profile is None:
        return None
    values = {each.name: each.mean for each in job.profile.indicators}
    values["amp"] = float(job.spec.amp)
    if job.profile.peak_mib:
        values["memory_share"] = job.profile.peak_mib / memory_mib
    asked = {tree.features[node.feature] for node in tree.nodes if node.feature >= 0}
    return SCORES[tree.predict(values)] if asked <= values.keys() else None


@cache
def shipped() -> Tree:
    """What `python -m benchmarks.lucid.models` trained."""
    fields = json.loads(files("policies.lucid").joinpath("packing.json").read_text("utf-8"))
    fields |= {name: tuple(fields[name]) for name in ("features", "classes")}
    fields["nodes"] = tuple(
        Node(**{**node, "counts": tuple(node["counts"])}) for node in fields["nodes"]
    )
    fields["errors"] = tuple((name, error) for name, error in fields["errors"])
    return Tree(**fields)
