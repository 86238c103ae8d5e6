"""Waiting in tests: as benchmarks wait, which cannot import tests."""

from __future__ import annotations

from benchmarks.harness import PATIENCE_S as PATIENCE_S
from benchmarks.harness import until as until
