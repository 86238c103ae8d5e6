"""Figures for Prometheus: what they are, how they are counted, written and served."""

LISTENING = "listening at"  # how the exporter says that it is ready
