"""The daemon that a stage measures: on the machine's own GPU, or on an emulated card."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.daemon.carmad import Daemon
from benchmarks.hardware.visit import Visit
from carmad.config import Access, Settings

EMULATED = "1xA100-40GB"


def running(visit: Visit, settings: Settings) -> Daemon:
    """A daemon that is run by root takes root's jobs: on a visit there is nobody else."""
    settings = replace(settings, access=Access(root_jobs=True))
    return Daemon(gpus=EMULATED if visit.rehearse else "", settings=settings)
