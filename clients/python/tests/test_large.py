"""Contents that do not fit an envelope, and files with their captions."""

from __future__ import annotations

from live import answer_to, running

from blindpipe import Agent, Context, NewFile
from blindpipe.client import ContentView, Thumbnail
from blindpipe.testing import DevCluster, TestUser

LONG = "é" * 500_000


async def test_a_large_content_goes_as_a_file_both_ways(
    cluster: DevCluster, ada: TestUser
) -> None:
    made = await cluster.agent("echo", ada.client)
    agent = Agent(made)
    heard: list[str] = []

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)
        await ctx.reply(ctx.text + "!")

    async with running(agent):
        conversation = await ada.client.open_agent(made.agent_id)
        came = await answer_to(ada, lambda: conversation.send(LONG))
    assert heard == [LONG]
    assert came.received.content["text"] == LONG + "!"
    assert came.received.opened and came.received.opened.content["re"]
    stored = came.received.message["payload"]
    assert stored is not None and len(str(stored)) < 5_000


async def test_a_file_has_a_caption_and_a_thumbnail(ada: TestUser, bob: TestUser) -> None:
    conversation = await ada.client.open_direct(bob.client.user_id)
    thumbnail = Thumbnail("image/png", b"\x89PNG", 8, 6)
    picture = NewFile("cat.png", b"a cat", "image/png", "our cat", "image", thumbnail)
    await conversation.send_file(picture)
    received = await anext(aiter(bob.client.conversation(conversation.id).history()))
    assert ContentView.of(received.content).text == "our cat"
    assert received.content["kind"] == "image" and received.content["thumbnail"]["width"] == 8
    assert await bob.client.conversation(conversation.id).download_file(received.content) == b"a cat"
