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
from carmad.api.wire import SCHEMA, Digits, pick, with_labels
from carmad.core.gpus import idling
from carmad.core.gpus.gpu import Gpu, GpuSample
from carmad.core.gpus.gpuview import GpuView
from carmad.core.gpus.sharing import label
from carmad.core.messages import DrainRequested
from carmad.core.scene import Scene, memory_by_job
from carmad.http.problems import NotFound
from carmad.words import clock

router = resource("/gpus")

IDENTITY = ("id", "index", "name", "parent", "island", "memory_mib")  # of a GPU
Fraction = Annotated[float, Digits(4)]
Ref = Annotated[str, Path(description="its index, its UUID, or all", max_length=128)]


class RiskOut(TypedDict):
    sm_active: Fraction | None
    sm_occupancy: Fraction | None
    dram_active: Fraction | None
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
    sm_active: Fraction | None
    sm_occupancy: Fraction | None
    dram_active: Fraction | None
    utilization: Fraction | None
    power_w: float | None
    energy_j: Annotated[
        float | None, lambda it: None if it.energy_mj is None else it.energy_mj / 1000
    ]
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
        "gpus": [pick(GpuResultOut, gpu, drained=reason is not None) for gpu in chosen],
    }
    return answer(out)


def is_named(gpu: Gpu, ref: str) -> bool:
    return ref == "all" or ref in (str(gpu.index), gpu.id)


def gpus_out(call: Call, scene: Scene) -> list[GpuOut]:
    return [gpu_out(gpu, scene, call.peer.owner, call.peer.admin) for gpu in scene.view.gpus]


def gpu_out(view: GpuView, scene: Scene, owner: tuple[int, str], see_all: bool) -> GpuOut:
    sample = view.sample or GpuSample(view.id, scene.now)
    state, detail = gpu_state(view, scene)
    residents = {job.id for job in view.residents}
    held = memory_by_job((view,))
    outsiders = [each for each in sample.processes if each.job not in residents]
    return pick(
        GpuOut,
        sample,
        **{name: getattr(view.gpu, name) for name in IDENTITY},
        mig=view.gpu.is_mig,
        admissible_free_mib=max(0, view.free_mib),
        risk=pick(RiskOut, view.score, risky=view.score.risky(scene.view.settings.risk)),
        state=state,
        state_detail=detail,
        jobs=[
            pick(
                ResidentOut,
                job,
                label=label(job),
                user=job.spec.user,
                name=job.spec.name if see_all or job.spec.owner == owner else "-",
                memory_mib=held.get(job.id),
                kernelless_s=round(idling.kernelless_s(job, scene.now), 1),
            )
            for job in view.residents
        ],
        outsiders=[pick(ExternalOut, process) for process in outsiders],
    )


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
