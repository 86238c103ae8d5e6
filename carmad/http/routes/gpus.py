"""The GPUs: their state, and whether they take jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from carmad.api.gpus import gpu_out
from carmad.api.requests import DrainIn
from carmad.api.responses import SCHEMA
from carmad.api.responses.gpus import GpuOut, GpuResultsOut, GpusOut
from carmad.core.messages import DrainRequested
from carmad.core.scene import Scene
from carmad.core.types import Gpu
from carmad.http.answers import PROBLEMS, Asked, Call, answer
from carmad.http.problems import NotFound

router = APIRouter(prefix="/v1/gpus", responses=PROBLEMS, default_response_class=Response)

Ref = Annotated[str, Path(description="its index, its UUID, or all", max_length=128)]


@router.get("", responses={200: {"model": GpusOut}})
async def gpus(call: Asked) -> Response:
    scene = await call.service.scene()
    settings = call.service.settings
    capabilities = call.service.capabilities()
    out: GpusOut = {
        "schema": SCHEMA,
        "gpus": gpus_out(call, scene),
        "source": {
            "name": capabilities.source,
            "provides": list(capabilities.provides),
            "missing": [list(missing) for missing in capabilities.missing],
            "notes": list(capabilities.notes),
        },
        "thresholds": {
            "risk": asdict(settings.risk),
            "preconditions": asdict(settings.preconditions_for(settings.policy)),
            "window_s": settings.monitor.window_s,
        },
    }
    return answer(out)


@router.post("/{ref}/drain", responses={200: {"model": GpuResultsOut}})
async def drain(call: Asked, ref: Ref, body: DrainIn) -> Response:
    """Place no more jobs on the GPU. Those on it continue."""
    return await _drain(call, ref, body.reason)


@router.post("/{ref}/resume", responses={200: {"model": GpuResultsOut}})
async def resume(call: Asked, ref: Ref) -> Response:
    """Place jobs on the GPU again."""
    return await _drain(call, ref, None)


async def _drain(call: Call, ref: str, reason: str | None) -> Response:
    call.require_admin("drain and resume GPUs")
    now, by = call.service.now(), call.peer.user
    known = await call.service.ask(lambda core: tuple(core.gpus.values()))
    chosen = [gpu for gpu in known if named(gpu, ref)]
    if not chosen:
        raise NotFound(f"there is no GPU {ref!r:.80}", "See `carma gpus`.")
    await call.request(*(DrainRequested(now, gpu.id, reason, by) for gpu in chosen))
    out: GpuResultsOut = {
        "schema": SCHEMA,
        "gpus": [
            {"id": gpu.id, "index": gpu.index, "drained": reason is not None} for gpu in chosen
        ],
    }
    return answer(out)


def named(gpu: Gpu, ref: str) -> bool:
    return ref == "all" or ref in (str(gpu.index), gpu.id)


def gpus_out(call: Call, scene: Scene) -> list[GpuOut]:
    return [gpu_out(gpu, scene, call.peer.owner, call.peer.admin) for gpu in scene.view.gpus]
