"""Decisions and their reasons, from CARMA's values to the wire."""

from __future__ import annotations

from collections.abc import Mapping

from carmad.api.phrases import phrase
from carmad.api.render import labelled
from carmad.api.responses.decisions import DecisionOut, GpuRefOut, ReasonOut, VerdictOut
from carmad.api.times import stamp
from carmad.core.decision import Decision, Placement, Reason
from carmad.core.scene import Scene
from carmad.core.types import Gpu, GpuId


def reason_out(reason: Reason, scene: Scene) -> ReasonOut:
    reason = labelled(reason, scene.live)
    return {
        "code": reason.code,
        "need": reason.need,
        "have": reason.have,
        "unit": reason.unit,
        "detail": reason.detail,
        "text": phrase(reason),
    }


def verdicts_out(placement: Placement, scene: Scene) -> list[VerdictOut]:
    return [
        {
            "gpu": gpu_ref(verdict.gpu, scene.gpus),
            "refused": [reason_out(reason, scene) for reason in verdict.refused],
            "rank": verdict.rank,
        }
        for verdict in placement.verdicts
    ]


def decision_out(decision: Decision, scene: Scene) -> DecisionOut:
    placement = decision.placement
    return {
        "policy": decision.policy,
        "decided_at": stamp(decision.at),
        "chosen": list(placement.gpus),
        "verdicts": verdicts_out(placement, scene),
        "reasons": [reason_out(reason, scene) for reason in placement.reasons],
        "grounds": [reason_out(reason, scene) for reason in placement.explanation],
    }


def gpu_ref(id: GpuId, gpus: Mapping[GpuId, Gpu]) -> GpuRefOut:
    return {"id": id, "index": gpus[id].index if id in gpus else None}
