"""The smallest agent: it repeats what it hears, encrypted end to end.

Needs BLINDPIPE_URL, BLINDPIPE_AGENT_ID, BLINDPIPE_TOKEN and BLINDPIPE_KEY.
"""

from blindpipe import Agent, Context

agent = Agent.from_env()


@agent.on("message")
async def echo(ctx: Context) -> None:
    await ctx.reply(f"You said: {ctx.text}")


# Until SIGTERM; it finishes what it began.
agent.run()
