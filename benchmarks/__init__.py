"""How fast CARMA is, measured: `python -m benchmarks.daemon`. Nothing here is a test."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
