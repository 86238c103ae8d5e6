"""Layouts and stage times, as the API answers with them."""

from __future__ import annotations

from carmad.api.responses import LayoutOut, StageOut, StageTimesOut
from carmad.core.layout import Layout, Stage
from carmad.core.types import StageTimes


def layout_out(layout: Layout) -> LayoutOut:
    return {
        "stages": [_stage(stage) for stage in layout.stages],
        "allreduce": layout.allreduce,
    }


def _stage(stage: Stage) -> StageOut:
    return {
        "replicas": stage.replicas,
        "forward_s": stage.forward_s,
        "backward_s": stage.backward_s,
        "in_mib": stage.in_mib,
        "out_mib": stage.out_mib,
        "weights_mib": stage.weights_mib,
        "tensor": stage.tensor,
        "tensor_mib": stage.tensor_mib,
        "experts_mib": stage.experts_mib,
    }


def stage_times_out(times: StageTimes) -> StageTimesOut:
    return {
        "load_s": times.load_s,
        "forward_s": times.forward_s,
        "backward_s": times.backward_s,
        "communication_s": times.communication_s,
        "sync": times.sync,
        "gpu": times.gpu,
    }
