"""The person's side: another device, groups, addressed agents, files, rotations."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from live import answer_to, collect, running, sign_in, texts, until

from blindpipe import Agent, BlindpipeError, Context, KeyUnavailable, NewFile, UsageError
from blindpipe.client import MessageEvent
from blindpipe.e2ee import E2eeError, ids
from blindpipe.e2ee.trust import NoticeKind
from blindpipe.testing import DevCluster, TestUser


async def test_two_people_in_a_direct_conversation_on_two_nodes(
    ada: TestUser, bob: TestUser
) -> None:
    conversation = await ada.client.open_direct(bob.client.user_id)
    events = await collect(
        bob,
        lambda: conversation.send("Grüße, Bob"),
        lambda all: any(isinstance(event, MessageEvent) for event in all),
    )
    came = next(event for event in events if isinstance(event, MessageEvent))
    assert came.text == "Grüße, Bob"
    await came.conversation.send("Grüße, Ada", in_reply_to=came.received)
    await came.conversation.mark_read(came.received)
    assert await texts(conversation) == ["Grüße, Bob", "Grüße, Ada"]
    newest = await anext(aiter(conversation.history()))
    assert came.received.opened and newest.content["re"] == came.received.opened.re
    assert [info["conversation_id"] async for info in bob.client.conversations()]


async def test_another_device_restores_the_keys_and_reads_everything(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    conversation = await ada.client.open_direct(bob.client.user_id)
    await conversation.send("for the history")
    phone = await sign_in(cluster, ada, "phone", node=1)
    with pytest.raises(E2eeError, match="wrong_key"):
        await phone.devices.restore("another password")
    await phone.devices.restore(ada.protection_password)
    on_phone = phone.conversation(conversation.id)
    assert "for the history" in await texts(on_phone)
    await on_phone.send("from the phone")
    assert (await texts(on_phone))[-1] == "from the phone"
    assert len([d for d in await phone.devices.list() if d["has_keys"]]) == 2
    # Introduced by a key that Bob knows: nobody is asked, and the numbers are the same.
    bobs = bob.client.conversation(conversation.id)
    assert (await texts(bobs))[-1] == "from the phone"
    number = await bob.client.safety_number(phone.me)
    for client in (ada.client, phone):
        assert await client.safety_number(bob.client.me) == number
    assert len(number.replace(" ", "")) == 60
    with pytest.raises(UsageError):
        bob.client.verify(phone.me, number[:-1])
    bob.client.verify(phone.me, number)
    newest = await anext(aiter(bobs.history()))
    assert newest.opened and newest.opened.sender.verified
    await phone.devices.revoke("phone")
    with pytest.raises(BlindpipeError):
        await phone.devices.list()
    await phone.close()


async def test_a_lost_device_is_revoked_with_those_that_it_introduced(
    cluster: DevCluster, bob: TestUser
) -> None:
    ada = await cluster.user("ada")
    phone = await sign_in(cluster, ada, "phone", node=1)
    await phone.devices.restore(ada.protection_password)
    # The newest backup is the phone's, whose key introduces the next device.
    thief = await sign_in(cluster, ada, "thief", node=1)
    await thief.devices.restore(ada.protection_password)
    assert await ada.client.devices.introduced_by("phone") == ["thief"]
    assert await phone.devices.introduced_by("phone") == ["thief"]
    assert await thief.devices.introduced_by("phone") == []
    await ada.client.devices.revoke("phone", with_introduced=True)
    left = [device["device_id"] for device in await ada.client.devices.list()]
    assert left == [ada.client.account.device_id]
    for client in (phone, thief, ada.client):
        await client.close()


async def test_an_addressed_agent_reads_what_names_it_and_nothing_else(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    agent = Agent(await cluster.agent("addressed", ada.client))
    heard: list[str] = []

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)
        await ctx.reply(f"heard: {ctx.text}")

    async with running(agent):
        await ada.client.open_agent(agent.agent_id)
        group = await ada.client.open_group([bob.client.user_id], title="all")
        await group.add_agent(agent.agent_id)
        await group.send("not for machines")
        answer_ = await answer_to(ada, lambda: group.send("for it", to=[agent.agent_id]))
        assert answer_.text == "heard: for it"
    assert heard == ["for it"]
    bobs = bob.client.conversation(group.id)
    assert await texts(bobs) == ["not for machines", "for it", "heard: for it"]


async def test_a_removed_member_gets_no_secret_of_what_follows(
    cluster: DevCluster, ada: TestUser
) -> None:
    eve = await cluster.user("eve")
    group = await ada.client.open_group([eve.client.user_id], title="few")
    await group.send("with Eve")
    assert await texts(eve.client.conversation(group.id)) == ["with Eve"]
    before = (await group.info())["epoch"]
    await group.remove_member(eve.client.user_id)
    await group.send("without Eve")
    entry = await ada.client.session.load(group.id)
    assert entry.room.newest and entry.room.newest.epoch == before + 1, "at once, and only then"
    assert [each.principal for each in entry.recipients] == [ada.client.me]
    await eve.client.close()


async def test_a_device_that_is_revoked_gets_no_secret_of_what_follows_at_once(
    cluster: DevCluster, bob: TestUser
) -> None:
    ada = await cluster.user("ada", device_id="laptop")
    conversation = await ada.client.open_direct(bob.client.user_id)
    phone = await sign_in(cluster, ada, "lost-phone", node=1)
    lost = await phone.devices.restore(ada.protection_password)
    await conversation.send("both read this")
    before = (await conversation.info())["epoch"]
    await ada.client.devices.revoke("lost-phone")
    after = await conversation.info()
    assert after["epoch"] == before + 1, "before anything was sent"
    assert not after["rotation_required"]
    entry = await ada.client.session.load(conversation.id)
    given = [key.public_key for each in entry.recipients for key in each.keys]
    assert lost.signer.public.public_key not in given
    await conversation.send("the lost phone does not")
    assert await texts(bob.client.conversation(conversation.id)) == [
        "both read this",
        "the lost phone does not",
    ]
    await phone.close()
    await ada.client.close()


async def test_after_ten_thousand_messages_the_next_send_has_a_fresh_secret(
    ada: TestUser, bob: TestUser
) -> None:
    conversation = await ada.client.open_direct(bob.client.user_id)
    await conversation.send("the first")
    entry = await ada.client.session.load(conversation.id)
    before = entry.room.server.epoch
    entry.room.server.messages = 9_999
    await conversation.send("the last of its secret")
    assert entry.room.server.epoch == before
    await conversation.send("under a fresh one")
    assert (entry.room.server.epoch, entry.room.server.messages) == (before + 1, 1)


async def test_a_stream_of_an_addressed_agent_reaches_another_one(
    cluster: DevCluster, ada: TestUser
) -> None:
    writer = Agent(await cluster.agent("writer", ada.client))
    reader = Agent(await cluster.agent("reader", ada.client))
    heard: list[str] = []
    reader.on("message", lambda ctx: heard.append(ctx.text))

    @writer.on("message")
    async def write(ctx: Context) -> None:
        async with ctx.stream(to=[reader.agent_id]) as out:
            for word in ("for ", "you"):
                out.write(word)
                await asyncio.sleep(0.1)

    async with running(writer), running(reader):
        await ada.client.open_agent(writer.agent_id)
        await ada.client.open_agent(reader.agent_id)
        group = await ada.client.open_group([])
        await group.add_agent(writer.agent_id, "all")
        await group.add_agent(reader.agent_id)
        await group.send("to the writer")
        await until(lambda: heard)
    assert heard == ["for you"]


async def test_files_are_sealed_before_they_leave(cluster: DevCluster, ada: TestUser) -> None:
    agent = Agent(await cluster.agent("files", ada.client))
    content = os.urandom(200_000)

    @agent.on("message")
    async def back(ctx: Context) -> None:
        assert await ctx.file().read() == content
        await ctx.send_file(NewFile("back.bin", content))

    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        file = NewFile("there.bin", content)
        answer = await answer_to(ada, lambda: conversation.send_file(file))
    assert answer.received.content["name"] == "back.bin"
    assert await conversation.download_file(answer.received.content) == content


async def test_clear_text_goes_to_somebody_without_bp1_only_by_choice(
    cluster: DevCluster, ada: TestUser
) -> None:
    made = await cluster.agent("plain", ada.client)
    agent = Agent(replace(made, key=None, plaintext="allow"))
    agent.on("message", lambda ctx: ctx.reply(f"plain: {ctx.text}"))
    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        with pytest.raises(KeyUnavailable):
            await conversation.send("hello")
        await conversation.choose_clear()
        answer = await answer_to(ada, lambda: conversation.send("hello"))
    assert answer.text == "plain: hello"
    opened = answer.received.opened
    assert opened and not opened.encrypted
    assert [notice.kind for notice in opened.notices] == [NoticeKind.NOT_ENCRYPTED]


async def test_a_link_with_the_agents_key_verifies_it(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("linked", ada.client)
    agent = Agent(options)
    agent.on("message", lambda ctx: ctx.reply("hello"))
    key_id = options.keys()[0].keys().key_id.hex()
    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id, key_id=key_id)
        answer = await answer_to(ada, lambda: conversation.send("who?"))
    assert answer.received.opened and answer.received.opened.sender.verified
    assert ids.principal("agent", agent.agent_id) == answer.received.opened.sender.principal
