"""A service that is away for a while ends nobody, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from attacker import Victim, again, attacked_person, attacking, echo, newest
from live import answer_to, collect, running, texts, until

from blindpipe import Agent, Context
from blindpipe.client import MessageEvent
from blindpipe.testing import DevCluster, TestUser


def _said(text: str) -> Any:
    return lambda events: any(isinstance(e, MessageEvent) and e.text == text for e in events)


async def test_a_person_whose_token_cannot_be_renewed_for_now_comes_back(
    cluster: DevCluster, bob: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.transport.socket.FIRST_RENEWAL_WAIT_MS", 10)
    monkeypatch.setattr("blindpipe.transport.socket.FIRST_RECONNECT_WAIT_MS", 10)
    monkeypatch.setattr("blindpipe.transport.http.FIRST_RETRY_MS", 1)
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", Victim()) as ada,
    ):
        conversation = await bob.client.open_direct(ada.client.user_id)
        refusals: list[str] = []

        def on_status(_method: str, path: str) -> int | None:
            if path == "/auth/refresh" and len(refusals) < 12:
                refusals.append(path)
                return 503
            return None

        async def away() -> None:
            attacker.on_status = on_status
            # A laptop that has slept holds a token that has ended.
            ada.client.account._expires_at = time.monotonic()
            await attacker.hang_up(4401)
            await conversation.send("are you there?")

        await collect(ada, away, _said("are you there?"))
    assert len(refusals) == 12


async def test_an_event_whose_keys_cannot_be_read_for_now_is_not_lost(
    cluster: DevCluster, bob: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.client.client.FIRST_READ_WAIT_MS", 10)
    monkeypatch.setattr("blindpipe.transport.http.FIRST_RETRY_MS", 1)
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", Victim()) as ada,
    ):
        conversation = await bob.client.open_direct(ada.client.user_id)
        refusals: list[str] = []

        def on_status(_method: str, path: str) -> int | None:
            if path.startswith(f"/conversations/{conversation.id}") and len(refusals) < 12:
                refusals.append(path)
                return 503
            return None

        async def away() -> None:
            attacker.on_status = on_status
            await conversation.send("first")
            await conversation.send("second")

        events = await collect(ada, away, _said("second"))
    texts = [event.text for event in events if isinstance(event, MessageEvent)]
    assert texts == ["first", "second"] and len(refusals) == 12


@pytest.mark.parametrize("status", [503, 429])
async def test_an_outage_uses_up_no_tries_of_a_handler(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("blindpipe.transport.http.FIRST_RETRY_MS", 1)
    monkeypatch.setattr("blindpipe.transport.http.MAX_LIMIT_WAIT_SECONDS", -1)
    monkeypatch.setattr("blindpipe.agent.inbox.FIRST_OUTAGE_WAIT_MS", 1, raising=False)
    lost, tries, waits = list[str](), list[str](), list[int]()

    def dead_letter(event_id: str, event: str, error: BaseException) -> None:
        lost.append(event_id)

    def retry(attempt: int, wait_ms: int, route: str) -> None:
        if route.startswith("handler"):
            waits.append(attempt)

    async with attacking(cluster) as attacker:
        made = await cluster.agent("patient", ada.client)
        hooks: Any = {"dead_letter": dead_letter, "retry": retry}
        behind = replace(made, url=attacker.url, ssl_context=None, hooks=hooks)
        agent = Agent(replace(behind, retry_delays=(0.001,)))

        @agent.on("message")
        async def answer(ctx: Context) -> None:
            tries.append(ctx.text)
            if ctx.text == "mine":
                raise LookupError
            await ctx.reply(f"You said: {ctx.text}")

        def on_status(method: str, path: str) -> int | None:
            is_reply = method == "POST" and path.endswith("/messages")
            return status if is_reply and tries.count("theirs") <= 6 else None

        attacker.on_status = on_status
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            answer_told = await answer_to(ada, lambda: conversation.send("theirs"))
            assert answer_told.text == "You said: theirs"
            assert (tries, lost, waits) == (["theirs"] * 7, [], [1, 2, 3, 4, 5, 6])
            # A handler's own errors count.
            await conversation.send("mine")
            await until(lambda: lost)
    assert tries[7:] == ["mine"] * 2 and len(lost) == 1


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_a_handler_that_raises_anything_or_never_ends_blocks_its_own_conversation(
    cluster: DevCluster,
    ada: TestUser,
    bob: TestUser,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    transport: str,
) -> None:
    monkeypatch.setattr("blindpipe.agent.inbox.SLOW_HANDLER_SECONDS", 0.1, raising=False)
    monkeypatch.setattr("blindpipe.agent.transports.SETTLE_SECONDS", 0.1, raising=False)
    options = await cluster.agent("strange", ada.client)
    agent = Agent(replace(options, retry_delays=()))
    ends, runs = asyncio.Event(), list[str]()

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        runs.append(ctx.text)
        if ctx.text == "cancelled":
            another = asyncio.create_task(asyncio.sleep(60))
            another.cancel()
            await another
        if ctx.text == "exit":
            raise SystemExit
        if ctx.text == "for ever":
            await ends.wait()
        await ctx.reply(f"You said: {ctx.text}")

    async with running(agent, transport=transport):
        adas = await ada.client.open_agent(options.agent_id)
        for text in ("cancelled", "exit"):
            await adas.send(text)
        assert (await answer_to(ada, lambda: adas.send("after"))).text == "You said: after"
        assert "CancelledError" in caplog.text and "SystemExit" in caplog.text
        await adas.send("for ever")
        await until(lambda: "have run for" in caplog.text)
        bobs = await bob.client.open_agent(options.agent_id)
        for text in ("one", "two"):
            assert (await answer_to(bob, lambda: bobs.send(text))).text == f"You said: {text}"
        ends.set()
        await collect(ada, lambda: adas.send("in the end"), _said("You said: in the end"))
    said = [text for text in await texts(adas) if text.startswith("You said")]
    assert said == [f"You said: {text}" for text in ("after", "for ever", "in the end")]
    assert len(runs) == len(set(runs)), "no event was handled twice"


async def test_an_event_of_an_unknown_shape_does_not_poison_the_intake(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    victim = Victim()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("robust", ada.client)
        agent = echo(replace(made, url=attacker.url, ssl_context=None), victim)
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await answer_to(ada, lambda: conversation.send("one"))
            strange = again(newest(attacker, "message.created"), 100)
            await attacker.push({**strange, "event": "key.device_added", "data": {}})
            await until(lambda: "could not be looked into" in caplog.text)
            await conversation.rotate()
            answered = await answer_to(ada, lambda: conversation.send("two"))
    assert answered.text == "You said: two"
