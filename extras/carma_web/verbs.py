"""The verb of the page, for the entry point of `carma.commands`."""

from __future__ import annotations

from cli.verbs import MONITORING, Command

WEB = Command(
    "web",
    "carma_web.command",
    "Serve a page of the server: its GPUs, the queue, and your jobs, live.",
    MONITORING,
)
