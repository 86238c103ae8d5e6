"""Everything a plugin author imports."""

from carmad.config import Estimation, Links, Preconditions, Settings
from carmad.core.admission import Demand, idle
from carmad.core.decision import (
    AskAgain,
    Placement,
    Preemption,
    Proposal,
    Reason,
    Remember,
    Verdict,
)
from carmad.core.gpuview import GpuView
from carmad.core.history import History, Past
from carmad.core.layout import Layout, Slot, Stage, iteration_s, slowest_s
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
from carmad.core.recurrence import Template, template
from carmad.core.slowdown import beside
from carmad.core.types import (
    Cause,
    Estimate,
    Exit,
    Gpu,
    GpuId,
    Job,
    JobId,
    JobSpec,
    Loaded,
    Prediction,
    Profile,
    ProfilingRun,
    Refusal,
    Retry,
    StageTimes,
    StepTime,
)
from carmad.core.view import NodeView, View
from carmad.models import Additive, Boosted, Lookup, Model, Tree
from carmad.readable import duration, gib
from carmad.words import Wording, clock, detail, first_few

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
    "Layout",
    "Links",
    "Loaded",
    "Lookup",
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
    "Remember",
    "Retry",
    "Run",
    "Server",
    "Settings",
    "Slot",
    "Stage",
    "StageTimes",
    "StepTime",
    "Template",
    "Tree",
    "Trial",
    "Verdict",
    "View",
    "Wording",
    "beside",
    "clock",
    "detail",
    "duration",
    "first_few",
    "gib",
    "idle",
    "iteration_s",
    "slowest_s",
    "template",
]
