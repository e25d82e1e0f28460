"""The official client of MCP asks one question, at an address or by pipes, and prints what it is told."""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

ASKED = {"question": "Which colour?", "choices": ["red", "blue"], "key": "colour"}


async def main(where: str) -> None:
    if where.startswith("http://"):
        transport = streamable_http_client(where)
    else:
        # The entry of a host's file, or the program alone.
        entry = json.loads(where) if where.startswith("{") else {"command": where, "args": ["mcp"]}
        entry["env"] = {**os.environ, **entry.get("env", {})}
        transport = stdio_client(StdioServerParameters(**entry))
    async with transport as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool("ask_human", ASKED)
        print(json.dumps(result.structured_content), flush=True)


asyncio.run(main(sys.argv[1]))
