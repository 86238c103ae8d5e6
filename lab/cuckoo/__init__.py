"""Cuckoo's evaluation on public data: `python -m lab.cuckoo`."""
