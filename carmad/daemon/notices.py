"""The service that tells people what happened: owners of jobs, and administrators."""

from __future__ import annotations

from carmad.daemon.host import DaemonHost
from carmad.notify.letters import find_stuck
from carmad.notify.post import Post


def notices(host: DaemonHost) -> Post:
    return Post(
        host.store,
        host.settings().notify,
        own_units=host.has_units,
        stuck=lambda: find_stuck(host.scene()),
        explain=host.explain,
        gpus=lambda: host.scene().gpus,
    )
