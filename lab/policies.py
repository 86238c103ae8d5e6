"""Policies in the simulator that no plugin's name stands for: variants, and timed ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from carma_simulator.experiment import Experiment, Outcome
from carma_simulator.run import simulate
from carmad import registry
from carmad.core.jobs.job import Job
from carmad.core.placing.decision import Proposal
from carmad.core.placing.view import Policy, View


@dataclass(slots=True)
class Timed:
    """A policy, and how long each of its plans took: jobs in line, seconds by `clock`."""

    policy: Policy
    clock: Callable[[], float] = time.process_time
    plans: list[tuple[int, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    def order(self, job: Job) -> Any:
        return self.policy.order(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        begun = self.clock()
        plan = tuple(self.policy.plan(view))
        self.plans.append((len(view.queue), self.clock() - begun))
        return plan


def simulate_with(policy: Policy, experiment: Experiment) -> Outcome:
    """The experiment's outcome under `policy`, whichever its settings name."""
    with patch.object(registry, "bare_policy", lambda settings: policy):
        return simulate(experiment)
