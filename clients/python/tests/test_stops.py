"""A person stops an agent, over the socket and by webhook, and steers it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from live import answer_to, running, texts, until

from blindpipe import Agent, Context
from blindpipe.testing import DevCluster, TestUser


async def test_a_stop_reaches_a_busy_handler_within_a_second(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("busy", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    agent, begun, ended = Agent(options), list[str](), list[str]()

    @agent.on("message")
    async def work(ctx: Context) -> None:
        begun.append(ctx.text)
        if ctx.text == "quick":
            await ctx.reply("yes")
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            assert ctx.stopped.is_set()
            await ctx.reply("I stop")
            raise

    @agent.on_stop
    async def stopped(ctx: Context) -> None:
        ended.append(ctx.event["event"])

    async with running(agent):
        await conversation.send("slow")
        await until(lambda: begun)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        assert await conversation.stop() == 1
        await until(lambda: ended)
        assert loop.time() - asked_at < 1
        # It is not handled again, and what comes after is.
        came = await answer_to(ada, lambda: conversation.send("quick"))
        assert came.text == "yes"
    assert begun == ["slow", "quick"] and ended == ["turn.stop"]
    assert await texts(conversation) == ["slow", "I stop", "quick", "yes"]


async def test_a_handler_takes_what_arrives_meanwhile(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("steered", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    agent, begun = Agent(options), list[str]()

    @agent.on("message")
    async def work(ctx: Context) -> None:
        begun.append(ctx.text)
        taken: list[str] = []
        while ctx.text == "plan" and len(taken) < 2:
            taken += [message.text for message in await ctx.steer()]
            await asyncio.sleep(0.02)
        await ctx.reply(" and ".join([ctx.text, *taken]))

    async with running(agent):
        await conversation.send("plan")
        await until(lambda: begun)
        await conversation.send("in red")
        came = await answer_to(ada, lambda: conversation.send("with a hat"))
        assert came.text == "plan and in red and with a hat"
        assert (await answer_to(ada, lambda: conversation.send("next"))).text == "next"
    assert begun == ["plan", "next"]


async def test_a_newer_message_interrupts(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("hasty", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    agent, begun = Agent(replace(options, busy_policy="interrupt")), list[str]()

    @agent.on("message")
    async def work(ctx: Context) -> None:
        begun.append(ctx.text)
        if ctx.text == "first":
            await asyncio.sleep(60)
        await ctx.reply(ctx.text)

    async with running(agent):
        await conversation.send("first")
        await until(lambda: begun)
        assert (await answer_to(ada, lambda: conversation.send("second"))).text == "second"
    assert begun == ["first", "second"]
