"""Waiting in tests: as benchmarks wait, which cannot import tests."""

from __future__ import annotations

from benchmarks.harness.waiting import PATIENCE_S as PATIENCE_S
from benchmarks.harness.waiting import until as until
