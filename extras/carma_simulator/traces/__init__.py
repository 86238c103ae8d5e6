"""Traces to simulate: in CARMA's own format, imported from public ones, or generated.

`sources.load` is the entry point. Tasks are defined in `carma_simulator.experiment`.
"""
