"""Deliveries of the real service to agents that die: each message is answered exactly once."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf

import pytest
from aiohttp import web
from blindpipe import Agent, AgentOptions
from blindpipe.agent.webhook import WebhookAnswer
from blindpipe.hooks import HookCaller
from blindpipe.testing import DevCluster
from blindpipe.transport.http import Call, Http
from live import texts, until
from mortal import CRASHES, LANES, MortalLoop, two_replies

SECRET = "whsec_" + base64.b64encode(bytes([9]) * 32).decode()
MORTAL_ATTEMPTS = 4
"""Of a delivery. The service makes eight, and the last of them must live."""
MESSAGES_PER_ROUND = 3
LIFE_SECONDS = 20
ROUND_SECONDS = 60


class Receiver:
    """Receives each delivery with an agent that is started for it, and that may die in between."""

    def __init__(self, cluster: DevCluster, options: AgentOptions, crashes: int) -> None:
        self._on_nodes = [replace(options, url=url) for url in cluster.nodes]
        self._attempts: Counter[str] = Counter()
        # Evenly spread points of a life, in no order.
        self._places = itertools.cycle(random.sample(range(crashes), crashes))
        self._crashes = crashes
        self.points = 0
        """The steps of a whole life; nobody dies before it is known."""
        self.deaths = 0
        self.handled: set[str] = set()
        """The ids of messages whose delivery was answered by 200."""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        event = json.loads(body)
        is_message = event["event"] == "message.created"
        id = request.headers["webhook-id"]
        self._attempts[id] += 1
        options = self._on_nodes[self._attempts[id] % len(self._on_nodes)]
        answers: list[WebhookAnswer] = []

        async def live() -> None:
            agent = two_replies(options)
            answer = await agent.deliver(SECRET, request.headers, body)
            await agent.close()
            answers.append(answer)

        may_die = is_message and self.points and self._attempts[id] <= MORTAL_ATTEMPTS
        world = MortalLoop(self._point() if may_die else inf)
        await asyncio.to_thread(world.run, live, LIFE_SECONDS)
        if not answers:
            self.deaths += 1
            return web.Response(status=502)
        if is_message and answers[0].status == 200:
            self.points = self.points or world.taken
            self.handled.add(event["data"]["message_id"])
        return web.Response(
            status=answers[0].status, body=answers[0].body, headers=dict(answers[0].headers)
        )

    def _point(self) -> float:
        return (next(self._places) + random.random()) * self.points / self._crashes


@asynccontextmanager
async def _listening(receiver: Receiver) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/", receiver.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def _register(options: AgentOptions, url: str) -> None:
    agent = Agent(options)
    await agent.check()
    await agent.close()

    async def token() -> str:
        return options.token

    hooks = HookCaller(None, options.logger)
    http = Http(options.url, hooks, token, ssl_context=options.ssl_context)
    path, body = f"/agents/{options.agent_id}/webhook", {"url": url, "secret": SECRET}
    webhook = await http.data(Call("PUT", path, body=body))
    await http.close()
    assert webhook["status"] == "active", webhook["last_error"]


async def _lane(cluster: DevCluster, crashes: int) -> None:
    """An agent with a webhook that dies so often, and the conversation that it answers."""
    ada = await cluster.user("ada")
    options = await cluster.agent("hooked", ada.client)
    receiver, sent = Receiver(cluster, options, crashes), list[str]()
    async with _listening(receiver) as url:
        await _register(options, url)
        conversation = await ada.client.open_agent(options.agent_id)

        async def round(messages: int) -> None:
            for _ in range(messages):
                told = await conversation.send(f"message {len(sent)}")
                sent.append(told["message_id"])
            await until(lambda: receiver.handled.issuperset(sent), ROUND_SECONDS)

        await round(1)
        while receiver.deaths < crashes:
            await round(MESSAGES_PER_ROUND)
    said = await texts(conversation)
    found = [text.rpartition(" ")[0] for text in said if not text.startswith("message")]
    assert found == [f"{n} to message {i}" for i in range(len(sent)) for n in ("first", "second")]
    await ada.client.close()


@pytest.mark.limit(60 + 3 * CRASHES)
async def test_every_message_has_both_replies_once_and_in_order(cluster: DevCluster) -> None:
    each = -(-CRASHES // LANES)
    await asyncio.gather(*(_lane(cluster, each) for _ in range(LANES)))
