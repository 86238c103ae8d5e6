"""Everything a plugin author imports."""

from carmad.config import Preconditions, Settings
from carmad.core.admission import idle
from carmad.core.decision import Placement, Reason, Verdict
from carmad.core.gpuview import GpuView
from carmad.core.ports import Estimator, Policy, Recovery
from carmad.core.types import Cause, Estimate, Exit, Gpu, GpuId, Job, JobId, JobSpec, Retry
from carmad.core.view import View

__all__ = [
    "Cause",
    "Estimate",
    "Estimator",
    "Exit",
    "Gpu",
    "GpuId",
    "GpuView",
    "Job",
    "JobId",
    "JobSpec",
    "Placement",
    "Policy",
    "Preconditions",
    "Reason",
    "Recovery",
    "Retry",
    "Settings",
    "Verdict",
    "View",
    "idle",
]
