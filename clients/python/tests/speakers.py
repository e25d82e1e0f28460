"""People and agents in each language, as the tests command them.

`Speaker` is one of the Python client, `ProcessSpeaker` one in a process: `speaker.mjs`, and the
example `speaker` of the Rust client. A speaker is an agent, which acts on certain words, and a
person, who does as `do` is told. The agent's and the person's words are plain JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from live import environment, online, running, until

from blindpipe import Agent, AgentOptions, Client, Context, Conversation, timeline
from blindpipe.agent import ApprovalResult, Receipt
from blindpipe.client import (
    CheckpointEvent,
    DeltaEvent,
    MessageEvent,
    NewFile,
    ReceivedMessage,
    StatusEvent,
    Thumbnail,
    TimelineItem,
    ToolRequestEvent,
)
from blindpipe.testing import DevCluster, TestUser

LARGE_TEXT: Final = "large " * 125_000
"""More than an envelope holds."""
MAX_LINE_BYTES: Final = 2**24
PATIENCE_SECONDS: Final = 30.0
"""Six pairs talk at once, beside other tests: a step takes seconds on a busy machine."""
Json = dict[str, Any]


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


FILE: Final[Json] = {
    "name": "map.png",
    "content_type": "image/png",
    "data": _encoded(bytes(range(256)) * 300),
    "caption": "the way ✓",
    "thumbnail": {
        "content_type": "image/png",
        "data": _encoded(b"a small picture"),
        "width": 3,
        "height": 2,
    },
}
"""The file that everybody sends."""


class Speaks(Protocol):
    """A person and an agent of one language."""

    options: AgentOptions
    owner: TestUser
    heard: defaultdict[str, list[Json]]
    """The agent's reports of each conversation."""

    async def do(self, command: str, **given: Any) -> Any:
        """The answer of the person's client to a command."""


def _new_file(file: Json) -> NewFile:
    shown = file["thumbnail"]
    thumbnail = Thumbnail(**{**shown, "data": b64decode(shown["data"])})
    data, caption = b64decode(file["data"]), file["caption"]
    return NewFile(file["name"], data, file["content_type"], caption=caption, thumbnail=thumbnail)


class Speaker:
    """A person and an agent of the Python client."""

    def __init__(self, options: AgentOptions, owner: TestUser) -> None:
        self.options, self.owner = options, owner
        self.heard: defaultdict[str, list[Json]] = defaultdict(list)
        self._received: dict[str, ReceivedMessage] = {}
        self._live: defaultdict[str, Json] = defaultdict(lambda: {"statuses": [], "text": ""})
        self._client: Client = owner.client
        self.agent = Agent(options)
        self.agent.on("message", self._on_message)
        for change in ("edit", "delete", "reaction"):
            self.agent.on(change, self._hear)
        for name in ("deploy", "colour"):
            self.agent.on_decision(name, self._decided)
        for tag in ("shade", "colour"):
            self.agent.on_answer(tag, self._answered)

    def _tell(self, ctx: Context, **what: Any) -> None:
        self.heard[ctx.conversation].append({"conversation": ctx.conversation, **what})

    async def _hear(self, ctx: Context) -> None:
        is_file = ctx.payload["type"] == "file"
        data = {"data": _encoded(await ctx.file().read())} if is_file else {}
        self._tell(ctx, heard={**ctx.payload, **data})

    async def _on_message(self, ctx: Context) -> None:
        await self._hear(ctx)
        if await self._act(ctx):
            self._tell(ctx, done=ctx.text)

    async def _act(self, ctx: Context) -> bool:
        """Acts, if a person has said one of these words."""
        match ctx.text:
            case "changes":
                await ctx.react("👀")
                await ctx.react("🎉")
                await ctx.react("🎉", remove=True)
                await ctx.edit(await ctx.reply("a draft"), "done")
                await ctx.delete(await ctx.reply("a mistake"))
            case "file":
                await ctx.send_file(_new_file(FILE))
            case "large":
                await ctx.reply(LARGE_TEXT)
            case "question":
                assert ctx.sender is not None
                asked = {"tag": "shade", "choices": ["Dark", "Light"], "state": {"n": 1}}
                text, named = "Which shade?", [ctx.sender.id]
                await ctx.reply({"type": "question", "text": text, "for": named, **asked})
            case "ask":
                choices, state = ["Red", "Blue"], {"n": 2}
                await ctx.ask("Which colour?", tag="colour", choices=choices, state=state)
            case "approve":
                approved = {"version": "1.4.2"}
                await ctx.approve("deploy", approved, text="Deploy?", state={"n": 3})
            case "tool":
                called = ("send_email", "notification:send", {"to": "bob"})
                got = await ctx.call(*called, prompt="Write to Bob?")
                self._tell(ctx, call={"status": got.status, "result": got.result})
            case "stream":
                await self._stream(ctx)
            case "status":
                ctx.status("searching")
                try:
                    await ctx.stopped.wait()
                finally:
                    self._tell(ctx, stopped=ctx.stopped.is_set())
            case _:
                return False
        return True

    async def _stream(self, ctx: Context) -> None:
        stream = ctx.stream()
        stream.write("One, ")
        stream.write("two")
        while not (steered := await ctx.steer()):
            await asyncio.sleep(0.02)
        self._tell(ctx, steered=[message.text for message in steered])
        stream.write(", three.")
        await stream.end()

    async def _decided(self, ctx: Context) -> None:
        named = ("outcome", "name", "arguments", "state", "choice", "text")
        result: ApprovalResult = ctx.decision
        decision = {name: getattr(result, name) for name in named}
        self._tell(ctx, decision=decision, receipt=result.receipt.to_json())

    async def _answered(self, ctx: Context) -> None:
        named = ("choice", "text", "state", "question")
        self._tell(ctx, answer={name: getattr(ctx.answer, name) for name in named})

    async def watch(self) -> None:
        """Reads the person's events: keeps messages, shows streams, and runs tools."""
        async with aclosing(self._client.events()) as events:
            async for event in events:
                match event:
                    case MessageEvent(received=received):
                        self._received[received.message["message_id"]] = received
                    case StatusEvent():
                        self._live[event.conversation_id]["statuses"].append(event.text)
                    case DeltaEvent():
                        self._live[event.conversation_id]["text"] += event.append
                    case CheckpointEvent():
                        self._live[event.conversation_id]["text"] = event.text
                    case ToolRequestEvent(request=request):
                        prompt = request.prompt
                        await request.approve()
                        await request.execute(
                            lambda tool, args: {"tool": tool, "args": args, "prompt": prompt}
                        )

    async def do(self, command: str, **given: Any) -> Any:
        """The client's answer to a command."""
        if command == "open":
            return (await self._client.open_agent(given["agent_id"])).id
        talk = self._client.conversation(given["conversation"])
        about: str = given.get("message", "")
        match command:
            case "send":
                return (await talk.send(given["content"]))["message_id"]
            case "send_file":
                return (await talk.send_file(_new_file(given["file"])))["message_id"]
            case "reply":
                return (await talk.reply(await self._find(about), given["content"]))["message_id"]
            case "edit":
                return (await talk.edit(await self._find(about), given["content"]))["message_id"]
            case "delete":
                return await talk.delete(await self._find(about))
            case "react":
                found, remove = await self._find(about), given.get("remove", False)
                return (await talk.react(found, given["emoji"], remove=remove))["message_id"]
            case "answer":
                return await talk.answer(await self._find(about), given["choice"])
            case "stop":
                return await talk.stop()
            case "live":
                return self._live[talk.id]
            case "show":
                page = await anext(aiter(talk.pages()))
                return [await _shown(talk, each) for each in timeline(page.messages, page.refs)]
            case _:
                return await self._about_approval(command, about, given)

    async def _find(self, id: str) -> ReceivedMessage:
        """A message that has come, or comes soon."""
        return await until(lambda: self._received.get(id), PATIENCE_SECONDS)

    async def _about_approval(self, command: str, id: str, given: Json) -> Any:
        request = await self._client.approval(id)
        if command == "receipt":
            return (await request.receipt()).to_json()
        if command == "verify":
            return (await request.verify(Receipt.from_json(given["receipt"]))).state
        assert command == "decide"
        seen = {"text": request.text, "choices": request.choices, "arguments": request.arguments}
        match given["how"]:
            case "approve":
                await request.approve()
            case "deny":
                await request.deny(given["words"])
            case _:
                await request.answer(given["words"])
        return seen


async def _shown(talk: Conversation, item: TimelineItem) -> Json:
    message, opened = item.received.message, item.received.opened
    is_file = item.content is not None and item.content["type"] == "file"
    reactions = [
        [each.emoji, [sender.kind.name.lower() for sender in each.senders]]
        for each in item.reactions
    ]
    return {
        "id": message["message_id"],
        "sender": message["sender"]["type"],
        "in_reply_to": message.get("in_reply_to"),
        "own_re": opened.re if opened else None,
        "state": item.state,
        "content": item.content,
        "data": _encoded(await talk.download_file(item.content or {})) if is_file else None,
        "edits": item.edits,
        "reactions": reactions,
    }


class ProcessSpeaker:
    """A person and an agent of another language, in a process."""

    def __init__(
        self, child: asyncio.subprocess.Process, options: AgentOptions, owner: TestUser
    ) -> None:
        self.options, self.owner = options, owner
        self.heard: defaultdict[str, list[Json]] = defaultdict(list)
        self._child = child
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def listen(self) -> None:
        """Reads what the process prints."""
        assert self._child.stdout is not None
        async for line in self._child.stdout:
            told: Json = json.loads(line)
            if "id" not in told:
                self.heard[told["conversation"]].append(told)
            elif "error" in told:
                self._waiting.pop(told["id"]).set_exception(AssertionError(told["error"]))
            else:
                self._waiting.pop(told["id"]).set_result(told["answer"])
        for waiting in self._waiting.values():
            waiting.set_exception(AssertionError("the process has ended"))

    async def do(self, command: str, **given: Any) -> Any:
        """The process's answer to a command."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"id": number, "do": command, **given}).encode() + b"\n")
        await self._child.stdin.drain()
        return await asyncio.wait_for(answer, PATIENCE_SECONDS)


@asynccontextmanager
async def speaker(options: AgentOptions, owner: TestUser) -> AsyncIterator[Speaker]:
    """A speaker of the Python client, for the time of a block."""
    speaks = Speaker(options, owner)
    async with running(speaks.agent):
        watching = asyncio.create_task(speaks.watch())
        try:
            yield speaks
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


@asynccontextmanager
async def process_speaker(
    command: Sequence[str | Path], cluster: DevCluster, options: AgentOptions, owner: TestUser
) -> AsyncIterator[ProcessSpeaker]:
    """A speaker in a process, for the time of a block."""
    env = environment(cluster, options) | {
        "BLINDPIPE_CA": cluster.ca_file,
        "EMAIL": owner.email,
        "PASSWORD": owner.password,
        "PROTECTION": owner.protection_password,
        "FILE": json.dumps(FILE),
    }
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *command, env=env, stdin=pipe, stdout=pipe, limit=MAX_LINE_BYTES
    )
    speaks = ProcessSpeaker(child, options, owner)
    listening = asyncio.create_task(speaks.listen())
    try:
        await online(child, options, owner)
        yield speaks
    finally:
        assert child.stdin is not None
        # The end of the input ends the process, whatever its agent does.
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), 5)
        finally:
            if child.returncode is None:
                child.kill()
            await listening


async def told(speaks: Speaks, talk: str, name: str) -> Json:
    """The next of this name that an agent tells of a conversation."""

    def found() -> Json | None:
        return next((each for each in speaks.heard[talk] if name in each), None)

    line = await until(found, PATIENCE_SECONDS)
    speaks.heard[talk].remove(line)
    return line
