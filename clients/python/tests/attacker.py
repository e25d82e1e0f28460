"""An active server: a real node behind a proxy that may change whatever passes.

Tests replace the functions of `Attacker`. Everything else is the real service's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web
from live import MANIFEST, cursor_number, running, until

from blindpipe import Agent, AgentOptions, Client, Hooks
from blindpipe.client import ClientEvent, OtherEvent
from blindpipe.e2ee import from_base64, to_base64
from blindpipe.e2ee.envelope import Header
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.socket import Frame

Json = dict[str, Any]
_PASSED_HEADERS = ("authorization", "content-type", "cookie", "set-cookie", "retry-after")


class Attacker:
    """A server that lies, by what a test sets here."""

    def __init__(self, cluster: DevCluster, node: int) -> None:
        self._node = cluster.nodes[node]
        self._ssl = cluster.ssl_context
        self._http = ClientSession()
        self._sockets: list[web.WebSocketResponse] = []
        self.url = ""
        self.is_away = False
        """Nothing gets through."""
        self.seen: list[Frame] = []
        """The frames of the node, as they came."""
        self.on_frame: Callable[[Frame], Iterable[Frame]] = lambda frame: (frame,)
        """The frames that the client gets instead of a frame of the node."""
        self.on_answer: Callable[[str, str, Any], Any] = lambda _method, _path, data: data
        """The data that the client gets instead of an answer's."""
        self.on_request: Callable[[str, str, Any], Any] = lambda _method, _path, body: body
        """The body that the node gets instead of a request's."""

        self.on_status: Callable[[str, str], int | None] = lambda _method, _path: None
        """The status of an answer that does not come from the node; None lets it come from there."""
        self.on_path: Callable[[str], str] = lambda path: path
        """The path and query that the node gets instead of a request's."""
        self.on_client_frame: Callable[[Frame], Frame] = lambda frame: frame
        """The frame that the node gets instead of a client's."""
        self.before: Callable[[str, str], Awaitable[object]] = _at_once
        """Awaited, with method and path, before the node gets a request."""
        self.on_object: Callable[[bytes], bytes] = lambda data: data
        """The bytes that the client gets instead of a file's."""

    async def push(self, frame: Frame) -> None:
        """Sends a frame of the attacker's own making to all that are connected."""
        await until(lambda: self._sockets)
        for socket in self._sockets:
            if not socket.closed:
                await socket.send_json(frame)

    @property
    def is_connected(self) -> bool:
        """Whether any client is."""
        return any(not socket.closed for socket in self._sockets)

    async def hang_up(self, code: int = 1012) -> None:
        """Ends the connections of all clients, which come back."""
        await until(lambda: self._sockets)
        for socket in list(self._sockets):
            await socket.close(code=code)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.is_away:
            return web.Response(status=503)
        if request.path == "/ws":
            return await self._relay(request)
        status = self.on_status(request.method, request.path)
        if status is not None:
            code = {429: "RATE_LIMITED", 409: "VERSION_MISMATCH"}.get(status, f"HTTP_{status}")
            params = {"retryable": status != 409, "retry_after_ms": 1}
            error = {"code": code, "message": "no", "params": params}
            return web.json_response({"error": error}, status=status)
        await self.before(request.method, request.path)
        path, body = self.on_path(request.path_qs), await request.read()
        if body and request.content_type == "application/json":
            body = json.dumps(self.on_request(request.method, path, json.loads(body))).encode()
        async with self._http.request(
            request.method,
            self._node + path,
            data=body,
            headers=_passed(request.headers.items()),
            ssl=self._ssl,
        ) as answer:
            told = await answer.read()
            if answer.status < 300 and answer.content_type == "application/json":
                said = json.loads(told)
                said["data"] = self.on_answer(request.method, path, said.get("data"))
                told = json.dumps(said).encode()
            elif request.path.startswith("/objects/"):
                told = self.on_object(told)
            headers = _passed(answer.headers.items())
            return web.Response(status=answer.status, body=told, headers=headers)

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        client = web.WebSocketResponse(autoping=False)
        await client.prepare(request)
        address = "ws" + self._node.removeprefix("http") + "/ws"
        async with self._http.ws_connect(address, ssl=self._ssl, autoping=False) as node:
            upward = asyncio.create_task(self._upward(client, node))
            async for message in node:
                if message.type is WSMsgType.PING:
                    await client.ping(message.data)
                elif message.type is WSMsgType.TEXT:
                    frame = json.loads(message.data)
                    self.seen.append(frame)
                    if frame["type"] == "caught_up":
                        self._sockets.append(client)
                    for told in list(self.on_frame(frame)):
                        await client.send_json(told)
            upward.cancel()
            if client in self._sockets:
                self._sockets.remove(client)
            await client.close(code=node.close_code or 1000)
        return client

    async def _upward(
        self, client: web.WebSocketResponse, node: ClientWebSocketResponse
    ) -> None:
        async for message in client:
            if message.type is WSMsgType.PONG:
                await node.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                await node.send_json(self.on_client_frame(json.loads(message.data)))
        await node.close()

    async def close(self) -> None:
        await self._http.close()


async def _at_once(_method: str, _path: str) -> None:
    """Holds nothing back."""


def _passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() in _PASSED_HEADERS]


@asynccontextmanager
async def attacking(cluster: DevCluster, node: int = 1) -> AsyncIterator[Attacker]:
    """An attacker in front of a node; clients are given its `url`."""
    attacker = Attacker(cluster, node)
    application = web.Application(client_max_size=8 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", attacker.handle)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    attacker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield attacker
    finally:
        await attacker.close()
        await runner.cleanup()


class Frozen:
    """An attacker whose answers about some paths wait, and the acknowledgements that passed it."""

    def __init__(self, attacker: Attacker) -> None:
        self.paths: tuple[str, ...] = ()
        self.is_read, self._may_go_on = asyncio.Event(), asyncio.Event()
        self._attacker = attacker
        self._acked = [0]
        attacker.before, attacker.on_client_frame = self._before, self._note

    async def _before(self, _method: str, path: str) -> None:
        if path.startswith(self.paths):
            self.is_read.set()
            await self._may_go_on.wait()

    def _note(self, frame: Frame) -> Frame:
        if frame["type"] == "ack":
            self._acked.append(cursor_number(frame["cursor"]))
        return frame

    @property
    def acked(self) -> int:
        """The number of the last event that was acknowledged."""
        return max(self._acked)

    def number_of(self, name: str) -> int:
        """The number of the newest event of this name."""
        return cursor_number(newest(self._attacker, name)["cursor"])

    def thaw(self) -> None:
        self._may_go_on.set()


class Victim:
    """The things that a client behind an attacker was told, and what it took for said."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.faults: list[str] = []
        self.notices: list[tuple[str, str]] = []
        self.places: list[tuple[str, str | None]] = []
        """The conversation of each notice."""

    def undecryptable(self, reason: str, event_id: str, conversation_id: str | None) -> None:
        self.faults.append(reason)

    def key_changed(
        self, type: str, principal_id: str, key_id: str | None, conversation_id: str | None
    ) -> None:
        self.notices.append((type, principal_id))
        self.places.append((type, conversation_id))

    @property
    def hooks(self) -> Hooks:
        return {"undecryptable": self.undecryptable, "key_changed": self.key_changed}


@asynccontextmanager
async def attacked_person(
    cluster: DevCluster, attacker: Attacker, name: str, victim: Victim, **changes: Any
) -> AsyncIterator[TestUser]:
    """A person whose only way to the service is the attacker."""
    behind: Json = {"url": attacker.url, "ssl_context": None, "hooks": victim.hooks}
    user = await cluster.user(name, **behind, **changes)
    try:
        yield user
    finally:
        await user.client.close()


@asynccontextmanager
async def attacked_agent(
    cluster: DevCluster,
    attacker: Attacker,
    owner: Client,
    victim: Victim,
    transport: str = "socket",
    **changes: Any,
) -> AsyncIterator[tuple[Agent, AgentOptions]]:
    """An agent behind the attacker, which answers what it takes for said."""
    made = await cluster.agent("victim", owner, manifest=MANIFEST)
    options = replace(made, url=attacker.url, ssl_context=None, hooks=victim.hooks, **changes)
    agent = echo(options, victim)
    async with running(agent, transport=transport):
        yield agent, options


def echo(options: AgentOptions, victim: Victim) -> Agent:
    agent = Agent(options)

    @agent.on("message")
    async def answer(ctx: Any) -> None:
        victim.heard.append(ctx.text)
        await ctx.reply(f"You said: {ctx.text}")

    return agent


def is_message(frame: Frame) -> bool:
    return frame.get("event") == "message.created"


def changed(frame: Frame, **fields: Any) -> Frame:
    """The frame of an event with other fields of its data."""
    return {**frame, "data": {**frame["data"], **fields}}


def again(frame: Frame, later: int = 1) -> Frame:
    """The event once more, as a new one."""
    epoch, _, seq = frame["cursor"].rpartition("-")
    number = int(seq) + later
    return {**frame, "event_id": new_ulid(), "cursor": f"{epoch}-{number}", "seq": number}


def flipped(payload: Json) -> Json:
    """The payload with a bit of its ciphertext changed."""
    data = bytearray(from_base64(payload["ciphertext"]))
    data[-1] ^= 1
    return {**payload, "ciphertext": to_base64(bytes(data))}


def header_of(payload: Json) -> Header:
    return Header.parse(from_base64(payload["ciphertext"]))


def newest(attacker: Attacker, name: str) -> Frame:
    """The newest event of this name that the node sent."""
    return next(frame for frame in reversed(attacker.seen) if frame.get("event") == name)


def has_event(name: str) -> Callable[[list[ClientEvent]], bool]:
    """Whether an event of this name came to a person."""

    def enough(events: list[ClientEvent]) -> bool:
        return any(isinstance(event, OtherEvent) and event.name == name for event in events)

    return enough
