"""A group with a Python agent, a TypeScript agent, and people in both languages, on two nodes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from blindpipe import Agent, Context, timeline
from blindpipe.agent import ApprovalResult, Receipt
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from live import ROOT, answer_to, asked, environment, online, running, texts, until
from test_marks import files_with

DIST = ROOT / "clients/typescript/dist"
SCRIPT = ROOT / "clients/python/tests/typescript.mjs"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None or not (DIST / "index.js").exists(),
    reason="the TypeScript client is not built: `npm ci` in clients/typescript",
)


async def test_everyone_reads_exactly_what_it_should(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    mark, title = (f"{name}-{new_ulid()}" for name in ("mark", "title"))
    everything = Agent(await cluster.agent("all", ada.client, node=0))
    addressed = await cluster.agent("addressed", ada.client, node=1)
    heard: list[str] = []

    @everything.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)
        if ctx.sender and ctx.sender.type == "user":
            await ctx.reply(f"Python heard: {ctx.text}")

    env = environment(cluster, addressed)
    node = await asyncio.create_subprocess_exec(
        str(NODE), SCRIPT, DIST, "agent", env=env, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with running(everything):
            await online(node, addressed, ada)
            for agent_id in (everything.agent_id, addressed.agent_id):
                await ada.client.open_agent(agent_id)
            group = await ada.client.open_group([bob.client.user_id], title=title)
            await group.add_agent(everything.agent_id, "all")
            await group.add_agent(addressed.agent_id, "addressed")
            first = await answer_to(ada, lambda: group.send(f"{mark} for people"))
            assert first.text == f"Python heard: {mark} for people"
            await group.send(f"{mark} for both", to=[addressed.agent_id])
            await until(lambda: len(heard) == 3)
    finally:
        node.terminate()
        output, _ = await node.communicate()
    assert node.returncode == 0
    assert output.decode().split("\n") == [f"heard: {mark} for both", ""]
    assert heard == [f"{mark} for people", f"{mark} for both", f"TypeScript heard: {mark} for both"]

    wanted = {*heard, f"Python heard: {mark} for people", f"Python heard: {mark} for both"}
    for_bob = await texts(bob.client.conversation(group.id))
    assert set(for_bob) == wanted and len(for_bob) == 5
    assert await _typescript_person(cluster, ada, group.id) == for_bob
    assert (await texts(bob.client.conversation(group.id)))[-1] == "from TypeScript"

    # Titles are the server's to know. Of what was said, no database, log or mail has a word.
    folder = Path(cluster.ca_file).parents[1]
    found = files_with(folder, title, mark)
    assert found[title] and not found[mark]


async def test_changes_and_approvals_are_the_same_in_both(
    cluster: DevCluster, ada: TestUser
) -> None:
    """A TypeScript agent asks a Python person, and a Python agent a TypeScript person."""
    asker = await cluster.agent("asker", ada.client, node=1)
    await Agent(asker).check()
    conversation = await ada.client.open_agent(asker.agent_id)
    node = await asyncio.create_subprocess_exec(
        str(NODE), SCRIPT, DIST, "asker", env=environment(cluster, asker), stdout=asyncio.subprocess.PIPE
    )
    try:
        await online(node, asker, ada)
        await answer_to(ada, lambda: conversation.send("1.4.2"))
        request = await asked(ada)
        assert (request.arguments, request.choices) == ({"version": "1.4.2"}, ["Now", "Later"])
        await request.answer("Later")
        assert node.stdout is not None
        printed = json.loads(await asyncio.wait_for(node.stdout.readline(), 20))
    finally:
        node.terminate()
        await node.wait()
    page = await anext(aiter(conversation.pages()))
    shown = timeline(page.messages, page.refs)
    assert [each.emoji for each in shown[0].reactions] == ["👀"]
    assert shown[1].content and (shown[1].content["text"], shown[1].edits) == ("done", 1)
    receipt = await (await ada.client.approval(request.id)).receipt()
    assert Receipt.from_json(printed).to_json() == receipt.to_json()
    assert (await request.verify(Receipt.from_json(printed))).state == "answered"

    agent = Agent(await cluster.agent("python", ada.client))
    results: list[ApprovalResult] = []

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        await ctx.react("👍")
        await ctx.edit(await ctx.reply("a draft"), "fertig")
        await ctx.approve("deploy", text="Deploy?", choices=["Now", "Later"])

    @agent.on_decision("deploy")
    async def decided(ctx: Context) -> None:
        results.append(ctx.decision)

    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        await conversation.send("please")
        await asked(ada)
        told = await _typescript(cluster, ada, "decider", conversation.id, "Now")
        await until(lambda: results)
    assert results[0].choice == "Now"
    assert told == [
        ["text", "please", 0, ["👍"]],
        ["text", "fertig", 1, []],
        ["approval", "Deploy?", 0, []],
    ]


async def _typescript_person(cluster: DevCluster, ada: TestUser, conversation_id: str) -> list[str]:
    """The texts that another device of Ada's reads, with the TypeScript client."""
    read: list[str] = await _typescript(cluster, ada, "person", conversation_id)
    return read


async def _typescript(cluster: DevCluster, ada: TestUser, *part: str) -> Any:
    """What another device of Ada's prints, with the TypeScript client."""
    env = {
        **os.environ,
        "BLINDPIPE_URL": cluster.nodes[1],
        "NODE_EXTRA_CA_CERTS": cluster.ca_file,
        "EMAIL": ada.email,
        "PASSWORD": ada.password,
        "PROTECTION": ada.protection_password,
    }
    node = await asyncio.create_subprocess_exec(
        str(NODE), SCRIPT, DIST, *part, env=env, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await node.communicate()
    return json.loads(output)
