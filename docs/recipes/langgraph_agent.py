"""A LangGraph agent whose interrupts are approvals: people decide, days later if they like."""

from typing import Any, TypedDict

from blindpipe import Agent, Context
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict, total=False):
    version: str
    told: str


def deploy(state: State) -> State:
    if not interrupt({"tool": "deploy", "arguments": {"version": state["version"]}}):
        return {"told": "Not deployed."}
    return {"told": f"{state['version']} is live."}


graph = StateGraph(State).add_node("deploy", deploy).add_edge(START, "deploy").add_edge("deploy", END)
agent = Agent.from_env()


async def run(ctx: Context, thread: str, step: Any) -> None:
    config = {"configurable": {"thread_id": thread}}
    async with AsyncSqliteSaver.from_conn_string("threads.db") as memory:
        state = await graph.compile(memory).ainvoke(step, config)
    if "__interrupt__" not in state:
        await ctx.reply(state["told"])
        return
    call = state["__interrupt__"][0].value
    await ctx.approve("graph", call, text=f"Run {call['tool']}?", state={"thread": thread})


@agent.on("message")
async def begin(ctx: Context) -> None:
    await run(ctx, ctx.key, {"version": ctx.text})


@agent.on_decision("graph")
async def go_on(ctx: Context) -> None:
    await run(ctx, ctx.decision.state["thread"], Command(resume=ctx.decision.approved))


agent.run()
