"""Everything a plugin author imports."""

from carmad.config import Preconditions, Settings
from carmad.core.admission import Demand, idle
from carmad.core.decision import AskAgain, Placement, Preemption, Proposal, Reason, Verdict
from carmad.core.gpuview import GpuView
from carmad.core.ports import Estimator, Policy, Recovery
from carmad.core.types import Cause, Estimate, Exit, Gpu, GpuId, Job, JobId, JobSpec, Retry
from carmad.core.view import NodeView, View

__all__ = [
    "AskAgain",
    "Cause",
    "Demand",
    "Estimate",
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
    "Retry",
    "Settings",
    "Verdict",
    "View",
    "idle",
]
