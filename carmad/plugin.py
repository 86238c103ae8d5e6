"""Everything a plugin author imports."""

from carmad.config import Estimation, Preconditions, Settings
from carmad.core.admission import Demand, idle
from carmad.core.decision import AskAgain, Placement, Preemption, Proposal, Reason, Verdict
from carmad.core.gpuview import GpuView
from carmad.core.ports import ANSWER_FD, Estimator, Policy, Recovery, Run, Server, Trial
from carmad.core.types import (
    Cause,
    Estimate,
    Exit,
    Gpu,
    GpuId,
    Job,
    JobId,
    JobSpec,
    Refusal,
    Retry,
)
from carmad.core.view import NodeView, View

__all__ = [
    "ANSWER_FD",
    "AskAgain",
    "Cause",
    "Demand",
    "Estimate",
    "Estimation",
    "Estimator",
    "Exit",
    "Gpu",
    "GpuId",
    "GpuView",
    "Job",
    "JobId",
    "JobSpec",
    "NodeView",
    "Placement",
    "Policy",
    "Preconditions",
    "Preemption",
    "Proposal",
    "Reason",
    "Recovery",
    "Refusal",
    "Retry",
    "Run",
    "Server",
    "Settings",
    "Trial",
    "Verdict",
    "View",
    "idle",
]
