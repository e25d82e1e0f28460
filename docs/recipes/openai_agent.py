"""An agent of the OpenAI Agents SDK whose tools run only with people's signatures."""

import json

from agents import Agent as Worker
from agents import Runner, RunState, function_tool
from blindpipe import Agent, Context


@function_tool(needs_approval=True)
async def deploy(version: str) -> str:
    """Deploys a version."""
    return f"{version} is live"


worker = Worker(name="Deployer", instructions="Deploy what the person names.", tools=[deploy])
agent = Agent.from_env()


async def run(ctx: Context, step: str | RunState) -> None:
    result = await Runner.run(worker, step)
    if not result.interruptions:
        await ctx.reply(str(result.final_output))
        return
    asked = [(call.name, json.loads(call.arguments or "{}")) for call in result.interruptions]
    calls = [{"tool": name, "arguments": arguments} for name, arguments in asked]
    text = f"Run {', '.join(name for name, _ in asked)}?"
    # The state travels with the question, so any process can go on.
    await ctx.approve("tools", {"calls": calls}, text=text, state=result.to_state().to_json())


@agent.on("message")
async def begin(ctx: Context) -> None:
    await run(ctx, ctx.text)


@agent.on_decision("tools")
async def go_on(ctx: Context) -> None:
    state = await RunState.from_json(worker, ctx.decision.state)
    for call in state.get_interruptions():
        (state.approve if ctx.decision.approved else state.reject)(call)
    await run(ctx, state)


agent.run()
