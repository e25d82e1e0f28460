"""One of several processes of an agent. It writes down what it handles, and answers each message."""

from __future__ import annotations

import asyncio
import os
import time

from blindpipe import Agent, Context, SharedFolder, SharedPins

DIRECTORY = os.environ["SHARED_DIRECTORY"]

in_folder = os.environ.get("SHARED_STORE") == "folder"
pins = SharedFolder(f"{DIRECTORY}/state") if in_folder else SharedPins(f"{DIRECTORY}/pins.db")
agent = Agent.from_env(pins=pins)


def note(what: str, ctx: Context) -> None:
    """A line of the history: the clock is the same in all processes."""
    line = f"{time.monotonic_ns()} {os.getpid()} {what} {ctx.conversation} {ctx.text}\n"
    with open(f"{DIRECTORY}/history", "a") as file:
        file.write(line)


@agent.on("message")
async def answer(ctx: Context) -> None:
    note("begins", ctx)
    await asyncio.sleep(0.05)
    await ctx.reply(f"{ctx.text}, by {os.getpid()}")
    note("ends", ctx)


agent.run(shared=True)
