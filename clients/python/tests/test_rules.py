"""The rules of delivery that the other tests do not show."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from blindpipe import Agent, AgentOptions, Closed, Context, IdConflict
from blindpipe.api_errors import AgentKeysMismatch, AgentTokenInvalid, RelationRevoked
from blindpipe.client import DeltaEvent
from blindpipe.e2ee import AgentKey
from blindpipe.errors import ApiError, ConnectionLost
from blindpipe.hooks import HookCaller
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.http import Call, Http
from blindpipe.transport.socket import DEAD_CODE, Frame, Socket, SocketOptions
from live import agent_http, answer_to, collect, from_agent, running, texts, until
from mortal import MortalLoop


async def test_of_several_keys_the_one_that_fits_signs(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("rotated", ada.client)
    agent = Agent(options)
    await agent.check()
    await agent.close()
    newer = AgentKey.random().to_text()
    both = Agent(replace(options, key=f"{newer},{options.key}"))
    both.on("message", lambda ctx: ctx.reply("it fits"))
    async with running(both):
        conversation = await ada.client.open_agent(options.agent_id)
        assert (await answer_to(ada, lambda: conversation.send("?"))).text == "it fits"
    # Neither of two strange keys replaces it in silence.
    strange = f"{newer},{AgentKey.random().to_text()}"
    with pytest.raises(AgentKeysMismatch):
        await Agent(replace(options, key=strange)).serve()


async def test_a_dead_letter_stops_the_agent_if_its_developer_says_so(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("careful", ada.client)
    agent = Agent(replace(options, retry_delays=(), on_dead_letter="stop"))

    @agent.on("message")
    async def fail(ctx: Context) -> None:
        raise LookupError

    await agent.check()
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("bad")
    with pytest.raises(LookupError):
        await agent.serve()
    # It was not acknowledged, so it comes again.
    again = Agent(options)
    heard: list[str] = []
    again.on("message", lambda ctx: heard.append(ctx.text))
    async with running(again):
        await until(lambda: heard)
    assert heard == ["bad"]


async def test_an_id_of_another_message_is_no_success(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("doubtful", ada.client)
    http, errors = agent_http(options), list[BaseException]()
    agent = Agent(options)

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        # Somebody with the agent's token, but without its key, was faster.
        path = f"/agents/{agent.agent_id}/conversations/{ctx.conversation}/messages"
        clear = {"type": "text", "text": "forged"}
        body = {"payload": clear, "client_message_id": ctx._reply_id("mine")}
        await http.data(Call("POST", path, body=body))
        try:
            await ctx.reply("mine", key="mine")
        except IdConflict as error:
            errors.append(error)

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        await conversation.send("?")
        await until(lambda: errors)
    await http.close()
    assert await texts(conversation) == ["?", "clear"]


async def test_an_earlier_answer_is_found_behind_however_many_messages(
    cluster: DevCluster, ada: TestUser, bob: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.agent.outbox.HISTORY_PAGE_MESSAGES", 1)
    monkeypatch.setattr("blindpipe.agent.outbox.MAX_HISTORY_PAGES", 2)
    options = await cluster.agent("popular", ada.client)
    agent, answered = Agent(replace(options, retry_delays=(0.001,))), dict[str, list[bool]]()
    said = asyncio.Event()

    async def answer(ctx: Context) -> None:
        name = ctx.event["event"]
        answered.setdefault(name, []).append(await ctx.answered())
        await said.wait()
        await ctx.reply(name)
        if len(answered[name]) == 1:
            raise LookupError

    @agent.on("message")
    async def first(ctx: Context) -> None:
        if ctx.text == "?":
            await answer(ctx)

    @agent.on("member.added")
    async def joined(ctx: Context) -> None:
        await answer(ctx)

    async with running(agent):
        await ada.client.open_agent(options.agent_id)
        group = await ada.client.open_group([bob.client.user_id])
        await group.add_agent(options.agent_id, "all")
        await group.send("?")
        await until(lambda: answered)
        for number in range(5):
            await group.send(str(number))
        said.set()
        await until(lambda: len(answered.get("message.created", ())) == 2)
    assert all(each == [False, True] for each in answered.values())


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_a_redelivered_event_says_so_and_the_history_knows_the_answer(
    cluster: DevCluster, ada: TestUser, transport: str
) -> None:
    options = await cluster.agent("costly", ada.client)
    world, dying = MortalLoop(), Agent(options)
    seen: list[tuple[bool, bool]] = []

    @dying.on("message")
    async def first(ctx: Context) -> None:
        seen.append((ctx.replayed, await ctx.answered()))
        await ctx.reply("expensive")
        world.die()
        await asyncio.sleep(0)

    checked = Agent(options)
    await checked.check()
    await checked.close()
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("?")
    assert await asyncio.to_thread(world.run, dying.serve, 20)
    again = Agent(options)

    @again.on("message")
    async def second(ctx: Context) -> None:
        seen.append((ctx.replayed, await ctx.answered()))

    async with running(again, transport=transport):
        await until(lambda: len(seen) == 2)
        await conversation.send("and now?")
        await until(lambda: len(seen) == 3)
    assert seen == [(True, False), (True, True), (False, False)]


async def test_without_a_socket_a_stream_sends_its_end_only(
    cluster: DevCluster, ada: TestUser
) -> None:
    agent = Agent(await cluster.agent("quiet", ada.client))

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        ctx.typing()
        async with ctx.stream() as out:
            for word in ("one ", "two ", "three"):
                out.write(word)
                await asyncio.sleep(0.1)

    async with running(agent, transport="poll"):
        conversation = await ada.client.open_agent(agent.agent_id)
        events = await collect(
            ada, lambda: conversation.send("?"), lambda all: any(map(from_agent, all))
        )
    assert not [event for event in events if isinstance(event, DeltaEvent)]
    assert await texts(conversation) == ["?", "one two three"]


@asynccontextmanager
async def _flaky(options: AgentOptions, faults: list[Any]) -> AsyncIterator[str]:
    """A proxy before the node: each request takes the next of `faults`.

    A number is answered instead of passing the request on; `cut` passes it on and loses the answer;
    None passes both.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        fault = faults.pop(0) if faults else None
        if isinstance(fault, int):
            return web.Response(status=fault)
        headers = {"authorization": f"Bearer {options.token}", "content-type": "application/json"}
        body = await request.read()
        address = options.url + request.path_qs
        context = options.ssl_context or True
        async with session.request(
            request.method, address, data=body, headers=headers, ssl=context
        ) as answer:
            told = await answer.read()
        if fault == "cut":
            assert request.transport
            request.transport.abort()
        return web.Response(status=answer.status, body=told)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with ClientSession() as session:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_only_what_is_safe_to_repeat_is_repeated(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.transport.http.FIRST_RETRY_MS", 1)
    retries: list[int] = []

    def retry(attempt: int, wait_ms: int, route: str) -> None:
        retries.append(attempt)

    made = await cluster.agent("patient", ada.client)
    options = replace(made, hooks={"retry": retry})
    conversation = await ada.client.open_agent(options.agent_id)
    faults: list[Any] = []
    path = f"/agents/{options.agent_id}/conversations/{conversation.id}/messages"
    async with _flaky(options, faults) as url:
        http = agent_http(options, url)
        # A read, and a send with an id, survive four faults; the send is stored once.
        faults[:] = [502, 503, 504, 502]
        assert (await http.data(Call("GET", f"/agents/{options.agent_id}")))["agent_id"]
        assert retries == [1, 2, 3, 4]
        id = f"{random.getrandbits(40):010d}".zfill(26)
        body = {"payload": {"type": "text", "text": "once"}, "client_message_id": id}
        faults[:] = ["cut", "cut", 503]
        sent = await http.data(Call("POST", path, body=body, repeatable=True))
        assert sent["duplicate"]
        faults[:] = [502] * 5
        with pytest.raises(ApiError) as five:
            await http.data(Call("GET", f"/agents/{options.agent_id}"))
        assert (five.value.status, five.value.code) == (502, "HTTP_502")
        # Nothing else is repeated.
        faults[:] = ["cut"]
        with pytest.raises(ConnectionLost):
            await http.data(Call("POST", path, body={"payload": {"type": "text", "text": "no id"}}))
        assert not faults
        await http.close()


async def test_a_token_that_is_replaced_stops_the_agent(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("replaced", ada.client)
    codes: list[int] = []

    def disconnected(code: int, holders: object = None) -> None:
        codes.append(code)

    ready = asyncio.Event()
    connected = asyncio.Event()
    hooks: Any = {
        "connected": connected.set,
        "caught_up": ready.set,
        "disconnected": disconnected,
    }
    agent = Agent(replace(options, hooks=hooks))
    served = asyncio.create_task(agent.serve())
    await ready.wait()
    assert connected.is_set()
    path = f"/agents/{options.agent_id}/token/regenerate"
    await ada.client.account.http.data(Call("POST", path, body={"emergency": True}))
    with pytest.raises(Closed) as closed:
        await served
    assert (closed.value.close_code, codes) == (4403, [4403])
    with pytest.raises(AgentTokenInvalid):
        await Agent(options).serve()


async def test_who_holds_the_places_is_named(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("crowded", ada.client)
    refused: list[list[str]] = []

    def disconnected(code: int, holders: list[str] | None = None) -> None:
        if code == 4409 and holders is not None:
            refused.append(holders)

    agents = [Agent(replace(options, hooks={"disconnected": disconnected})) for _ in range(8)]
    served = [asyncio.create_task(agent.serve(standby=True)) for agent in agents]
    await until(lambda: refused)
    for agent in agents:
        agent.stop()
    await asyncio.gather(*served)
    assert len(refused[0]) >= 1


async def test_a_stop_lets_handlers_end_and_acknowledges(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("orderly", ada.client)
    begun = asyncio.Event()
    agent = Agent(options)

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        await ctx.reply("ended")

    conversation = await ada.client.open_agent(options.agent_id)
    async with running(agent):
        await conversation.send("?")
        await begun.wait()
    assert await texts(conversation) == ["?", "ended"]
    path = f"/agents/{options.agent_id}/messages/poll"
    http = agent_http(options)
    # A node notes acks, and writes them a moment later.
    async with asyncio.timeout(5):
        while await _has_messages(http, path):
            await asyncio.sleep(0.02)
    await http.close()


async def _has_messages(http: Http, path: str) -> bool:
    waiting = await http.data(Call("GET", path, {"wait": 0}))
    return "message.created" in [event["event"] for event in waiting]


async def test_a_refusal_is_of_the_class_of_its_code(cluster: DevCluster, ada: TestUser) -> None:
    options = await cluster.agent("dismissed", ada.client)
    refused: list[RelationRevoked] = []
    agent, begun, revoked = Agent(options), asyncio.Event(), asyncio.Event()

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        begun.set()
        await revoked.wait()
        try:
            await ctx.reply("too late")
        except RelationRevoked as error:
            refused.append(error)

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        await conversation.send("?")
        await begun.wait()
        http = ada.client.account.http
        relations = await http.data(Call("GET", "/relations"))
        found = [r for r in relations if r["agent_id"] == options.agent_id]
        await http.data(Call("DELETE", f"/relations/{found[0]['relation_id']}"))
        revoked.set()
        await until(lambda: refused)
    assert refused[0].status == 403 and refused[0].request_id


async def test_a_connection_that_says_nothing_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blindpipe.transport.socket.SILENCE_GRACE_MS", 100)
    monkeypatch.setattr("blindpipe.transport.socket.FIRST_RECONNECT_WAIT_MS", 1)
    pings, codes = 0, list[int]()

    async def silent(request: web.Request) -> web.StreamResponse:
        """After `ready` and three signs of life it says nothing more."""
        nonlocal pings
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.receive()
        await connection.send_json({"type": "ready", "heartbeat_interval_ms": 100})
        for _ in range(3):
            await asyncio.sleep(0.1)
            await connection.ping()
            pings += 1
        await connection.receive()
        return connection

    def disconnected(code: int, holders: object = None) -> None:
        codes.append(code)

    async def token() -> None:
        return None

    async def auth() -> Frame:
        return {"type": "auth"}

    async def renew() -> bool:
        return False

    application = web.Application()
    application.router.add_get("/ws", silent)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hooks = HookCaller({"disconnected": disconnected}, logging.getLogger("blindpipe"))
    http = Http(f"http://127.0.0.1:{runner.addresses[0][1]}", hooks, token)
    socket = Socket(SocketOptions(http, hooks, auth, renew, lambda *_: None, lambda _: None))
    run = asyncio.create_task(socket.run())
    await until(lambda: len(codes) == 2)
    socket.close()
    await run
    await http.close()
    await runner.cleanup()
    assert codes[:2] == [DEAD_CODE, DEAD_CODE] and pings >= 6
