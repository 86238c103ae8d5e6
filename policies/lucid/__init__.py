"""Lucid (Hu et al., ASPLOS 2023): profiles jobs, predicts durations and packs jobs, with
interpretable models."""

from __future__ import annotations

from carmad.plugin import Settings
from policies.lucid.policy import Lucid
from policies.lucid.settings import LucidSettings

__all__ = ["Lucid", "lucid"]


def lucid(settings: Settings, own: LucidSettings) -> Lucid:
    """`[profiling]` is read from each view."""
    return Lucid(settings=own)
