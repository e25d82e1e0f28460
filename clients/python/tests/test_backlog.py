"""A long backlog stays on the server: memory has a bound, and every event comes once, in order."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from attacker import Victim, attacked_person, attacking
from live import collect, running, until

from blindpipe import Agent, Context
from blindpipe.client import MessageEvent
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport import backlog
from blindpipe.transport.socket import Frame

MESSAGES = 60
MESSAGE_CHARACTERS = 80_000
MAX_GROWTH_BYTES = 4_000_000
"""Much less than the messages take together, and several times the bound of this test."""


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backlog, "MAX_PENDING_BYTES", 1_000_000)
    monkeypatch.setattr(backlog, "RESUME_BELOW_BYTES", 250_000)
    yield
    tracemalloc.stop()


async def test_what_nobody_handles_yet_waits_on_the_server(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    talker = Agent(await cluster.agent("talker", ada.client))
    listener = Agent(await cluster.agent("listener", ada.client))
    filler = "x" * MESSAGE_CHARACTERS

    @talker.on("message")
    async def talk(ctx: Context) -> None:
        for number in range(MESSAGES):
            await ctx.reply(f"{number} {filler}")

    await listener.check()
    async with running(talker):
        for agent in (talker, listener):
            await ada.client.open_agent(agent.agent_id)
        group = await ada.client.open_group([bob.client.user_id])
        await group.add_agent(talker.agent_id, "all")
        await group.add_agent(listener.agent_id, "all")
        await group.send("talk")
        last = f"{MESSAGES - 1} "
        async with asyncio.timeout(30):
            while not str((await anext(aiter(group.history(limit=1)))).text).startswith(last):
                await asyncio.sleep(0.05)
    await _agent_is_bounded(listener)
    await _person_is_bounded(bob)


async def _agent_is_bounded(listener: Agent) -> None:
    handled: list[int] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @listener.on("message")
    async def listen(ctx: Context) -> None:
        begun.set()
        await go.wait()
        if ctx.text != "talk":
            handled.append(int(ctx.text.split(" ")[0]))

    async with running(listener):
        tracemalloc.start()
        await begun.wait()
        # Time enough for all of it to come, were there no bound.
        await asyncio.sleep(0.5)
        assert tracemalloc.get_traced_memory()[0] < MAX_GROWTH_BYTES
        go.set()
        await until(lambda: len(handled) == MESSAGES, 30)
        assert tracemalloc.get_traced_memory()[1] < MAX_GROWTH_BYTES
    assert handled == list(range(MESSAGES))


async def _person_is_bounded(bob: TestUser) -> None:
    shown: list[int] = []
    async with asyncio.timeout(10), aclosing(bob.client.events()) as events:
        async for event in events:
            if isinstance(event, MessageEvent):
                # Left while the rest waits on the server; it comes again.
                await asyncio.sleep(0.5)
                break
    tracemalloc.stop()
    tracemalloc.start()
    async with aclosing(bob.client.events()) as events:
        async for event in events:
            if isinstance(event, MessageEvent) and event.text and event.text != "talk":
                if not shown:
                    await asyncio.sleep(0.5)
                shown.append(int(event.text.split(" ")[0]))
            if len(shown) == MESSAGES:
                break
    assert tracemalloc.get_traced_memory()[1] < MAX_GROWTH_BYTES
    assert shown == list(range(MESSAGES))


async def test_pieces_of_streams_have_the_bound_too(cluster: DevCluster, ada: TestUser) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "bob", victim) as bob,
    ):
        direct = await ada.client.open_direct(bob.client.user_id)

        async def flood() -> None:
            for n in range(MESSAGES):
                if attacker.is_connected:
                    await attacker.push(_piece(direct.id, n))
            # It leaves before it has taken them all, and comes back once there is room.
            await until(lambda: not attacker.is_connected)
            await direct.send("after")

        events = await collect(bob, flood, lambda all: isinstance(all[-1], MessageEvent))
    assert isinstance(events[-1], MessageEvent) and events[-1].text == "after"
    assert 0 < len(victim.faults) < MESSAGES


def _piece(conversation_id: str, n: int) -> Frame:
    return {
        "type": "stream.delta",
        "conversation_id": conversation_id,
        "stream_id": new_ulid(),
        "n": n,
        "data": "x" * MESSAGE_CHARACTERS,
        "sender": {"type": "agent", "id": new_ulid()},
    }
