"""Waiting in tests: as benchmarks wait, which cannot import tests."""

from __future__ import annotations

from benchmarks.harness.timing import PATIENCE_S as PATIENCE_S
from benchmarks.harness.timing import until as until
