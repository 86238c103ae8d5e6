"""The simulator's verbs, for the entry points of `carma.commands`."""

from __future__ import annotations

from cli.verbs import Command

SIMULATE = Command(
    "simulate",
    "carma_simulator.commands.simulate",
    "Simulate a trace of jobs under one or more policies, and compare the results.",
)
DEMO = Command(
    "demo",
    "carma_simulator.demo.sharing",
    "Run the same jobs on emulated GPUs twice at once, one job per GPU and shared by CARMA.",
)
