"""A handler that dies at each of its await points: each event is answered exactly once."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest
from live import texts
from mortal import CRASHES, LANES, MortalLoop, two_replies

from blindpipe import Agent, AgentOptions, Context, Conversation, Hooks
from blindpipe.agent.inbox import Inbox
from blindpipe.testing import DevCluster
from blindpipe.transport.http import Call, Http, RawAnswer

async def _live(
    options: AgentOptions,
    conversation: Conversation,
    life: int,
    steps: float,
    *,
    seconds: float = 4,
) -> tuple[bool, int]:
    """A life of an agent, which handles what came before and this life's message.

    Whether it died, and after how many steps.
    """
    await conversation.send(f"message {life}")
    agent = two_replies(options, f"message {life}")
    world = MortalLoop(steps)
    died = await asyncio.to_thread(world.run, agent.serve, seconds)
    return died, world.taken


async def _lane(cluster: DevCluster, crashes: int) -> None:
    """Lives of one agent, one after the other, on two nodes.

    They die at evenly spread points of a start and a message, in no order.
    """
    ada = await cluster.user("ada")
    options = await cluster.agent("mortal", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    checking = Agent(options)
    await checking.check()
    await checking.close()
    _, points = await _live(options, conversation, 0, float("inf"))
    deaths = 0
    order = random.sample(range(crashes), crashes)
    for life, place in enumerate(order, 1):
        on_node = replace(options, url=cluster.nodes[life % 2])
        point = (place + random.random()) * points / crashes
        died, _ = await _live(on_node, conversation, life, point)
        deaths += died
    assert deaths >= 0.8 * crashes
    died, _ = await _live(options, conversation, crashes + 1, float("inf"), seconds=60)
    assert not died
    found = await texts(conversation)
    answers = [text.rpartition(" ")[0] for text in found if not text.startswith("message")]
    lives = range(crashes + 2)
    assert answers == [f"{n} to message {i}" for i in lives for n in ("first", "second")]
    await ada.client.close()


async def test_every_message_has_both_replies_once_and_in_order(cluster: DevCluster) -> None:
    each = -(-CRASHES // LANES)
    await asyncio.gather(*(_lane(cluster, each) for _ in range(LANES)))


async def test_after_two_days_the_history_says_what_was_sent(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await cluster.user("ada")
    options = await cluster.agent("traveller", ada.client)
    world, dying = MortalLoop(), Agent(options)

    @dying.on("message")
    async def die(ctx: Context) -> None:
        await ctx.reply(f"first {random.random()}")
        world.die()
        await asyncio.sleep(0)

    await _check(options)
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("hello")
    assert await asyncio.to_thread(world.run, dying.serve, 20)

    posted: list[str] = []
    raw = Http.raw

    async def counted(self: Http, call: Call) -> RawAnswer:
        if call.method == "POST" and call.path.endswith("/messages"):
            posted.append(call.path)
        return await raw(self, call)

    now = time.time_ns
    # The server has forgotten the ids by then.
    monkeypatch.setattr(time, "time_ns", lambda: now() + 2 * 24 * 3600 * 10**9)
    monkeypatch.setattr(Http, "raw", counted)
    again, duplicates = Agent(options), []

    @again.on("message")
    async def answer(ctx: Context) -> None:
        sent = await ctx.reply(f"first {random.random()}")
        duplicates.append(sent["duplicate"])
        await ctx.reply("second")
        again.stop()

    await again.serve()
    assert duplicates == [True]
    assert len(posted) == 1, "only the second reply was posted"
    monkeypatch.undo()
    found = await texts(conversation)
    assert [text.split(" ")[0] for text in found] == ["hello", "first", "second"]
    await ada.client.close()


async def _check(options: AgentOptions) -> None:
    agent = Agent(options)
    await agent.check()
    await agent.close()


async def test_a_handler_that_fails_runs_again_and_its_event_ends_as_a_dead_letter(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def stops_within(_inbox: Inbox, seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(Inbox, "_stops_within", stops_within)
    ada = await cluster.user("ada")
    options = await cluster.agent("failing", ada.client)
    dead: list[str] = []
    tries: list[str] = []

    def on_dead(event_id: str, event: str, error: Exception) -> None:
        dead.append(f"{event} {type(error).__name__}")

    hooks: Hooks = {"dead_letter": on_dead}
    agent = Agent(replace(options, hooks=hooks))

    @agent.on("message")
    async def fail(ctx: Context) -> None:
        tries.append(ctx.text)
        if ctx.text == "bad":
            raise ValueError(ctx.text)
        await ctx.reply("good too")
        agent.stop()

    await agent.check()
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("bad")
    await conversation.send("good")
    await agent.serve()
    assert tries == [*["bad"] * 5, "good"] and waits == [1, 5, 25, 125]
    assert dead == ["message.created ValueError"]
    await ada.client.close()
