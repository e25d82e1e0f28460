"""The official client of MCP against `bp mcp`: asks, lets the server end, and reads the answers from another one."""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = StdioServerParameters(command=sys.argv[1], args=["mcp"], env=dict(os.environ))


async def call(name: str, arguments: dict[str, object]) -> dict[str, object]:
    async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        assert name in [tool.name for tool in tools.tools]
        result = await session.call_tool(name, arguments)
        assert not result.is_error, result
        return result.structured_content


async def main() -> None:
    asked = {"question": "Deploy?", "choices": ["yes", "no"], "wait_seconds": 0}
    question = await call("ask_human", asked)
    planned = {"tool": "deploy", "arguments": {"to": "production"}, "wait_seconds": 0}
    approval = await call("request_approval", planned)
    print(question["ticket"])
    print(approval["ticket"], flush=True)
    sys.stdin.readline()
    answered = await call("check", {"ticket": question["ticket"]})
    decided = await call("check", {"ticket": approval["ticket"]})
    print(answered["answer"])
    print(json.dumps({"approved": decided["approved"], "receipt": decided["receipt"]}), flush=True)


asyncio.run(main())
