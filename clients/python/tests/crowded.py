"""An agent or a person's client in a process of its own, whose store has many conversations.

It writes what it hears, and the time and memory that it took to hear all that waited.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import aclosing
from pathlib import Path

from blindpipe import Agent, Client, ClientOptions, Context, FileStore
from blindpipe.client import CaughtUp, MessageEvent


def say(what: str, text: str = "") -> None:
    """A line: what happened, the seconds that this process has worked, its most memory in MB."""
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s*(\d+)", status)
    assert peak is not None
    print(what, f"{time.process_time():.3f}", int(peak[1]) // 1024, text, flush=True)


def be_agent() -> None:
    agent = Agent.from_env(hooks={"caught_up": lambda **_: say("ready")})

    @agent.on("message")
    async def hear(ctx: Context) -> None:
        say("heard", ctx.text)

    agent.run()


async def be_person(url: str, path: str) -> None:
    client = await Client.resume(ClientOptions(url, store=FileStore(path)))
    async with client, aclosing(client.events()) as events:
        async for event in events:
            if isinstance(event, CaughtUp):
                say("ready")
            elif isinstance(event, MessageEvent):
                say("heard", event.text or "")


if sys.argv[1:]:
    asyncio.run(be_person(*sys.argv[1:]))
else:
    be_agent()
