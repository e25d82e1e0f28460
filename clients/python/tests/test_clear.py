"""Nothing goes in clear by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from live import running, texts, until

from blindpipe import Agent, AgentOptions, Context, KeyUnavailable, UsageError
from blindpipe.testing import DevCluster, TestUser


def test_the_environment_says_that_clear_text_is_meant() -> None:
    env = {name: "x" for name in ("BLINDPIPE_URL", "BLINDPIPE_AGENT_ID", "BLINDPIPE_TOKEN")}
    assert AgentOptions.from_env(env).plaintext == "refuse"
    assert AgentOptions.from_env(env | {"BLINDPIPE_PLAINTEXT": "allow"}).plaintext == "allow"
    with pytest.raises(UsageError):
        AgentOptions.from_env(env | {"BLINDPIPE_PLAINTEXT": "yes"})


@pytest.mark.parametrize("key", [None, "", []])
async def test_an_agent_without_a_key_does_not_start_by_accident(
    cluster: DevCluster, ada: TestUser, key: Any
) -> None:
    options = replace(await cluster.agent("keyless", ada.client), key=key)
    for begin in (Agent(options).check, Agent(options).serve):
        with pytest.raises(UsageError, match="BLINDPIPE_KEY.*BLINDPIPE_PLAINTEXT=allow"):
            await begin()
    async with running(Agent(replace(options, plaintext="allow"))):
        pass


async def test_a_keyless_agent_says_nothing_where_anybody_encrypts(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    options = await cluster.agent("lost-its-key", ada.client)
    before = Agent(options)
    await before.check()
    await before.close()
    reasons, heard, refused = list[str](), list[str](), list[str]()

    def undecryptable(reason: str, event_id: str, conversation_id: str | None) -> None:
        reasons.append(reason)

    hooks: Any = {"undecryptable": undecryptable}
    agent = Agent(replace(options, key=None, plaintext="allow", hooks=hooks))
    agent.on("message", lambda ctx: heard.append(ctx.text))

    @agent.on("key.rotated")
    async def speak(ctx: Context) -> None:
        id = ctx.event["data"]["conversation_id"]
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "send": lambda: ctx.send(id, "in clear?"),
            "call": lambda: ctx.call("ping", "a:b", {}, user=ada.client.user_id),
            "stream": lambda: _streamed(ctx),
        }
        for name, act in acts.items():
            with pytest.raises(KeyUnavailable):
                await act()
            refused.append(name)

    async def _streamed(ctx: Context) -> None:
        async with ctx.stream() as out:
            out.write("in clear?")
            await asyncio.sleep(0.2)

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        await conversation.send("sealed")
        await until(lambda: reasons and len(refused) == 3)
    assert (reasons, heard) == (["no_epoch_key"], [])
    assert "reaches no handler: no_epoch_key" in caplog.text
    assert await texts(conversation) == ["sealed"]
