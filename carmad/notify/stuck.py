"""Whether the queue is stuck."""

from __future__ import annotations

from carmad.core.scene import Scene
from carmad.core.types import JobId


def stuck(scene: Scene) -> tuple[JobId, str] | None:
    """The first in line of those that may start, if it waits although as many GPUs as it wants are
    idle; and that in words."""
    head = scene.live.get(scene.head) if scene.head is not None else None
    external_mib = scene.view.settings.monitor.external_mib
    idle = [
        view
        for view in scene.view.gpus
        if view.sample
        and not (view.sample.fault or view.drained or view.residents)
        and view.external_mib <= external_mib
    ]
    if head is None or len(idle) < head.spec.gpus:
        return None
    said = f"job {head.id} of {head.spec.user}, the first in line, does not start, and"
    return head.id, f"{said} {len(idle)} GPUs are idle: see `carma why {head.id}`"
