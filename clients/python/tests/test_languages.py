"""A group with a Python agent, a TypeScript agent, and people in both languages, on two nodes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blindpipe import Agent, Context, timeline
from blindpipe.agent import ApprovalResult, Receipt
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from live import (
    MANIFEST,
    ROOT,
    TOOLS,
    answer_to,
    asked,
    environment,
    grant,
    online,
    running,
    texts,
    until,
)
from speakers import (
    FILE,
    LARGE_TEXT,
    PATIENCE_SECONDS,
    Json,
    Speaks,
    process_speaker,
    speaker,
    told,
)
from test_marks import files_with

DIST = ROOT / "clients/typescript/dist"
SCRIPT = ROOT / "clients/python/tests/typescript.mjs"
SPEAKER = ROOT / "clients/python/tests/speaker.mjs"
RUST_SPEAKER = ROOT / "target/debug/examples/speaker"
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


@pytest.mark.limit(120)
@pytest.mark.skipif(not RUST_SPEAKER.exists(), reason="the example `speaker` is not built")
async def test_every_pair_of_languages_shows_all_kinds_alike(cluster: DevCluster) -> None:
    """A person of each language talks with an agent of each other language: docs/content.md."""
    names = ("python", "typescript", "rust")
    owners = await asyncio.gather(*(cluster.user(name, tools=TOOLS) for name in names))
    python, typescript, rust = [
        (await cluster.agent(name, owner.client, node=n % 2, manifest=MANIFEST), owner)
        for n, (name, owner) in enumerate(zip(names, owners))
    ]
    async with AsyncExitStack() as stack:
        speakers: tuple[Speaks, ...] = await asyncio.gather(
            stack.enter_async_context(speaker(*python)),
            stack.enter_async_context(
                process_speaker([str(NODE), SPEAKER, DIST], cluster, *typescript)
            ),
            stack.enter_async_context(process_speaker([RUST_SPEAKER], cluster, *rust)),
        )
        async with asyncio.TaskGroup() as group:
            for agent, person in itertools.permutations(speakers, 2):
                group.create_task(_play(agent, person))
    for owner in owners:
        await owner.client.close()


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


@dataclass(frozen=True, slots=True)
class _Scene:
    """An agent and a person of two languages, and their conversation."""

    agent: Speaks
    person: Speaks
    id: str

    async def do(self, command: str, **given: Any) -> Any:
        return await self.person.do(command, conversation=self.id, **given)

    async def told(self, name: str) -> Any:
        return (await told(self.agent, self.id, name))[name]

    async def heard(self) -> Json:
        return _bare(await self.told("heard"))

    async def say(self, *words: str) -> None:
        """The agent acts on each word."""
        for word in words:
            await self.do("send", content=_text(word))
            assert await self.heard() == _text(word)
            assert await self.told("done") == word

    async def live(self, name: str, wanted: object) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await self.do("live"))[name] != wanted:
                await asyncio.sleep(0.02)

    async def shown(self, *kinds: str) -> list[str]:
        """The ids of the messages of these kinds that the person is shown."""
        shown: list[Json] = await self.do("show")
        return [each["id"] for each in shown if (each["content"] or {}).get("type") in kinds]


async def _play(agent: Speaks, person: Speaks) -> None:
    talk: str = await person.do("open", agent_id=agent.options.agent_id)
    scene = _Scene(agent, person, talk)
    await _words(scene)
    await _questions(scene)
    await _tools_and_streams(scene)
    await _files(scene)
    assert agent.heard[talk] == []
    shown: list[Json] = await scene.do("show")
    by_id = {each["id"]: each for each in shown}
    for each in shown:
        if each["in_reply_to"] and each["content"] and not each["edits"]:
            # An answer names the envelope of its message.
            assert each["content"]["re"] == by_id[each["in_reply_to"]]["own_re"]
    assert [_seen(each) for each in shown] == _ALL


async def _words(scene: _Scene) -> None:
    """Texts, edits, deletions, reactions and replies, of both sides."""
    words = {"type": "text", "text": "**plain** ✓", "format": "markdown"}
    first = await scene.do("send", content=words)
    assert await scene.heard() == words
    await scene.do("edit", message=first, content=_text("other words"))
    edit = await scene.heard()
    assert (edit["target"]["message_id"], edit["content"]) == (first, _text("other words"))
    mistake = await scene.do("send", content=_text("my mistake"))
    assert await scene.heard() == _text("my mistake")
    await scene.do("delete", message=mistake)
    deletion = await scene.heard()
    assert (deletion["type"], deletion["target"]["message_id"]) == ("delete", mistake)
    await scene.say("changes")
    done = (await scene.shown("text"))[-1]
    for emoji, remove in (("❤️", False), ("🎉", False), ("🎉", True)):
        await scene.do("react", message=done, emoji=emoji, remove=remove)
        reaction = await scene.heard()
        assert (reaction["emoji"], reaction.get("remove", False)) == (emoji, remove)
        assert reaction["target"]["message_id"] == done
    await scene.do("reply", message=done, content=_text("a reply"))
    assert await scene.heard() == _text("a reply")


async def _questions(scene: _Scene) -> None:
    """A question and its answer; approvals, their decisions and receipts."""
    await scene.say("question", "ask", "approve", "approve")
    question, asked, first, second = await scene.shown("question", "approval")
    await scene.do("answer", message=question, choice="Light")
    answer = {"choice": "Light", "text": None, "state": {"n": 1}, "question": "Which shade?"}
    assert await scene.told("answer") == answer

    about: Json = {"text": "Deploy?", "choices": [], "arguments": {"version": "1.4.2"}}
    deploy: Json = {"name": "deploy", "arguments": about["arguments"], "state": {"n": 3}}
    colours: Json = {"text": "Which colour?", "choices": ["Red", "Blue"], "arguments": {}}
    colour: Json = {"name": "colour", "arguments": {}, "state": {"n": 2}}
    for id, how, words, seen, named, result in (
        (asked, "answer", "Blue", colours, colour, ("answered", "Blue", None)),
        (first, "approve", None, about, deploy, ("approved", None, None)),
        (second, "deny", "not today", about, deploy, ("denied", None, "not today")),
    ):
        assert await scene.do("decide", message=id, how=how, words=words) == seen
        line = await told(scene.agent, scene.id, "decision")
        outcome, choice, text = result
        assert line["decision"] == {**named, "outcome": outcome, "choice": choice, "text": text}
        assert line["receipt"]["approval"]["approval_id"] == id
        kept = Receipt.from_json(await scene.do("receipt", message=id))
        assert kept.to_json() == Receipt.from_json(line["receipt"]).to_json()
        assert await scene.do("verify", message=id, receipt=line["receipt"]) == outcome
    answer = {"choice": "Blue", "text": None, "state": {"n": 2}, "question": "Which colour?"}
    assert await scene.told("answer") == answer


async def _tools_and_streams(scene: _Scene) -> None:
    """A tool on the person's device, a message in pieces, a status, and a stop."""
    owner = scene.person.owner
    await grant(owner, owner.client.conversation(scene.id), scene.agent.options)
    await scene.say("tool")
    result = {"tool": "send_email", "args": {"to": "bob"}, "prompt": "Write to Bob?"}
    assert await scene.told("call") == {"status": "executed", "result": result}

    await scene.do("send", content=_text("stream"))
    await scene.live("text", "One, two")
    await scene.do("send", content=_text("go on"))
    assert await scene.told("steered") == ["go on"]
    assert (await scene.told("done"), await scene.heard()) == ("stream", _text("stream"))

    await scene.do("send", content=_text("status"))
    await scene.live("statuses", ["searching"])
    assert await scene.do("stop") == 1
    assert await scene.told("stopped") is True
    assert await scene.heard() == _text("status")


async def _files(scene: _Scene) -> None:
    """Files with captions and pictures, one of them edited, and a text that no envelope holds."""
    sent = await scene.do("send_file", file=FILE)
    heard: Json = await scene.told("heard")
    assert _bare(heard) == _FILE
    content = {name: value for name, value in heard.items() if name != "data"}
    await scene.do("edit", message=sent, content={**content, "caption": "another way"})
    edit = await scene.heard()
    assert edit["target"]["message_id"] == sent
    assert _bare(edit["content"] | {"data": FILE["data"]}) == {**_FILE, "caption": "another way"}
    await scene.say("file", "large")


_RANDOM = ("re", "fallback", "nonce", "object_key", "file_id", "sha256", "key", "for", "of")
"""The fields that differ from one send to the next, or from one language to another."""
_FILE: Json = {"type": "file", "size": 76_800, **FILE}


def _bare(content: Json) -> Json:
    return {name: value for name, value in content.items() if name not in _RANDOM}


def _seen(item: Json) -> Json:
    """An item as `_ALL` has it."""
    content = _bare(item["content"] or {}) | ({"data": item["data"]} if item["data"] else {})
    return _item(item["sender"], content, item["edits"], *item["reactions"], state=item["state"])


def _item(
    sender: str, content: Json | str, edits: int = 0, *reactions: list[Any], state: str = "shown"
) -> Json:
    content = _text(content) if isinstance(content, str) else content
    shown = {"state": state, "edits": edits, "reactions": list(reactions)}
    return {"sender": sender, "content": content, **shown}


def _approval(kind: str, name: str, text: str, n: int, *choices: str, **arguments: str) -> Json:
    asked = {"type": "approval", "kind": kind, "name": name, "text": text, "state": {"n": n}}
    count = {"quorum": 1, "deny_quorum": 1}
    return asked | count | {"arguments": arguments, "choices": list(choices)}


_DEPLOY = _approval("approve", "deploy", "Deploy?", 3, version="1.4.2")
_SHADES = {"tag": "shade", "choices": ["Dark", "Light"], "state": {"n": 1}}
_ALL = [
    _item("user", "other words", 1),
    _item("user", {}, state="deleted"),
    _item("user", "changes", 0, ["👀", ["agent"]]),
    _item("agent", "done", 1, ["❤️", ["user"]]),
    _item("agent", {}, state="deleted"),
    _item("user", "a reply"),
    _item("user", "question"),
    _item("agent", {"type": "question", "text": "Which shade?", **_SHADES}),
    _item("user", "ask"),
    _item("agent", _approval("ask", "colour", "Which colour?", 2, "Red", "Blue")),
    _item("user", "approve"),
    _item("agent", _DEPLOY),
    _item("user", "approve"),
    _item("agent", _DEPLOY),
    _item("user", {"type": "answer", "choice": "Light"}),
    _item("user", {"type": "decision", "decision": "answered", "choice": "Blue"}),
    _item("user", {"type": "decision", "decision": "denied", "text": "not today"}),
    _item("user", "tool"),
    _item("user", "stream"),
    _item("user", "go on"),
    _item("agent", "One, two, three."),
    _item("user", "status"),
    _item("user", {**_FILE, "caption": "another way"}, 1),
    _item("user", "file"),
    _item("agent", _FILE),
    _item("user", "large"),
    _item("agent", LARGE_TEXT),
]
"""The play as a person is shown it, in every language."""
