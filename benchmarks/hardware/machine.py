"""The daemon that a stage measures: on the machine's own GPU, or on an emulated card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.daemon.carmad import Daemon
from benchmarks.hardware.visit import Visit
from carmad.config import Access, Settings

EMULATED = "1xA100-40GB"


@contextmanager
def running(visit: Visit, settings: Settings) -> Iterator[Daemon]:
    """It places jobs on the visit's GPU only, and takes root's, as on a visit there is nobody
    else."""
    settings = replace(settings, access=Access(root_jobs=True))
    with Daemon(gpus=EMULATED if visit.rehearse else "", settings=settings) as daemon:
        gpus = daemon.get("/v1/gpus")["gpus"]
        for gpu in gpus:
            if gpu["id"] != (visit.gpu or gpus[0]["id"]):
                daemon.post(f"/v1/gpus/{gpu['index']}/drain", {"reason": "not this visit's"})
        yield daemon
