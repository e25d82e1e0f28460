"""Edits, deletions, reactions and replies, of people and of agents, on two nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from live import answer_to, running, until

from blindpipe import Agent, Context, Conversation, Hooks, UsageError, timeline
from blindpipe.client import TimelineItem
from blindpipe.testing import DevCluster, TestUser


async def _shown(conversation: Conversation) -> list[TimelineItem]:
    page = await anext(aiter(conversation.pages()))
    return timeline(page.messages, page.refs)


async def test_people_change_their_messages(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    own = await ada.client.open_direct(bob.client.user_id)
    theirs = bob.client.conversation(own.id)
    for text in ("first", "second", "third"):
        await own.send(text)
    third, second, first = [each async for each in theirs.history()]
    await theirs.react(first, "👍")
    await theirs.react(first, "🎉")
    await theirs.react(first, "🎉", remove=True)
    await theirs.reply(second, "an answer")
    with pytest.raises(UsageError):
        await theirs.edit(first, "not mine")
    mine = {each.text: each async for each in own.history()}
    await own.edit(mine["second"], "2nd")
    await own.edit(mine["second"], "zweite")
    await own.delete(mine["third"])
    await own.delete(mine["third"])
    for side in (own, theirs):
        one, two, three, answer = await _shown(side)
        assert [each.emoji for each in one.reactions] == ["👍"]
        assert one.reactions[0].senders == [bob.client.me]
        assert two.content == {"type": "text", "text": "zweite"} and two.edits == 2
        assert three.state == "deleted" and three.received.message["payload"] is None
        assert answer.received.content["re"] == two.received.opened.re if two.received.opened else ""


async def test_agents_change_their_messages_and_see_those_of_others(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("editor", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    agent, heard = Agent(options), list[str]()

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)
        await ctx.react("👀")
        draft = await ctx.reply("a draft")
        mistake = await ctx.reply("a mistake")
        await ctx.edit(draft, "done")
        await ctx.delete(mistake)

    @agent.on("reaction")
    async def reacted(ctx: Context) -> None:
        heard.append(str(ctx.payload["emoji"]))

    async with running(agent):
        came = await answer_to(ada, lambda: conversation.send("please"))
        await conversation.react(came.received, "❤️")
        await until(lambda: "❤️" in heard)
        await asyncio.sleep(0.2)  # a handler of messages would have run meanwhile
    assert heard == ["please", "❤️"]
    asked, draft, mistake = await _shown(conversation)
    assert [each.emoji for each in asked.reactions] == ["👀"]
    assert draft.content and draft.content["text"] == "done" and draft.edits == 1
    assert mistake.state == "deleted"


async def test_a_deleted_message_reaches_no_handler(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("late", ada.client)
    heard, hooks = list[str](), list[str]()
    told = Hooks(undecryptable=lambda **details: hooks.append(details["reason"]))
    agent = Agent(replace(options, hooks=told))
    await agent.check()
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("a secret")
    await conversation.delete(await anext(aiter(conversation.history())))

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)

    async with running(agent):
        await conversation.send("a question")
        await until(lambda: "a question" in heard)
    assert heard == ["a question"] and hooks == []
