"""Runs an experiment: the clock, the queue of what comes next, and the shared loop body."""

from __future__ import annotations

from carmad.sim.experiment import Experiment
from carmad.sim.outcome import Outcome


def simulate(experiment: Experiment) -> Outcome: ...
