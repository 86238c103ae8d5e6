"""How fast CARMA is, measured: `python -m benchmarks.daemon`. Nothing here is a test."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
