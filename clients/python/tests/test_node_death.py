"""A node is killed. It runs last: other tests use the same nodes."""

from __future__ import annotations

from dataclasses import replace

from live import answer_to, collect, from_agent, running

from blindpipe import Agent
from blindpipe.client import MessageEvent
from blindpipe.testing import DevCluster, TestUser


async def test_a_node_dies_and_nothing_is_lost_or_doubled(
    cluster: DevCluster, ada: TestUser
) -> None:
    lost: list[int] = []

    def disconnected(code: int, holders: object = None) -> None:
        lost.append(code)

    options = await cluster.agent("survivor", ada.client)
    agent = Agent(replace(options, hooks={"disconnected": disconnected}))
    agent.on("message", lambda ctx: ctx.reply(f"You said: {ctx.text}"))
    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        assert (await answer_to(ada, lambda: conversation.send("before"))).text
        cluster.kill(len(cluster.nodes) - 1)

        async def send_ten() -> None:
            for number in range(10):
                await conversation.send(f"after {number}")

        events = await collect(ada, send_ten, lambda all: sum(map(from_agent, all)) >= 10)
    answers = [e.text for e in events if isinstance(e, MessageEvent) and from_agent(e)]
    assert answers == [f"You said: after {number}" for number in range(10)]
    assert lost, "the connection was lost"
