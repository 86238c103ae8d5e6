"""The follower that records the timelines of all GPUs."""

from __future__ import annotations

from carmad.daemon.host import DaemonHost
from carmad.edge import Chore
from carmad.timeline.recorder import Timeline

SAVE_S = 30  # what a daemon that is killed may lose


def timeline(host: DaemonHost) -> Timeline:
    made = Timeline(host.state_dir / "timeline.db")
    when = {"seconds": SAVE_S}
    host.add_chore(Chore("save", lambda: made.save(host.clock()), "interval", when, at_stop=True))
    return made
