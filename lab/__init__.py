"""Do the papers' claims hold? Policies, estimators and the simulator against what is published."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
