"""Lucid (Hu et al., ASPLOS 2023): jobs are profiled, foretold and packed by what can be read."""

from __future__ import annotations

from carmad.plugin import Settings
from policies.lucid.policy import Lucid
from policies.lucid.settings import LucidSettings

__all__ = ["Lucid", "lucid"]


def lucid(settings: Settings, own: LucidSettings) -> Lucid:
    """`[profiling]` is read from each view."""
    return Lucid(settings=own)
