"""Traces to simulate: read and written in CARMA's own form, imported from public ones, generated.

`sources.load` is the door. What a task is, `carmad.sim.task` says.
"""
