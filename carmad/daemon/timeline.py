"""The follower that records the timelines of all GPUs, and keeps them on disk."""

from __future__ import annotations

from carmad.daemon.host import DaemonHost
from carmad.edge import Chore
from carmad.timeline.recorder import Timeline

SAVE_MIN = 5  # what a daemon that is killed may lose


def timeline(host: DaemonHost) -> Timeline:
    made, store = Timeline(host.settings().monitor.period_s), host.store
    made.load(store.timeline(), host.clock())

    def save() -> None:
        made.save(store.record_timeline, host.clock())

    host.add_chore(Chore("save", save, "interval", {"minutes": SAVE_MIN}, at_stop=True))
    return made
