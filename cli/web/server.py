"""Runs the pages until a signal ends it."""

from __future__ import annotations

import socket

import uvicorn

from cli.web.app import build
from cli.web.live import Live


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
    Server(config, live).run([listening])


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.end()  # or their streams would be cut, which it calls an error
        await super().shutdown(sockets)
