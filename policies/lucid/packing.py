"""Sharing scores: how much two jobs that share slow each other down (Lucid paper, 3.2 and 3.5.1).

The Packing Analyze Model classifies a job as Tiny, Medium or Jumbo by its profile. It is the model
trained here, if there is one, or else the one shipped with CARMA.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from carmad.models import Node
from carmad.plugin import Job, Model, Tree

NAME = "packing"  # of the trained model
SCORES = {"tiny": 0, "medium": 1, "jumbo": 2}
WORDS = ("Tiny", "Medium", "Jumbo")  # by score


def model(models: Mapping[str, Model]) -> Tree:
    learned = models.get(NAME)
    return learned if isinstance(learned, Tree) else load_shipped()


def score(tree: Tree, job: Job, memory_mib: int) -> int | None:
    """The sharing score on a GPU with this much memory; None if the profile lacks what it needs.

    With a value missing, a tree follows most of its training jobs. That would be a guess, and
    packing is a risk: the profile must have all the values that the tree uses. It does not if the
    job ran no kernel while it was profiled, or on a MIG instance, for which NVML reports no
    utilisation. SMACT cannot replace it: it is lower, so every job would look Tiny.
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
def load_shipped() -> Tree:
    """The model trained by `python -m lab.lucid.models`."""
    fields = json.loads(files("policies.lucid").joinpath("packing.json").read_text("utf-8"))
    fields |= {name: tuple(fields[name]) for name in ("features", "classes")}
    fields["nodes"] = tuple(
        Node(**{**node, "counts": tuple(node["counts"])}) for node in fields["nodes"]
    )
    fields["errors"] = tuple((name, error) for name, error in fields["errors"])
    return Tree(**fields)
