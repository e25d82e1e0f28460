"""An agent that shows its answer while it writes it. The end is one durable, signed message.

Needs BLINDPIPE_URL, BLINDPIPE_AGENT_ID, BLINDPIPE_TOKEN and BLINDPIPE_KEY.
"""

import asyncio
from collections.abc import AsyncIterator

from blindpipe import Agent, Context

agent = Agent.from_env()


async def model(question: str) -> AsyncIterator[str]:
    """Stands for a language model: words, one after the other."""
    for word in f"You asked: {question} The answer is forty-two.".split():
        await asyncio.sleep(0.05)
        yield word + " "


@agent.on("message")
async def answer(ctx: Context) -> None:
    # A restarted process asks the history first, since a model costs money.
    if ctx.replayed and await ctx.answered():
        return
    async with ctx.stream() as out:
        async for word in model(ctx.text):
            out.write(word)


agent.run()
