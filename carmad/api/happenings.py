"""Happenings, from the core's values to the wire."""

from __future__ import annotations

from collections.abc import Mapping

from carmad.api.folding import row_label
from carmad.api.render import state_code
from carmad.api.responses.jobs import EventJobOut, EventOut
from carmad.api.times import stamp
from carmad.core.happenings import Happening, words
from carmad.core.types import Gpu, GpuId, Job


def event_out(
    happening: Happening, id: str, gpus: Mapping[GpuId, Gpu], sees: bool = True
) -> EventOut:
    """`sees`: the reader may see all of the job, and not only that it is there."""
    out: EventOut = {"id": id, "at": stamp(happening.at), "event": happening.kind.value, "text": ""}
    job, gpu = happening.job, happening.gpu
    if gpu is not None:
        out["gpu"] = {"id": gpu, "index": gpus[gpu].index if gpu in gpus else None}
    if job is not None:
        out["job"] = _job(job, sees)
        if happening.count > 1:
            out["count"] = happening.count
        if sees and happening.cause is not None:
            out["cause"] = happening.cause.value
    out["text"] = words(happening, gpus, sees)
    return out


def _job(job: Job, sees: bool) -> EventJobOut:
    return {
        "id": job.id,
        "label": row_label([job]),
        "user": job.spec.user,
        "name": job.spec.name if sees else "-",
        "state": job.state.value,
        "code": state_code(job),
        "attempt": job.attempt,
        "gpus": list(job.gpus),
    }
