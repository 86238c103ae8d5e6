"""For plugin authors: the checks that every plugin passes, a server in memory to see one at work,
and builders of jobs, GPUs and views."""

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
from carmad.testing.fake_server import FakeServer

__all__ = [
    "Check",
    "FakeServer",
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
