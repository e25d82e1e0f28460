"""A stop and an activation count whenever they come: before the start, during it, after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from live import answer_to, running

from blindpipe import Agent, AgentOptions, Context
from blindpipe.e2ee import AgentKey
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser


@asynccontextmanager
async def _silent(asked: list[str]) -> AsyncIterator[str]:
    """A service that never answers, and the paths that it was asked for."""

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        await asyncio.sleep(3600)
        return web.Response()

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _agent(url: str) -> Agent:
    key = AgentKey.random().to_text()
    return Agent(AgentOptions(url=url, agent_id=new_ulid(), token="hsk_none", key=key))


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_a_stop_before_the_start_ends_it_without_a_request(transport: str) -> None:
    asked: list[str] = []
    async with _silent(asked) as url, asyncio.timeout(1):
        agent = _agent(url)
        agent.stop()
        await agent.serve(transport=transport)  # type: ignore[arg-type]
    assert asked == []


async def test_a_stop_during_the_start_ends_it() -> None:
    asked: list[str] = []
    async with _silent(asked) as url, asyncio.timeout(2):
        agent = _agent(url)
        served = asyncio.create_task(agent.serve())
        while not asked:
            await asyncio.sleep(0.01)
        agent.stop()
        await served
        # It is final.
        await agent.serve()
    assert len(asked) == 1


async def test_a_standby_that_is_activated_before_its_start_handles_events(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("early", ada.client)
    agent = Agent(replace(options, retry_delays=()))

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        await ctx.reply("here")

    agent.activate()
    async with running(agent, standby=True):
        conversation = await ada.client.open_agent(options.agent_id)
        assert (await answer_to(ada, lambda: conversation.send("?"))).text == "here"
