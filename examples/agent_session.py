"""What an agent does with `carma mcp`, by the protocol's own Python client: estimate, submit, why.

    python examples/agent_session.py python train.py --batch-size 32

The agent may try the command by itself; before it submits, you are asked. Needs the package mcp.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client
from mcp_types import ElicitRequestParams, ElicitResult

SERVER = ["mcp", "--allow", "estimate", "--ask", "submit", "--max-gpu-hours", "10"]


async def ask(context: object, params: ElicitRequestParams) -> ElicitResult:
    """What a program with a window would show as a dialogue."""
    yes = await asyncio.to_thread(input, f"\n? {params.message} [y/n] ")
    return ElicitResult(action="accept", content={"yes": yes == "y"})


async def main(command: list[str]) -> int:
    server = StdioServerParameters(command="carma", args=SERVER, env=dict(os.environ))
    async with Client(server, elicitation_callback=ask) as client:

        async def call(tool: str, **arguments: Any) -> Any:
            print(f"\n> {tool} {json.dumps(arguments)}")
            result = await client.call_tool(tool, arguments)
            answer = result.structured_content
            print(json.dumps(answer) if answer else result.content[0])
            return answer

        estimate = await call("estimate", words=command)
        if estimate is None or estimate.get("crash"):
            return 1
        memory = ["--gpu-mem", f"{estimate['safe_mib']}M"] if "safe_mib" in estimate else []
        job = await call("submit", words=["--time", "2h", *memory, *command])
        if job is None:
            return 1
        await call("why", job=job["id"])
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1:])))
