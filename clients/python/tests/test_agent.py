"""An agent and a person on two nodes of a real cluster."""

from __future__ import annotations

from live import answer_to, running

from blindpipe import Agent, Context
from blindpipe.testing import DevCluster, TestUser


async def test_an_echo_is_encrypted_both_ways(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("echo", ada.client)
    agent = Agent(options)

    @agent.on("message")
    async def echo(ctx: Context) -> None:
        await ctx.reply(f"You said: {ctx.text}")

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        answer = await answer_to(ada, lambda: conversation.send("Grüße"))
    assert answer.received.fault is None
    assert answer.text == "You said: Grüße"
    opened = answer.received.opened
    assert opened and opened.encrypted and opened.sender.authentic
    assert (answer.received.message["payload"] or {})["type"] == "encrypted"
