"""The daemon's API, as all commands use it: at the socket that the environment names."""

from __future__ import annotations

from carma_client.transport import TIMEOUT_S, Blocking, Broken, with_query

__all__ = ["TIMEOUT_S", "Broken", "get", "post", "with_query"]

_daemon = Blocking()
get, post = _daemon.get, _daemon.post
