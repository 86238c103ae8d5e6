"""The simulator's verbs, for the entry points of `carma.commands`."""

from __future__ import annotations

from cli.verbs import ITSELF, TYPER, Verb

SIMULATE = Verb(
    "simulate",
    "carma_simulator.commands.simulate",
    "Simulate a trace of jobs under one or more policies, and compare the results.",
    TYPER,
)
DEMO = Verb(
    "demo",
    "carma_simulator.demo.sharing",
    "Run the same jobs on emulated GPUs twice at once, one job per GPU and shared by CARMA.",
    ITSELF,
)
WHAT_IF = Verb(
    "what-if",
    "carma_simulator.commands.what_if",
    "Simulate the last days' jobs under other policies, for programs such as the page.",
)
