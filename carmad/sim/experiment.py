"""Everything that determines a simulated run: the same experiment has the same outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from carmad.config import Settings
from carmad.models import Model
from carmad.sim.hardware import Cluster
from carmad.sim.task import Trace


@dataclass(frozen=True, slots=True)
class Physics:
    """The model's parameters apart from training itself, in seconds and MiB."""

    first_kernel_s: float = 10.0  # from the launch to the first kernel and full memory (TTFK)
    oom_s: float = 5.0  # from the failed allocation to the process being gone
    stop_s: float = 2.0  # from being told to stop to being gone
    checkpoint_s: float = 10.0  # what saving and loading cost a preempted job
    fragmentation_mib: int = 0  # unavailable to a new job, per job already there
    estimate_error: float = 0.0  # σ of the log-normal factor on each memory estimate
    duration_error: float = 0.0  # σ of the log-normal factor on each expected duration


@dataclass(frozen=True, slots=True)
class Experiment:
    trace: Trace
    cluster: Cluster
    settings: Settings = field(default_factory=Settings)  # policy, recovery, MPS
    estimator: str = "none"  # none, oracle, or one of the trace's own columns
    interference: str = "learned"  # none, additive, learned or measured:FILE
    physics: Physics = Physics()
    seed: int = 0
    expected: bool = True  # do users declare expected durations?
    models: tuple[tuple[str, Model], ...] = ()  # trained before the trace begins
