"""The GPUs: their state, and whether they take jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path
from pydantic import StringConstraints
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, answer, resource
from carmad.api.reasons import phrase
from carmad.api.requests import Body
from carmad.api.wire import SCHEMA, pick, with_labels
from carmad.core.gpus import idling
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.gpuview import GpuView
from carmad.core.gpus.sharing import label
from carmad.core.messages import DrainRequested
from carmad.core.scene import Scene, memory_by_job
from carmad.http.problems import NotFound
from carmad.words import clock

router = resource("/gpus")

Ref = Annotated[str, Path(description="its index, its UUID, or all", max_length=128)]


class RiskOut(TypedDict):
    sm_active: float | None
    sm_occupancy: float | None
    dram_active: float | None
    sm_source: str | None
    risky: bool
    samples: int


class ResidentOut(TypedDict):
    id: int
    label: str
    user: str
    name: str
    memory_mib: int | None
    mode: str | None
    kernelless_s: float  # how long it has held GPUs without a kernel; 0: not long enough to say so


class ExternalOut(TypedDict):
    pid: int
    user: str
    command: str
    memory_mib: int | None


class ConditionOut(TypedDict):
    kind: str
    message: str


class GpuOut(TypedDict):
    id: str
    index: int
    name: str
    mig: bool
    parent: str | None
    island: str  # GPUs with the same one are near each other; "": all are
    memory_mib: int
    memory_used_mib: int | None
    memory_free_mib: int | None
    admissible_free_mib: int
    sm_active: float | None
    sm_occupancy: float | None
    dram_active: float | None
    utilization: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: int | None
    risk: RiskOut
    state: str
    state_detail: str
    conditions: list[ConditionOut]  # what is wrong with it, although it works
    jobs: list[ResidentOut]
    outsiders: list[ExternalOut]  # external processes


class SourceOut(TypedDict):
    name: str
    provides: list[str]
    missing: list[list[str]]
    notes: list[str]


class GpusOut(TypedDict):
    schema: int
    gpus: list[GpuOut]
    source: SourceOut
    thresholds: dict[str, Any]


class GpuResultOut(TypedDict):
    id: str
    index: int
    drained: bool


class GpuResultsOut(TypedDict):
    schema: int
    gpus: list[GpuResultOut]


class DrainIn(Body):
    reason: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1024)]
    move: bool = False  # let the jobs on it go elsewhere, where they can be suspended


@router.get("", responses={200: {"model": GpusOut}})
async def gpus(call: Caller) -> Response:
    scene = await call.service.scene()
    settings = call.service.settings
    capabilities = call.service.capabilities()
    out: GpusOut = {
        "schema": SCHEMA,
        "gpus": gpus_out(call, scene),
        "source": pick(SourceOut, capabilities, name=capabilities.source),
        "thresholds": {
            "risk": asdict(settings.risk),
            "preconditions": asdict(settings.preconditions_for(settings.policy)),
            "window_s": settings.monitor.window_s,
        },
    }
    return answer(out)


@router.post("/{ref}/drain", responses={200: {"model": GpuResultsOut}})
async def drain(call: Caller, ref: Ref, body: DrainIn) -> Response:
    """Place no more jobs on the GPU. Those on it continue there, or elsewhere."""
    return await _drain(call, ref, body.reason, body.move)


@router.post("/{ref}/resume", responses={200: {"model": GpuResultsOut}})
async def resume(call: Caller, ref: Ref) -> Response:
    """Place jobs on the GPU again."""
    return await _drain(call, ref, None)


async def _drain(call: Call, ref: str, reason: str | None, move: bool = False) -> Response:
    call.require_admin("drain and resume GPUs")
    now, by = call.service.now(), call.peer.user
    known = await call.service.ask(lambda core: tuple(core.gpus.values()))
    chosen = [gpu for gpu in known if is_named(gpu, ref)]
    if not chosen:
        raise NotFound(f"there is no GPU {ref!r:.80}", "See `carma gpus`.")
    await call.request(*(DrainRequested(now, gpu.id, reason, by, move) for gpu in chosen))
    out: GpuResultsOut = {
        "schema": SCHEMA,
        "gpus": [
            {"id": gpu.id, "index": gpu.index, "drained": reason is not None} for gpu in chosen
        ],
    }
    return answer(out)


def is_named(gpu: Gpu, ref: str) -> bool:
    return ref == "all" or ref in (str(gpu.index), gpu.id)


def gpus_out(call: Call, scene: Scene) -> list[GpuOut]:
    return [gpu_out(gpu, scene, call.peer.owner, call.peer.admin) for gpu in scene.view.gpus]


def gpu_out(view: GpuView, scene: Scene, owner: tuple[int, str], see_all: bool) -> GpuOut:
    gpu, sample, score = view.gpu, view.sample, view.score
    state, detail = gpu_state(view, scene)
    risk: RiskOut = {
        "sm_active": _fraction(score.sm_active),
        "sm_occupancy": _fraction(score.sm_occupancy),
        "dram_active": _fraction(score.dram_active),
        "sm_source": score.sm_source,
        "risky": score.risky(scene.view.settings.risk),
        "samples": score.samples,
    }
    residents = {job.id for job in view.residents}
    held = memory_by_job((view,))
    return {
        "id": gpu.id,
        "index": gpu.index,
        "name": gpu.name,
        "mig": gpu.is_mig,
        "parent": gpu.parent,
        "island": gpu.island,
        "memory_mib": gpu.memory_mib,
        "memory_used_mib": sample.memory_used_mib if sample else None,
        "memory_free_mib": sample.memory_free_mib if sample else None,
        "admissible_free_mib": max(0, view.free_mib),
        "sm_active": _fraction(sample.sm_active) if sample else None,
        "sm_occupancy": _fraction(sample.sm_occupancy) if sample else None,
        "dram_active": _fraction(sample.dram_active) if sample else None,
        "utilization": _fraction(sample.utilization) if sample else None,
        "power_w": sample.power_w if sample else None,
        "energy_j": sample.energy_mj / 1000 if sample and sample.energy_mj is not None else None,
        "temperature_c": sample.temperature_c if sample else None,
        "risk": risk,
        "state": state,
        "state_detail": detail,
        "conditions": [pick(ConditionOut, each) for each in sample.conditions] if sample else [],
        "jobs": [
            {
                "id": job.id,
                "label": label(job),
                "user": job.spec.user,
                "name": job.spec.name if see_all or job.spec.owner == owner else "-",
                "memory_mib": held.get(job.id),
                "mode": job.mode.value if job.mode else None,
                "kernelless_s": round(idling.kernelless_s(job, scene.now), 1),
            }
            for job in view.residents
        ],
        "outsiders": [
            pick(ExternalOut, process)
            for process in (sample.processes if sample else ())
            if process.job is None or process.job not in residents
        ],
    }


def gpu_state(gpu: GpuView, scene: Scene) -> tuple[str, str]:
    """The first thing that keeps jobs off this GPU, the worst before the passing ones."""
    sample = gpu.sample
    if sample is not None and sample.fault:
        return "faulty", sample.fault
    if gpu.drained:
        return "drained", gpu.drained
    if gpu.stale:
        return "stale", phrase(gpu.stale)
    first = next(iter(gpu.reserved), None)
    if first and not first.in_s:
        return "reserved", f"for {first.of.whose} until {clock(first.ends_at)}"
    if gpu.settling:
        return "settling", phrase(with_labels(gpu.settling, scene.live))
    return "ok", f"reserved for {first.of.whose} from {clock(first.starts_at)}" if first else ""


def _fraction(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
