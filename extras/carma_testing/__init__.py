"""For plugin authors: the checks that every plugin passes, a server in memory to see one at work,
and builders of jobs, GPUs and views."""

from carma_testing.builders import ServerStandIn as ServerStandIn
from carma_testing.builders import a_gpu as a_gpu
from carma_testing.builders import a_gpu_view as a_gpu_view
from carma_testing.builders import a_job as a_job
from carma_testing.builders import a_run as a_run
from carma_testing.builders import a_server as a_server
from carma_testing.builders import a_spec as a_spec
from carma_testing.builders import a_view as a_view
from carma_testing.builders import changed as changed
from carma_testing.checks import Check as Check
from carma_testing.checks import check_estimator as check_estimator
from carma_testing.checks import check_policy as check_policy
from carma_testing.checks import check_predictor as check_predictor
from carma_testing.checks import check_recovery as check_recovery
from carma_testing.checks import check_rules as check_rules
from carma_testing.checks import checks_of as checks_of
from carma_testing.checks import estimator_checks as estimator_checks
from carma_testing.checks import policy_checks as policy_checks
from carma_testing.checks import predictor_checks as predictor_checks
from carma_testing.checks import recovery_checks as recovery_checks
from carma_testing.fake_server import FakeServer as FakeServer
