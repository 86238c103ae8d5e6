"""The preconditions under which policies let a job share a GPU."""

import pytest

from carma_testing import a_gpu, a_view
from carmad.api.reasons import phrase
from carmad.config import Collocation, Risk, Settings
from carmad.core.gpus.gpu import Score
from carmad.core.jobs.findings import Indicator, Profile
from policies.builtin import magm
from tests.planning import gpu_views, placements, queued, running_on, where


@pytest.mark.parametrize(
    ("own", "mps", "joins"),
    [
        pytest.param(None, False, False, id="nothing is known of it"),
        pytest.param(0.95, False, False, id="it is as busy"),
        pytest.param(0.6, False, True, id="it leaves its GPU idle at times"),
        pytest.param(None, True, True, id="under MPS their kernels run side by side"),
    ],
)
def test_two_that_keep_a_gpu_busy_do_not_take_turns(own, mps, joins):
    known = own and Profile(60.0, 900, (Indicator("gpu_utilization", own, 0.0),))
    busy = {"score": Score(utilization=1.0)}

    def planned(settings):
        gpus = gpu_views([a_gpu(0)], [queued(9, **running_on(0))], gpu0=busy)
        return placements(magm(settings), a_view(gpus, [queued(1, profile=known)], settings))

    plan = planned(Settings(risk=Risk(utilization=0.9), collocation=Collocation(mps=mps)))
    assert where(plan) == {1: (0,) if joins else ()}
    if not joins:
        ((reason,),) = (verdict.refused for verdict in plan[1].verdicts)
        assert phrase(reason) == "is too busy to share: utilization 1.00 (limit 0.90)"
    assert where(planned(Settings())) == {1: (0,)}
