"""A client written against the interface alone goes on working beside `bp1` clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from live import answer_to, collect, running, texts
from plain import PlainPerson

from blindpipe import Agent, Context, Conversation, KeyUnavailable
from blindpipe.client import ClientEvent, OtherEvent, ReceivedMessage
from blindpipe.e2ee.ids import new_ulid
from blindpipe.e2ee.trust import NoticeKind
from blindpipe.testing import DevCluster, TestUser


@asynccontextmanager
async def plain_person(cluster: DevCluster, node: int = 1) -> AsyncIterator[PlainPerson]:
    person = PlainPerson(cluster.nodes[node], cluster.ssl_context)
    address = f"carl-{new_ulid().lower()}@example.com"
    try:
        await person.send_code(address)
        await person.register(address, await cluster.code(address), "Carl")
        yield person
    finally:
        await person.close()


def _is_rotation(event: ClientEvent) -> bool:
    return isinstance(event, OtherEvent) and event.name == "key.rotated"


async def newest(conversation: Conversation) -> ReceivedMessage:
    return await anext(aiter(conversation.history()))


async def test_it_speaks_clear_with_people_and_an_agent_who_choose_so(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    options = await cluster.agent("both", ada.client)
    agent, heard = Agent(replace(options, plaintext="allow")), list[str]()

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)
        if ctx.text == "from Carl":
            await ctx.reply("to all")

    async with plain_person(cluster) as carl, running(agent):
        await ada.client.open_agent(options.agent_id)
        group = await ada.client.open_group([bob.client.user_id, carl.id])
        await group.add_agent(options.agent_id, "all")
        bobs = bob.client.conversation(group.id)
        for mine in (group, bobs):
            with pytest.raises(KeyUnavailable):
                await mine.send("nobody chose clear text")
            await mine.choose_clear()
        socket = await carl.connect()
        await group.send("from Ada")
        await bobs.send("from Bob")
        reply = await answer_to(ada, lambda: carl.say(group.id, "from Carl"))
        assert reply.text == "to all"
        said = ["from Ada", "from Bob", "from Carl", "to all"]
        assert await texts(group) == await texts(bobs) == said
        assert [payload["text"] for payload in await carl.history(group.id)] == said
        # Its socket brings the same, its own messages too.
        live: list[str] = []
        while len(live) < len(said):
            frame = await socket.receive_json(timeout=10)
            if frame.get("event") == "message.created":
                live.append(frame["data"]["payload"]["text"])
        assert live == said
        await socket.close()
        opened = (await newest(group)).opened
        assert opened and not opened.sender.authentic
        assert [notice.kind for notice in opened.notices] == [NoticeKind.NOT_ENCRYPTED]
    assert sorted(heard) == ["from Ada", "from Bob", "from Carl"]


async def test_in_an_encrypted_group_it_is_a_member_who_stays_outside_the_secret(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    async with plain_person(cluster) as carl:
        group = await ada.client.open_group([bob.client.user_id])
        bobs = bob.client.conversation(group.id)
        await group.send("before Carl")
        await group.add_members(carl.id)
        # The server wants a wrap for each device, and gets one for Carl's too.
        await group.send("with Carl")
        assert await texts(bobs) == ["before Carl", "with Carl"]
        wraps = await carl.call("GET", f"/keys/groups/{group.id}")
        assert wraps["epoch"] == wraps["current_epoch"] and len(wraps["wrapped_keys"]) == 1
        # Carl still sends and reads what came after him; his clear text counts for nobody here.
        await carl.say(group.id, "in clear")
        payloads = await carl.history(group.id)
        assert [payload["type"] for payload in payloads] == ["encrypted", "text"]
        fault = (await newest(group)).fault
        assert fault and fault.reason == "clear"
        # An epoch of his own scheme keeps nobody from going on in bp1.
        epochs: list[int] = []

        async def rotate() -> None:
            epochs.append(await carl.rotate(group.id))

        await collect(ada, rotate, lambda all: any(map(_is_rotation, all)))
        await group.send("after his epoch")
        await bobs.send("so say I")
        found = ["before Carl", "with Carl", "clear", "after his epoch", "so say I"]
        assert await texts(group) == await texts(bobs) == found
        assert (await ada.client.session.load(group.id)).room.server.epoch >= epochs[0]
