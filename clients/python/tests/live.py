"""Helpers of the tests against a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from blindpipe import Agent, AgentOptions, Client, Conversation, ToolRequest
from blindpipe.client import (
    ApprovalRequest,
    CaughtUp,
    ClientEvent,
    MessageEvent,
    Sensitivity,
    Tool,
    ToolRequestEvent,
)
from blindpipe.e2ee.consent import Run
from blindpipe.testing import DevCluster, TestUser
from blindpipe.hooks import HookCaller
from blindpipe.transport.http import Call, Http

MANIFEST = {
    "tools": [{"name": "send_email", "scope": "notification:send"}],
    "permission_scopes": [{"scope": "notification:send", "sensitivity": "low"}],
}
TOOLS = {"send_email": Tool("notification:send", Sensitivity.LOW)}
"""The table of a device that can do what `MANIFEST` declares."""
ROOT = Path(__file__).parents[3]
_T = TypeVar("_T")


@asynccontextmanager
async def running(agent: Agent, **options: Any) -> AsyncIterator[Agent]:
    """Runs an agent for the time of a block; its end is a failure."""
    await agent.check()
    served = asyncio.create_task(agent.serve(**options))
    block = asyncio.current_task()
    assert block is not None
    served.add_done_callback(lambda _: None if stopped else block.cancel())
    stopped = False
    try:
        yield agent
    finally:
        stopped = True
        agent.stop()
        await served


def from_agent(event: ClientEvent) -> bool:
    return isinstance(event, MessageEvent) and event.received.message["sender"]["type"] == "agent"


async def collect(
    user: TestUser,
    act: Callable[[], Awaitable[object]],
    enough: Callable[[list[ClientEvent]], Any],
) -> list[ClientEvent]:
    """A person's events after `act`, until they are enough; `act` runs after earlier ones."""
    events: list[ClientEvent] = []
    acted = False
    async with aclosing(user.client.events()) as coming:
        async for event in coming:
            if acted:
                events.append(event)
                found = enough(events)
                if (await found) if isinstance(found, Awaitable) else found:
                    return events
            elif isinstance(event, CaughtUp):
                acted = True
                await act()
    raise AssertionError("the events have ended")


async def decide_until_answered(
    user: TestUser,
    act: Callable[[], Awaitable[object]],
    decide: Callable[[ToolRequest], Awaitable[object]],
) -> list[ClientEvent]:
    """Acts, and lets a device decide about tool requests until an agent answers."""

    async def enough(events: list[ClientEvent]) -> bool:
        last = events[-1]
        if isinstance(last, ToolRequestEvent):
            await decide(last.request)
        return any(map(from_agent, events))

    return await collect(user, act, enough)


def executing(run: Run) -> Callable[[ToolRequest], Awaitable[None]]:
    """A person who approves each request that comes."""

    async def execute(request: ToolRequest) -> None:
        await request.approve()
        await request.execute(run)

    return execute


async def answer_to(user: TestUser, act: Callable[[], Awaitable[object]]) -> MessageEvent:
    """The first message of an agent after `act`."""
    events = await collect(user, act, lambda all: any(map(from_agent, all)))
    return next(e for e in events if isinstance(e, MessageEvent) and from_agent(e))


async def asked(user: TestUser) -> ApprovalRequest:
    """The newest approval that waits for this person."""
    async with asyncio.timeout(10):
        while True:
            async for request in user.client.approvals():
                return request
            await asyncio.sleep(0.05)


async def texts(conversation: Conversation) -> list[str]:
    """All texts, oldest first; the reason where something does not open."""
    found: list[str] = []
    async for message in conversation.history(limit=100):
        found.insert(0, message.fault.reason if message.fault else str(message.text))
    return found


async def sign_in(
    cluster: DevCluster, user: TestUser, device_id: str, *, node: int = 0, **changes: Any
) -> Client:
    """Signs in as a person on another device."""
    return await Client.login(
        cluster.options(node, device_id=device_id, **changes),
        email=user.email,
        password=user.password,
        turnstile_token="dev-pass",
    )


async def until(look: Callable[[], _T | None], seconds: float = 10) -> _T:
    async with asyncio.timeout(seconds):
        while True:
            found = look()
            if found:
                return found
            await asyncio.sleep(0.01)


def environment(cluster: DevCluster, options: AgentOptions) -> dict[str, str]:
    """The environment of an agent in a process of its own."""
    return {
        **os.environ,
        "BLINDPIPE_URL": options.url,
        "BLINDPIPE_AGENT_ID": options.agent_id,
        "BLINDPIPE_TOKEN": options.token,
        "BLINDPIPE_KEY": str(options.key),
        "PYTHONPATH": str(ROOT / "clients/python/src"),
        "SSL_CERT_FILE": cluster.ca_file,
        "NODE_EXTRA_CA_CERTS": cluster.ca_file,
    }


@asynccontextmanager
async def process(
    command: Sequence[str | Path], env: dict[str, str], options: AgentOptions, owner: TestUser
) -> AsyncIterator[None]:
    """Runs an agent as its own process, for the time of a block; SIGTERM must end it with 0."""
    child = await asyncio.create_subprocess_exec(*command, env=env)
    try:
        await online(child, options, owner)
        yield
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0, "SIGTERM ends an agent with 0"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def online(
    child: asyncio.subprocess.Process, options: AgentOptions, owner: TestUser
) -> None:
    call = Call("GET", f"/agents/{options.agent_id}")
    async with asyncio.timeout(20):
        while not (await owner.client.account.http.data(call))["connections"]:
            assert child.returncode is None, "the agent has ended"
            await asyncio.sleep(0.05)


def example(name: str) -> list[str | Path]:
    return [sys.executable, ROOT / f"examples/python/{name}.py"]


def agent_http(options: AgentOptions, url: str | None = None) -> Http:
    """Calls in an agent's name; at `url`, those of an attacker without TLS."""

    async def token() -> str:
        return options.token

    hooks = HookCaller(options.hooks, options.logger)
    context = options.ssl_context if url is None else None
    return Http(url or options.url, hooks, token, ssl_context=context)


def cursor_number(cursor: str) -> int:
    """The number of an event in its inbox."""
    return int(cursor.rpartition("-")[2])


class Program:
    """A process, and the lines that it has written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.has_written = asyncio.Event()

    async def listen(self, written: asyncio.StreamReader) -> None:
        """Reads until its end."""
        async for line in written:
            self.lines.append(line.decode().rstrip("\n"))
            self.has_written.set()


@asynccontextmanager
async def program(name: str, env: dict[str, str], *arguments: str | Path) -> AsyncIterator[Program]:
    """Runs a program of this folder for the time of a block, and kills it."""
    command = [sys.executable, Path(__file__).with_name(name), *arguments]
    source = {"PYTHONPATH": str(ROOT / "clients/python/src")}
    child = await asyncio.create_subprocess_exec(
        *command, env=env | source, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    run = Program()
    listening = asyncio.create_task(run.listen(child.stdout))
    try:
        yield run
        assert child.returncode is None, "the program has ended by itself"
    finally:
        if child.returncode is None:
            child.kill()
        await asyncio.gather(child.wait(), listening)


async def grant(user: TestUser, conversation: Conversation, options: AgentOptions) -> None:
    """The agent asks for the scope of `MANIFEST`, and the person approves."""
    http = agent_http(options)
    scopes = ["notification:send"]
    body: dict[str, Any] = {"conversation_id": conversation.id, "scopes": scopes}
    if (await conversation.info())["type"] == "group":
        body["user_id"] = user.client.user_id
    path = f"/agents/{options.agent_id}/grants/request"
    asked = await http.data(Call("POST", path, body=body))
    await http.close()
    assert asked["grant_id"] in [each["grant_id"] async for each in user.client.grants()]
    decided = await user.client.decide_grant(asked["grant_id"], "approve")
    assert decided["status"] == "approved"
