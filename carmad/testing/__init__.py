"""For plugin authors: builders of jobs, GPUs and views, and the checks that every plugin passes."""

from carmad.testing.builders import (
    ServerStandIn,
    a_gpu,
    a_gpu_view,
    a_job,
    a_report,
    a_run,
    a_server,
    a_spec,
    a_view,
    changed,
)
from carmad.testing.checks import (
    Check,
    check_estimator,
    check_policy,
    check_predictor,
    check_recovery,
    estimator_checks,
    policy_checks,
    predictor_checks,
    recovery_checks,
)

__all__ = [
    "Check",
    "ServerStandIn",
    "a_gpu",
    "a_gpu_view",
    "a_job",
    "a_report",
    "a_run",
    "a_server",
    "a_spec",
    "a_view",
    "changed",
    "check_estimator",
    "check_policy",
    "check_predictor",
    "check_recovery",
    "estimator_checks",
    "policy_checks",
    "predictor_checks",
    "recovery_checks",
]
