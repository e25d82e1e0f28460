"""Streams over lost connections, for listeners that come in their middle."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from attacker import attacking
from live import collect, from_agent, running, until

from blindpipe import Agent, Context
from blindpipe.client import (
    CaughtUp,
    CheckpointEvent,
    ClientEvent,
    DeltaEvent,
    MessageEvent,
    StatusEvent,
    StreamCancelled,
)
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.socket import Frame


def shown(events: list[ClientEvent]) -> str:
    """A screen's view of a single stream."""
    text = ""
    for event in events:
        if isinstance(event, CheckpointEvent):
            text = event.text
        elif isinstance(event, DeltaEvent):
            text += event.append
    return text


async def test_a_listener_in_the_middle_and_a_lost_connection(
    cluster: DevCluster, ada: TestUser
) -> None:
    """A search, a text, a lost connection, and a device that comes late."""
    is_joined, is_back = asyncio.Event(), asyncio.Event()
    async with attacking(cluster) as proxy:
        options = await cluster.agent("narrator", ada.client)
        agent = Agent(replace(options, url=proxy.url, ssl_context=None))
        is_losing = False

        def on_client_frame(frame: Frame) -> Frame:
            if is_losing and frame["type"] == "stream.delta":
                return {"type": "stream.keepalive", "stream_id": frame["stream_id"]}
            return frame

        proxy.on_client_frame = on_client_frame

        @agent.on("message")
        async def answer(ctx: Context) -> None:
            ctx.status("searching…")
            await asyncio.sleep(0.5)
            async with ctx.stream() as out:
                for n in range(5):
                    out.write(f"{n} ")
                    await asyncio.sleep(0.1)
                ctx.status("reading…")
                await is_joined.wait()
                nonlocal is_losing
                is_losing = True
                out.write("5 ")
                await asyncio.sleep(0.3)
                is_losing = False
                await proxy.hang_up()
                await is_back.wait()

        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await asyncio.wait_for(
                collect(
                    ada,
                    lambda: conversation.send("?"),
                    lambda all: isinstance(all[-1], StatusEvent) and all[-1].text == "reading…",
                ),
                30,
            )
            events: list[ClientEvent] = []
            async with aclosing(ada.client.events()) as coming, asyncio.timeout(30):
                async for event in coming:
                    events.append(event)
                    if isinstance(event, CaughtUp):
                        [live] = await conversation.streams()
                        assert live["agent_id"] == agent.agent_id
                    if isinstance(event, StatusEvent) and not is_joined.is_set():
                        assert shown(events) == "0 1 2 3 4 "
                        is_joined.set()
                    if shown(events).endswith("5 "):
                        is_back.set()
                    if from_agent(event):
                        break
    assert shown(events) == "0 1 2 3 4 5 "
    [message] = filter(from_agent, events)
    assert isinstance(message, MessageEvent) and message.text == "0 1 2 3 4 5 "


async def test_a_status_without_a_text_ends_with_the_reply(
    cluster: DevCluster, ada: TestUser
) -> None:
    agent = Agent(await cluster.agent("searcher", ada.client))

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        ctx.status("searching…")
        await asyncio.sleep(0.5)
        await ctx.reply("found")

    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        events = await collect(
            ada,
            lambda: conversation.send("?"),
            lambda all: any(isinstance(event, StreamCancelled) for event in all)
            and any(map(from_agent, all)),
        )
    assert [event.text for event in events if isinstance(event, StatusEvent)] == ["searching…"]
    assert not await conversation.streams()


async def test_a_silent_stream_sends_its_signs(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.agent.stream.SIGN_SECONDS", 0.1)
    monkeypatch.setattr("blindpipe.agent.stream.NEWS_SECONDS", 0.02)
    # The server takes one in two seconds.
    monkeypatch.setattr("blindpipe.agent.stream.CHECKPOINT_SECONDS", 2.2)
    said: list[str] = []

    def on_client_frame(frame: Frame) -> Frame:
        kind, _, name = frame["type"].partition(".")
        if kind == "stream":
            said.append(name)
        return frame

    async with attacking(cluster) as proxy:
        proxy.on_client_frame = on_client_frame
        options = await cluster.agent("thinker", ada.client)
        agent = Agent(replace(options, url=proxy.url, ssl_context=None))

        @agent.on("message")
        async def answer(ctx: Context) -> None:
            async with ctx.stream() as out:
                out.status("thinking…")
                await until(lambda: said.count("keepalive") == 3)
                out.write("found")
                # The first has the text for those who come later, the second keeps it fresh.
                await until(lambda: said.count("checkpoint") == 2)

        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            events = await collect(
                ada, lambda: conversation.send("?"), lambda all: any(map(from_agent, all))
            )
    assert not any(isinstance(event, StreamCancelled) for event in events)
    assert shown(events) == "found"
    order = [name for at, name in enumerate(said) if name != said[at - 1] or at == 0]
    opening, text = ["begin", "status", "keepalive"], ["delta", "checkpoint", "keepalive"]
    assert order == [*opening, *text, "checkpoint", "end"]
    assert said.count("begin") == said.count("status") == said.count("delta") == 1
