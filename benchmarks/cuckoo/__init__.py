"""Cuckoo's evaluation on public data: `python -m benchmarks.cuckoo`."""
