"""For plugin authors: the checks that every plugin passes, a server in memory to see one at work,
and builders of jobs, GPUs and views."""

from carmad.testing.builders import ServerStandIn as ServerStandIn
from carmad.testing.builders import a_gpu as a_gpu
from carmad.testing.builders import a_gpu_view as a_gpu_view
from carmad.testing.builders import a_job as a_job
from carmad.testing.builders import a_report as a_report
from carmad.testing.builders import a_run as a_run
from carmad.testing.builders import a_server as a_server
from carmad.testing.builders import a_spec as a_spec
from carmad.testing.builders import a_view as a_view
from carmad.testing.builders import changed as changed
from carmad.testing.checks import Check as Check
from carmad.testing.checks import check_estimator as check_estimator
from carmad.testing.checks import check_policy as check_policy
from carmad.testing.checks import check_predictor as check_predictor
from carmad.testing.checks import check_recovery as check_recovery
from carmad.testing.checks import check_rules as check_rules
from carmad.testing.checks import checks_of as checks_of
from carmad.testing.checks import estimator_checks as estimator_checks
from carmad.testing.checks import policy_checks as policy_checks
from carmad.testing.checks import predictor_checks as predictor_checks
from carmad.testing.checks import recovery_checks as recovery_checks
from carmad.testing.fake_server import FakeServer as FakeServer
