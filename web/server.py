"""Runs the pages until a signal ends it."""

from __future__ import annotations

import logging
import signal
import socket

import uvicorn

from web.app import build
from web.live import Live


def serve(token: str, read_only: bool, listening: socket.socket) -> None:
    live = Live()
    config = uvicorn.Config(
        build(token, read_only, live),
        log_level="error",  # whoever connects could fill the terminal with warnings
        access_log=False,
        lifespan="off",
        http="h11",  # which limits headers
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    # Once its streams are told, uvicorn raises the signal again. Python's own handler would then
    # wait for every thread, and so for a daemon that never answers one of them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Server(config, live).run([listening])


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.end()  # a stream that is not cut is not taken for a server that is gone
        logging.getLogger("uvicorn.error").disabled = True  # who reads slowly is cut, and no error
        await super().shutdown(sockets)
