"""Figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from carmad.core.scene import Scene
from carmad.http.answers import PROBLEMS, VERSION, Asked
from carmad.http.routes.about import troubles_of
from carmad.http.service import Service
from carmad.metrics import declared, gauges

router = APIRouter(prefix="/v1", responses=PROBLEMS, default_response_class=Response)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(call: Asked) -> Response:
    """Figures about the whole server, in Prometheus' text format: no jobs, and users only if the
    settings say so. The reference lists them."""
    service = call.service
    scene = await service.scene()
    return await service.once(scene, "metrics", lambda: _answer(service, scene))


def _answer(service: Service, scene: Scene) -> Response:
    from carmad.metrics import exposition  # now: few daemons are asked, and it takes memory

    text = exposition.text(_figures(service, scene), service.counts)
    return Response(text, media_type=exposition.CONTENT_TYPE)


def _figures(service: Service, scene: Scene) -> Iterator[gauges.Figure]:
    yield declared.UP, (), 1
    yield declared.BUILD, (VERSION, scene.policy), 1
    yield declared.DEGRADED, (), bool(troubles_of(service, scene.unread))
    yield from gauges.of_threads()
    yield from gauges.of_disk(service.store.path)
    yield from gauges.of_scene(scene, service.settings.metrics.users)
