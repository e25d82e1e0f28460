"""Deliveries of a webhook that come at once, or again."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from typing import Any

from blindpipe import Agent, AgentOptions, Context
from blindpipe.agent.webhook import WebhookAnswer
from blindpipe.e2ee.ids import new_ulid
from blindpipe.hooks import HookCaller
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.http import Call, Http
from live import texts, until

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


async def _event(options: AgentOptions, name: str) -> dict[str, Any]:
    """The first event of a name in the agent's inbox, as the service delivers it."""
    return next(e for e in await _events(options) if e["event"] == name)


async def _events(options: AgentOptions) -> list[dict[str, Any]]:

    async def token() -> str:
        return options.token

    hooks = HookCaller(None, options.logger)
    http = Http(options.url, hooks, token, ssl_context=options.ssl_context)
    path = f"/agents/{options.agent_id}/messages/poll"
    events: list[dict[str, Any]] = await http.data(Call("GET", path, {"wait": 0}))
    await http.close()
    return events


async def _deliver(agent: Agent, event: dict[str, Any]) -> WebhookAnswer:
    body, timestamp = json.dumps(event).encode(), str(int(time.time()))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signature = hmac.digest(key, f"msg_1.{timestamp}.".encode() + body, "sha256")
    headers = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": timestamp,
        "Webhook-Signature": "v1," + base64.b64encode(signature).decode(),
    }
    return await agent.deliver(SECRET, headers, body)


async def test_a_message_that_is_delivered_twice_at_once_has_one_handler(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("hooked", ada.client)
    agent, begun, go = Agent(options), list[str](), asyncio.Event()

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        begun.append(ctx.text)
        await go.wait()
        await ctx.reply(f"You said: {ctx.text}")

    await agent.check()
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("hello")
    event = await _event(options, "message.created")
    # A message may come by another event as well.
    repeated = {**event, "event_id": new_ulid()}
    first = asyncio.create_task(_deliver(agent, event))
    await until(lambda: begun)
    others = [await _deliver(agent, each) for each in (event, repeated)]
    assert [(each.status, dict(each.headers)["retry-after"]) for each in others] == [(503, "5")] * 2
    go.set()
    assert (await first).status == 200
    assert (await _deliver(agent, event)).status == 200
    assert begun == ["hello"]
    await agent.close()
    assert await texts(conversation) == ["hello", "You said: hello"]


async def test_a_batch_runs_conversations_side_by_side_and_names_what_failed(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("batched", ada.client)
    bob = await cluster.user("bob")
    agent, begun, other = Agent(options), list[str](), asyncio.Event()
    failures = {"bad": 1, "worse": 1}

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        begun.append(ctx.text)
        if ctx.text == "one":
            await other.wait()
        if ctx.text == "elsewhere":
            other.set()
        if failures.get(ctx.text):
            failures[ctx.text] -= 1
            raise RuntimeError("once")
        await ctx.reply(f"You said: {ctx.text}")

    await agent.check()
    conversation = await ada.client.open_agent(options.agent_id)
    for text in ("one", "bad", "two"):
        await conversation.send(text)
    bobs = await bob.client.open_agent(options.agent_id)
    await bobs.send("elsewhere")
    said = [e for e in await _events(options) if e["event"] == "message.created"]
    events = [{**e, "delivery_id": f"d{n}", "attempt": 1} for n, e in enumerate(said)]

    answered = await _deliver(agent, {"agent_id": options.agent_id, "events": events})
    assert (answered.status, json.loads(answered.body)) == (200, {"failed": ["d1"]})
    assert [text for text in begun if text != "elsewhere"] == ["one", "bad"], "in order, to the end"
    again = [{**event, "attempt": 2} for event in events[1:3]]
    answered = await _deliver(agent, {"agent_id": options.agent_id, "events": again})
    assert (answered.status, json.loads(answered.body)) == (200, {"failed": []})
    assert await texts(bobs) == ["elsewhere", "You said: elsewhere"]

    # If nothing succeeds, the service is to make a pause.
    await conversation.send("worse")
    last = (await _events(options))[-1]
    alone = {"agent_id": options.agent_id, "events": [{**last, "delivery_id": "d9"}]}
    assert (await _deliver(agent, alone)).status == 500
    assert (await _deliver(agent, alone)).status == 200
    expected = [f"You said: {text}" for text in ("one", "bad", "two", "worse")]
    assert [text for text in await texts(conversation) if text in expected] == expected
    junks: list[dict[str, Any]] = [{"events": [1]}, {"events": {}}, {"events": None}]
    for junk in junks:
        assert (await _deliver(agent, junk)).status == 400, junk
    await agent.close()


async def test_a_stop_by_webhook_ends_the_handler_of_the_delivery_under_way(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("stopped", ada.client)
    agent, seen = Agent(options), list[str]()

    @agent.on("message")
    async def work(ctx: Context) -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(8)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @agent.on_stop
    async def stopped(ctx: Context) -> None:
        seen.append("stop")

    await agent.check()
    conversation = await ada.client.open_agent(options.agent_id)
    await conversation.send("slow")
    event = await _event(options, "message.created")
    first = asyncio.create_task(_deliver(agent, event))
    await until(lambda: seen)
    assert await conversation.stop() == 1
    stop = await _event(options, "turn.stop")
    async with asyncio.timeout(4):
        assert (await _deliver(agent, stop)).status == 200
        assert (await first).status == 200
    # Deliveries run at once, so the two have no order.
    assert sorted(seen) == ["begun", "cancelled", "stop"]
    # What was stopped is handled.
    assert (await _deliver(agent, event)).status == 200
    assert seen.count("begun") == 1
    await agent.close()
