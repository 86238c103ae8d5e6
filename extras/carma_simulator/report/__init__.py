"""Compares simulated runs, for a terminal, a browser, and other programs."""
