"""What CARMA relies on and has read, not seen, as far as settings depend on it: one entry per fact.
`lab/selftest/facts.py` has the others, too, and where each was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from carmad.selftest import activity, mps, suspending, training
from carmad.selftest.bench import Bench
from carmad.selftest.report import Seen

Check = Callable[[Bench], Seen]


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    otherwise: str  # what follows where it is not so; a setting that helps is in backticks
    check: Check


FACTS = (
    Fact(
        "gpm_activity",
        "no SMACT on Hopper, or 100 times too small: `monitor.source`",
        activity.gpm_activity,
    ),
    Fact("dcgm_activity", "no SMACT on A100; `carma doctor` says so", activity.dcgm_activity),
    Fact("mps_daemon", "jobs run without MPS, with a note: `collocation.mps`", mps.daemon),
    Fact("mps_daemons", "jobs on all but one GPU run without MPS, with a note", mps.daemons),
    Fact(
        "mps_node",
        "a fault under `collocation.mps_scope` = node takes more along than the docs say, or less",
        mps.node,
    ),
    Fact(
        "mps_multiuser",
        "the daemon does not start, and jobs run without MPS: `collocation.mps_multiuser`",
        mps.multiuser,
    ),
    Fact(
        "mps_fault",
        "recovery classifies the others' end as their own failure, or other jobs end, too:"
        " `collocation.mps`",
        mps.fault,
    ),
    Fact("mps_terminate", "cancel harms neighbours: `collocation.mps`", mps.terminate),
    Fact(
        "contexts",
        "estimates are too low, and `preconditions.min_free_mib` is too small",
        mps.contexts,
    ),
    Fact("suspend_cycle", "no job can be suspended: `suspend.host_memory_mib`", suspending.cycle),
    Fact(
        "suspend_moves",
        "a suspended job returns to its own GPU only: `suspend.moves`",
        suspending.moves,
    ),
    Fact(
        "suspend_speed",
        "jobs are suspended that lose more by it than is expected: these settings",
        suspending.speed,
    ),
    Fact(
        "torch_context",
        "estimates are off by the difference, until jobs of this server have taught better",
        training.context,
    ),
)
