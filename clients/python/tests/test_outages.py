"""A service that is away for a while ends nobody, and nothing is lost by it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from attacker import Victim, attacked_person, attacking
from live import answer_to, collect, running

from blindpipe import Agent
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
