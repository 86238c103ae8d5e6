"""How fast CARMA is, measured: `python -m benchmarks`. Nothing here is a test."""
