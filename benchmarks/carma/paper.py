"""The CARMA paper's first trace, its GPUs, and its preconditions for a placement."""

from __future__ import annotations

from benchmarks.harness.data import DATA
from carmad.config import Collocation, Preconditions, Settings
from carmad.sim.experiment import Experiment, Physics
from carmad.sim.hardware import parse
from carmad.sim.outcome import Outcome
from carmad.sim.run import simulate
from carmad.sim.task import Trace

TRACE = DATA / "carma" / "trace1.csv"
GPUS = "3xA100-40GB"

# 4.2: known needs and a margin of 2 GB; 4.3: 5 GB free, RR without conditions; 4.4: estimates.
KNOWN = Preconditions(min_free_mib=0, margin_mib=2048)
FREE_5GB = Preconditions(min_free_mib=5120)
NONE = Preconditions(min_free_mib=0, utilization=False)
UNLIMITED = Preconditions(min_free_mib=5120, utilization=False)


def simulated(
    trace: Trace,
    policy: str,
    estimator: str,
    preconditions: Preconditions,
    interference: str = "learned",
    first_kernel_s: float = 10.0,
    mps: bool = True,
) -> Outcome:
    settings = Settings(
        policy=policy, preconditions=preconditions, collocation=Collocation(mps=mps)
    )
    physics = Physics(first_kernel_s=first_kernel_s)
    return simulate(
        Experiment(trace, parse(GPUS), settings, estimator, interference, physics=physics)
    )
