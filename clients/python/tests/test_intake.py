"""A read of the service that lasts holds up its own conversation, and no other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from attacker import Frozen, Victim, attacked_agent, attacked_person, attacking
from live import MANIFEST, grant, running, sign_in, until

from blindpipe import Agent, Context, Conversation
from blindpipe.client import CaughtUp, Client, MessageEvent
from blindpipe.testing import DevCluster, TestUser

OTHERS = [f"other {number}" for number in range(20)]


def _of_keys(user: TestUser, *conversations: Conversation) -> tuple[str, ...]:
    """All paths that tell this person's keys."""
    asked = [f"/keys/users/{user.client.user_id}/"]
    return tuple(asked + [f"/keys/groups/{each.id}" for each in conversations])


@asynccontextmanager
async def _new_device(cluster: DevCluster, user: TestUser) -> AsyncIterator[Client]:
    client = await sign_in(cluster, user, "phone")
    await client.devices.restore(user.protection_password)
    try:
        yield client
    finally:
        await client.close()


async def test_a_conversation_whose_reading_lasts_holds_up_no_other_one(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        await ada.client.open_agent(agent.agent_id)

        async def group(title: str) -> Conversation:
            made = await ada.client.open_group([bob.client.user_id], title=title)
            await made.add_agent(agent.agent_id, "all")
            return made

        slow, other = await group("slow"), await group("other")
        frozen = Frozen(attacker)
        frozen.paths = (f"/conversations/{slow.id}",)
        await slow.send("first")
        await frozen.is_read.wait()
        # An event that changes the keys of the conversation that is being read.
        await slow.rotate()
        await slow.send("second")
        for text in OTHERS:
            await other.send(text)
        await until(lambda: len(victim.heard) == 20, 20)
        assert victim.heard == OTHERS
        frozen.thaw()
        await until(lambda: len(victim.heard) == 22)
        assert victim.heard[20:] == ["first", "second"]
    assert victim.faults == []


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_keys_whose_reading_lasts_hold_up_no_other_conversation_of_an_agent(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr("blindpipe.agent.transports.SETTLE_SECONDS", 0.1)
    victim, bob = Victim(), await cluster.user("bob")
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim, transport=transport) as (agent, _),
    ):
        frozen = Frozen(attacker)
        bobs = await bob.client.open_agent(agent.agent_id)
        adas = await ada.client.open_agent(agent.agent_id)
        for conversation in (bobs, adas):
            await conversation.send("before")
        await until(lambda: len(victim.heard) == 2)
        frozen.paths = _of_keys(bob, bobs)
        async with _new_device(cluster, bob):
            await frozen.is_read.wait()
            await bobs.send("first")
            await bobs.send("second")
            for text in OTHERS:
                await adas.send(text)
            await until(lambda: len(victim.heard) == 22, 20)
            assert victim.heard[2:] == OTHERS
            if transport == "socket":
                assert frozen.acked < frozen.number_of("key.device_added")
            frozen.thaw()
            await until(lambda: len(victim.heard) == 24)
            assert victim.heard[22:] == ["first", "second"]
    assert victim.faults == []
    await bob.client.close()


async def test_a_persons_own_list_whose_reading_lasts_holds_up_no_conversation(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "carol", Victim()) as carol,
    ):
        frozen = Frozen(attacker)
        frozen.paths = _of_keys(carol)
        bobs = await bob.client.open_direct(carol.client.user_id)
        for text in OTHERS:
            await bobs.send(text)
        shown = list[str | None]()

        async def show() -> None:
            async with aclosing(carol.client.events()) as events:
                async for event in events:
                    if isinstance(event, MessageEvent):
                        shown.append(event.text)
                    if isinstance(event, CaughtUp):
                        return

        showing = asyncio.create_task(show())
        await frozen.is_read.wait()
        await until(lambda: len(shown) == len(OTHERS))
        assert not showing.done(), "an alarm comes before all is said to have come"
        frozen.thaw()
        await showing
    assert shown == OTHERS


async def test_an_answer_that_lasts_holds_up_no_other_conversation_of_a_person(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "carol", Victim()) as carol,
    ):
        frozen = Frozen(attacker)
        made = await cluster.agent("asker", carol.client, manifest=MANIFEST)
        agent, results = Agent(made), list[str | None]()

        @agent.on("message")
        async def ask(ctx: Context) -> None:
            result = await ctx.call("send_email", "notification:send", {})
            results.append(result.reason)

        async with running(agent):
            asked = await carol.client.open_agent(agent.agent_id)
            await grant(carol, asked, made)
            bobs = await bob.client.open_direct(carol.client.user_id)
            # Carol's device has no such tool, and the service does not take its answer.
            frozen.paths = ("/artifact-requests/",)
            await asked.send("a mail, please")
            shown = list[str | None]()

            async def show() -> None:
                async with aclosing(carol.client.events()) as events:
                    async for event in events:
                        if isinstance(event, MessageEvent) and event.conversation.id == bobs.id:
                            shown.append(event.text)

            showing = asyncio.create_task(show())
            await frozen.is_read.wait()
            for text in OTHERS:
                await bobs.send(text)
            await until(lambda: len(shown) == len(OTHERS))
            await asyncio.sleep(0.3)
            assert frozen.acked < frozen.number_of("artifact_request")
            frozen.thaw()
            await until(lambda: results and frozen.acked > frozen.number_of("artifact_request"))
            showing.cancel()
            await asyncio.wait([showing])
    assert shown == OTHERS and results == ["unknown_tool"]


async def test_an_older_answer_about_keys_takes_no_key_back(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim, bob = Victim(), await cluster.user("bob")
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        frozen = Frozen(attacker)
        bobs = await bob.client.open_agent(agent.agent_id)
        await bobs.send("before")
        await until(lambda: victim.heard)
        frozen.paths = _of_keys(bob)
        older = [device for device in await bob.client.devices.list() if device["has_keys"]]
        names = {device["device_id"] for device in older}

        def on_answer(_method: str, path: str, data: Any) -> Any:
            if not path.startswith(frozen.paths):
                return data
            is_answered.set()
            return {**data, "devices": [d for d in data["devices"] if d["device_id"] in names]}

        attacker.on_answer, is_answered = on_answer, asyncio.Event()
        async with _new_device(cluster, bob) as phone:
            await frozen.is_read.wait()
            on_phone = phone.conversation(bobs.id)
            await on_phone.send("from the phone")
            await until(lambda: len(victim.heard) == 2)
            frozen.thaw()
            await is_answered.wait()
            await on_phone.send("and again")
            await until(lambda: len(victim.heard) == 3 or victim.faults)
    assert victim.heard == ["before", "from the phone", "and again"]
    assert "retired_key" not in [kind for kind, _ in victim.notices]
    await bob.client.close()


async def test_keys_whose_reading_lasts_hold_up_no_other_conversation_of_a_person(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim, bob = Victim(), await cluster.user("bob")
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "carol", victim) as carol,
    ):
        frozen = Frozen(attacker)
        bobs = await bob.client.open_direct(carol.client.user_id)
        adas = await ada.client.open_direct(carol.client.user_id)
        for conversation in (bobs, adas):
            await conversation.send("before")
        shown, is_caught_up = list[str | None](), asyncio.Event()

        async def show() -> None:
            async with aclosing(carol.client.events()) as events:
                async for event in events:
                    if isinstance(event, CaughtUp):
                        is_caught_up.set()
                    if isinstance(event, MessageEvent):
                        shown.append(event.text)

        showing = asyncio.create_task(show())
        await is_caught_up.wait()
        assert shown == ["before", "before"], "all that was there before is shown before"
        frozen.paths = _of_keys(bob, bobs)
        async with _new_device(cluster, bob):
            await frozen.is_read.wait()
            await bobs.send("first")
            await bobs.send("second")
            for text in OTHERS:
                await adas.send(text)
            await until(lambda: len(shown) == 22, 20)
            assert shown[2:] == OTHERS
            await asyncio.sleep(0.3)
            assert frozen.acked < frozen.number_of("key.device_added")
            frozen.thaw()
            await until(lambda: len(shown) == 24)
            assert shown[22:] == ["first", "second"]
            await until(lambda: frozen.acked > frozen.number_of("key.device_added"))
        showing.cancel()
        await asyncio.wait([showing])
    assert victim.faults == []
    await bob.client.close()
