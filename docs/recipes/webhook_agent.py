"""An agent behind a webhook: `bp webhook listen` brings its events to this machine without a tunnel."""

import os

from blindpipe import Agent, Context

agent = Agent.from_env()


@agent.on("message")
async def answer(ctx: Context) -> None:
    await ctx.reply(f"You said: {ctx.text}")


app = agent.asgi(os.environ["WEBHOOK_SECRET"])
