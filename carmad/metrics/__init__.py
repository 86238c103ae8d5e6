"""Figures for Prometheus: what they are, how they are counted, written and served."""
