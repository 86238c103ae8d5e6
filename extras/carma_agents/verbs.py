"""The verb of the server of tools, for the entry point of `carma.commands`."""

from __future__ import annotations

from cli.verbs import Command

MCP = Command(
    "mcp",
    "carma_agents.command",
    "Let an agent look at the queue, its GPUs and your jobs, by the Model Context Protocol.",
)
