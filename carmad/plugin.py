"""Everything a plugin author imports."""

from carmad.config import Estimation, Preconditions, Settings
from carmad.core.admission import Demand, idle
from carmad.core.decision import AskAgain, Placement, Preemption, Proposal, Reason, Verdict
from carmad.core.gpuview import GpuView
from carmad.core.history import History, Past
from carmad.core.ports import (
    ANSWER_FD,
    Estimator,
    Policy,
    Predictor,
    Recovery,
    Run,
    Server,
    Trial,
)
from carmad.core.template import Template, template
from carmad.core.types import (
    Cause,
    Estimate,
    Exit,
    Gpu,
    GpuId,
    Job,
    JobId,
    JobSpec,
    Prediction,
    Profile,
    ProfilingRun,
    Refusal,
    Retry,
    StepTime,
)
from carmad.core.view import NodeView, View
from carmad.models import Additive, Boosted, Model, Tree

__all__ = [
    "ANSWER_FD",
    "Additive",
    "AskAgain",
    "Boosted",
    "Cause",
    "Demand",
    "Estimate",
    "Estimation",
    "Estimator",
    "Exit",
    "Gpu",
    "GpuId",
    "GpuView",
    "History",
    "Job",
    "JobId",
    "JobSpec",
    "Model",
    "NodeView",
    "Past",
    "Placement",
    "Policy",
    "Preconditions",
    "Prediction",
    "Predictor",
    "Preemption",
    "Profile",
    "ProfilingRun",
    "Proposal",
    "Reason",
    "Recovery",
    "Refusal",
    "Retry",
    "Run",
    "Server",
    "Settings",
    "StepTime",
    "Template",
    "Tree",
    "Trial",
    "Verdict",
    "View",
    "idle",
    "template",
]
