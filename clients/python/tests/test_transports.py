"""An agent by socket, poll and webhook; clear text; standby; limits; logs."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from live import answer_to, collect, from_agent, running, texts, until

from blindpipe import Agent, AgentOptions, Context, Conversation, Hooks
from blindpipe.agent.webhook import AsgiApp
from blindpipe.api_errors import AgentKeysMismatch
from blindpipe.client import ClientEvent, MessageEvent
from blindpipe.e2ee import AgentKey
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.http import Call

SECRET = "whsec_" + base64.b64encode(bytes([7]) * 32).decode()


def _echo(options: AgentOptions) -> Agent:
    agent = Agent(options)

    @agent.on("message")
    async def echo(ctx: Context) -> None:
        await ctx.reply(f"You said: {ctx.text}")

    return agent


async def _is_answered(ada: TestUser, conversation: Conversation, text: str) -> None:
    answer = await answer_to(ada, lambda: conversation.send(text))
    assert answer.text == f"You said: {text}"


async def test_by_poll_and_the_acknowledgement_is_the_cursor(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("poller", ada.client)
    async with running(_echo(options), transport="poll"):
        conversation = await ada.client.open_agent(options.agent_id)
        await _is_answered(ada, conversation, "one")
        await _is_answered(ada, conversation, "two")
    # Another run begins after what the first one has handled.
    replayed: list[str] = []
    again = Agent(options)
    again.on("message", lambda ctx: replayed.append(ctx.text))
    async with running(again):
        await conversation.send("three")
        await until(lambda: replayed)
    assert replayed == ["three"]


@asynccontextmanager
async def _served(app: AsgiApp) -> AsyncIterator[str]:
    """An ASGI application behind a real HTTP server, as any framework would have it."""

    async def handle(request: web.Request) -> web.Response:
        body, sent = await request.read(), list[Any]()
        headers = [
            (name.lower().encode(), value.encode()) for name, value in request.headers.items()
        ]
        scope = {"type": "http", "method": request.method, "headers": headers}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        start, end = sent
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        return web.Response(status=start["status"], headers=told, body=end["body"])

    server = web.Application()
    server.router.add_route("*", "/", handle)
    runner = web.AppRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def _as_agent(options: AgentOptions, method: str, path: str, body: object) -> Any:
    address = f"{options.url}/agents/{options.agent_id}{path}"
    headers = {"authorization": f"Bearer {options.token}"}
    async with ClientSession(headers=headers) as session:
        answer = await session.request(method, address, json=body, ssl=options.ssl_context or True)
        return (await answer.json())["data"]


async def test_by_webhook_from_the_real_dispatcher_and_a_failed_handler_runs_again(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("hooked", ada.client)
    agent, failures, replayed = Agent(options), [ValueError("once")], list[bool]()

    @agent.on("message")
    async def echo(ctx: Context) -> None:
        await ctx.reply(f"You said: {ctx.text}")
        replayed.append(ctx.replayed)
        if failures:
            raise failures.pop()

    # While a secret is rotated, the old one serves too.
    async with _served(
        agent.asgi(["whsec_" + base64.b64encode(bytes(32)).decode(), SECRET])
    ) as url:
        webhook = await _as_agent(options, "PUT", "/webhook", {"url": url, "secret": SECRET})
        assert webhook["status"] == "active", webhook["last_error"]
        await agent.check()
        conversation = await ada.client.open_agent(options.agent_id)
        await _is_answered(ada, conversation, "first")
        await _is_answered(ada, conversation, "second")
        found = await texts(conversation)
        assert found == ["first", "You said: first", "second", "You said: second"]
        assert not failures and replayed == [False, True, False]
        async with ClientSession() as session, session.post(url, json={}) as forged:
            assert forged.status == 401
    await agent.close()


async def test_a_delivery_that_is_too_large_for_its_body_is_read_by_its_address(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = replace(await cluster.agent("large", ada.client), key=None, plaintext="allow")
    agent, heard, told = Agent(options), list[str](), list[object]()

    @agent.on("message")
    async def hear(ctx: Context) -> None:
        heard.append(ctx.text)
        told.append(ctx.event["data"].get("object_ref"))

    long = "x" * 1_048_400
    async with _served(agent.asgi(SECRET)) as url:
        webhook = await _as_agent(options, "PUT", "/webhook", {"url": url, "secret": SECRET})
        assert webhook["status"] == "active", webhook["last_error"]
        conversation = await ada.client.open_agent(options.agent_id)
        await conversation.choose_clear()
        await conversation.send(long)
        await until(lambda: heard, 20)
    assert heard == [long] and told == [None]
    await agent.close()


async def test_a_webhook_handler_that_is_too_slow_asks_for_another_try(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.agent.agent.DEADLINE_SECONDS", 0.3)
    monkeypatch.setattr("blindpipe.agent.agent.verify_delivery", lambda *_: True)
    agent = Agent(await cluster.agent("slow", ada.client))
    agent.on("agent.updated", lambda _ctx: asyncio.sleep(60))
    event = (
        b'{"event_id":"01J00000000000000000000000","event":"agent.updated","cursor":"1-1","seq":1,'
        b'"created_at":"2026-01-01T00:00:00Z","data":{}}'
    )
    answer = await agent.deliver(SECRET, {}, event)
    assert (answer.status, dict(answer.headers)["retry-after"]) == (503, "5")
    await agent.close()


async def test_clear_text_is_refused_unless_the_developer_allows_it(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("strict", ada.client)
    reasons: list[str] = []

    def undecryptable(reason: str, event_id: str, conversation_id: str) -> None:
        reasons.append(reason)

    hooks: Hooks = {"undecryptable": undecryptable}
    conversation = await ada.client.open_agent(options.agent_id)

    async def send_clear(text: str) -> object:
        body = {"payload": {"type": "text", "text": text}}
        path = f"/conversations/{conversation.id}/messages"
        return await ada.client.account.http.data(Call("POST", path, body=body))

    async with running(_echo(replace(options, hooks=hooks))):
        await send_clear("hello")
        assert await until(lambda: reasons) == ["clear"]
    allowing = Agent(replace(options, plaintext="allow"))
    allowing.on("message", lambda ctx: ctx.reply(f"{ctx.text} ({ctx.encrypted})"))
    told: dict[str, MessageEvent] = {}

    def has_answered(events: list[ClientEvent]) -> bool:
        last = events[-1]
        if isinstance(last, MessageEvent) and from_agent(last):
            told[(last.received.message["payload"] or {})["text"]] = last
        # The service may not have stored the first agent's last acknowledgement in time.
        return "again (False)" in told

    async with running(allowing):
        await collect(ada, lambda: send_clear("again"), has_answered)
    # The person never chose clear text here, so it is not shown as said by anybody.
    fault = told["again (False)"].received.fault
    assert fault and fault.reason == "clear"


async def test_a_standby_handles_nothing_until_it_is_activated(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("pair", ada.client)
    handled: list[str] = []
    standby = Agent(options)

    @standby.on("message")
    async def answer(ctx: Context) -> None:
        handled.append(ctx.text)
        await ctx.reply(f"standby: {ctx.text}")

    async with running(standby, standby=True):
        conversation = await ada.client.open_agent(options.agent_id)
        async with running(_echo(options)):
            await _is_answered(ada, conversation, "one")
        await conversation.send("two")
        await asyncio.sleep(0.3)
        assert handled == []

        async def activate() -> None:
            standby.activate()

        assert (await answer_to(ada, activate)).text == "standby: two"


async def test_another_key_than_the_registered_one_stops_the_agent(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("keyed", ada.client)
    agent = Agent(options)
    await agent.check()
    await agent.close()
    other = Agent(replace(options, key=AgentKey.random().to_text()))
    with pytest.raises(AgentKeysMismatch) as raised:
        await other.serve()
    assert raised.value.code == "AGENT_KEYS_MISMATCH" and raised.value.request_id


async def test_secrets_keys_and_texts_never_reach_a_logger(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = await cluster.agent("logged", ada.client)
    agent = Agent(replace(options, retry_delays=(0.001,)))

    @agent.on("message")
    async def fail(ctx: Context) -> None:
        await ctx.reply(f"You said: {ctx.text}")
        raise ValueError(ctx.text)

    mark = "planted-mark-7391"
    async with running(agent):
        await _is_answered(ada, await ada.client.open_agent(options.agent_id), mark)
        await until(lambda: "dead_letter" in caplog.text)
    shown = caplog.text + repr(options) + repr(agent) + repr(ada)
    for planted in (mark, options.token, str(options.key), ada.password):
        assert planted not in shown


async def test_sends_beyond_the_budget_wait_in_their_order(
    cluster: DevCluster, ada: TestUser
) -> None:
    limited: list[str] = []

    def rate_limited(scope: str, wait_ms: int) -> None:
        limited.append(scope)

    eve = await cluster.user("eve", hooks={"rate_limited": rate_limited})
    conversation = await eve.client.open_direct(ada.client.user_id)
    sent = [str(number) for number in range(15)]
    await asyncio.gather(*(conversation.send(text) for text in sent))
    assert await texts(conversation) == sent
    assert "user_message_send" in limited
    await eve.client.close()


async def test_a_pin_store_makes_a_sender_known_at_the_next_start(
    cluster: DevCluster, ada: TestUser, tmp_path: Path
) -> None:
    path = tmp_path / "pins.json"
    options = replace(await cluster.agent("rememberer", ada.client), pins=path)
    conversation = await ada.client.open_agent(options.agent_id)
    for pinned in (False, True):
        agent = Agent(options)

        @agent.on("message")
        async def answer(ctx: Context) -> None:
            assert ctx.sender and ctx.sender.authentic
            await ctx.reply(f"pinned: {ctx.sender.pinned}")

        async with running(agent):
            found = await answer_to(ada, lambda: conversation.send("known?"))
        assert found.text == f"pinned: {pinned}"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_events_other_than_messages_and_middleware(
    cluster: DevCluster, ada: TestUser
) -> None:
    agent = Agent(await cluster.agent("greeter", ada.client))
    order: list[str] = []

    @agent.use
    async def around(ctx: Context, next: Any) -> None:
        order.append(f"before {ctx.event['event']}")
        await next()
        order.append("after")

    @agent.on("relation.created")
    async def greet(ctx: Context) -> None:
        order.append(f"greeted {len(ctx.key)}")

    async with running(agent):
        await ada.client.open_agent(agent.agent_id)
        await until(lambda: "after" in order)
    assert order == ["before relation.created", "greeted 32", "after"]


async def test_typing_and_the_cancelled_stream_leave_no_message(
    cluster: DevCluster, ada: TestUser
) -> None:
    agent = Agent(await cluster.agent("shy", ada.client))

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        ctx.typing()
        try:
            async with ctx.stream() as out:
                out.write("never mind")
                await asyncio.sleep(0.2)
                raise KeyError
        except KeyError:
            await ctx.reply("sorry")

    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        events = await collect(
            ada, lambda: conversation.send("hello"), lambda all: any(map(from_agent, all))
        )
    kinds: Sequence[str] = [type(event).__name__ for event in events]
    assert "TypingEvent" in kinds and "DeltaEvent" in kinds
    assert await texts(conversation) == ["hello", "sorry"]
