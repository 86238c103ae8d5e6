"""Lucid (Hu et al., ASPLOS 2023): jobs are profiled, foretold and packed by what can be read."""

from __future__ import annotations

from carmad.plugin import Settings
from policies.lucid.policy import Lucid

__all__ = ["Lucid", "lucid"]


def lucid(settings: Settings) -> Lucid:
    """Its knobs, `[lucid]` and `[profiling]`, are read from each view."""
    return Lucid()
