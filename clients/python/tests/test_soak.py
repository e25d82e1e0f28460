"""A service that goes away again and again: each message is answered once, and memory is level."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from attacker import Attacker, Victim, attacked_agent, attacking
from live import answer_to, from_agent, until

from blindpipe import BlindpipeError, Hooks
from blindpipe.agent.options import DEFAULT_RETRY_DELAYS
from blindpipe.client import Conversation, MessageEvent
from blindpipe.client.account import RENEW_BEFORE_SECONDS
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser

OUTAGES = 20
SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 600.0
TIME_SCALE = 300
"""Longer outages, waits between tries, and the lives of people's tokens are shorter by this."""
TOKEN_SECONDS = 300.0
REFUSED_TOKEN = 4401
PEOPLE = 20
PEOPLE_BEHIND = 5
"""The service goes away for these people too; the others see what the agent alone makes of it."""
MESSAGES = int(os.environ.get("SOAK", "1000"))
BETWEEN_SENDS_SECONDS = 0.2
"""A person may send ten messages a second."""
MAX_GROWTH_MEGABYTES = 40
"""Most of it are the histories that people read in the end, in the same process."""


def _megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    kilobytes = re.search(r"VmRSS:\s*(\d+)", status)
    return int(kilobytes[1]) / 1024 if kilobytes else 0.0


def _outages() -> list[float]:
    """Each longer than the one before by the same factor, in seconds of the test."""
    factor = (LONGEST_SECONDS / SHORTEST_SECONDS) ** (1 / (OUTAGES - 1))
    meant = [SHORTEST_SECONDS * factor**number for number in range(OUTAGES)]
    return [max(SHORTEST_SECONDS, seconds / TIME_SCALE) for seconds in meant]


async def _go_away(for_agent: Attacker, for_people: Attacker) -> None:
    outages = _outages()
    random.shuffle(outages)
    for seconds in outages:
        for_agent.is_away = for_people.is_away = True
        # The token of a person ends with the service, so a renewal meets the outage.
        await asyncio.gather(for_agent.hang_up(), for_people.hang_up(REFUSED_TOKEN))
        await asyncio.sleep(seconds)
        for_agent.is_away = for_people.is_away = False
        await until(lambda: for_agent.is_connected and for_people.is_connected)


async def _replies(conversation: Conversation) -> Counter[str]:
    read = [received.text or "" async for received in conversation.history()]
    return Counter(text for text in read if text.startswith("You said: "))


class _Behind:
    """People whose only way is the service that goes away, with tokens that end soon."""

    def __init__(self, attacker: Attacker) -> None:
        self._attacker = attacker
        self._watching: list[asyncio.Task[None]] = []
        self.renewals = 0
        self.refused_renewals = 0
        self.shown: list[Counter[str]] = []
        """The texts of the agent that each of them was shown."""
        attacker.on_answer = self._shorten

    @staticmethod
    def _shorten(_method: str, path: str, data: Any) -> Any:
        is_token = path.startswith("/auth/") and isinstance(data, dict) and "access_token" in data
        return {**data, "expires_in_seconds": TOKEN_SECONDS / TIME_SCALE} if is_token else data

    def _on_session(self, _session: object) -> None:
        self.renewals += 1

    def _on_retry(self, attempt: int, wait_ms: int, route: str) -> None:
        self.refused_renewals += route == "POST /auth/refresh"

    async def person(self, cluster: DevCluster, name: str) -> TestUser:
        hooks: Hooks = {"retry": self._on_retry}
        behind: Any = {"url": self._attacker.url, "ssl_context": None, "hooks": hooks}
        user = await cluster.user(name, on_session=self._on_session, **behind)
        shown = Counter[str]()
        self.shown.append(shown)
        self._watching.append(asyncio.create_task(_watch(user, shown)))
        return user

    @property
    def is_alive(self) -> bool:
        """Whether nobody's events have ended."""
        return not any(each.done() for each in self._watching)

    async def leave(self) -> None:
        for each in self._watching:
            each.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)


async def _watch(user: TestUser, shown: Counter[str]) -> None:
    async with aclosing(user.client.events()) as events:
        async for event in events:
            if isinstance(event, MessageEvent) and from_agent(event):
                shown[event.text or ""] += 1


async def _say(conversation: Conversation, number: int) -> None:
    """Says it once, however often the service is away."""
    id = new_ulid()
    while True:
        try:
            await conversation.send(f"{number}", client_message_id=id)
            return
        except BlindpipeError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(BETWEEN_SENDS_SECONDS)


@pytest.mark.limit(120)
async def test_each_message_is_answered_once_while_the_service_goes_away(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = random.uniform
    monkeypatch.setattr(random, "uniform", lambda low, high: uniform(low, high) / TIME_SCALE)
    monkeypatch.setattr(
        "blindpipe.client.account.RENEW_BEFORE_SECONDS", RENEW_BEFORE_SECONDS / TIME_SCALE
    )
    each, victim = MESSAGES // PEOPLE, Victim()
    tries = [seconds / TIME_SCALE for seconds in DEFAULT_RETRY_DELAYS]
    async with (
        attacking(cluster) as attacker,
        attacking(cluster, 0) as for_people,
        attacked_agent(cluster, attacker, ada.client, victim, retry_delays=tries) as (agent, _),
    ):
        behind = _Behind(for_people)
        people = [await cluster.user(f"soak{n}") for n in range(PEOPLE - PEOPLE_BEHIND)]
        people += [await behind.person(cluster, f"behind{n}") for n in range(PEOPLE_BEHIND)]
        talks = [await user.client.open_agent(agent.agent_id) for user in people]

        async def say(conversation: Conversation) -> None:
            for number in range(each):
                await _say(conversation, number)
                await asyncio.sleep(BETWEEN_SENDS_SECONDS)

        memory = list[float]()

        async def look() -> None:
            await until(lambda: len(victim.heard) > MESSAGES // 4, seconds=60)
            memory.append(_megabytes())

        await asyncio.gather(_go_away(attacker, for_people), look(), *map(say, talks))
        wanted = Counter({f"You said: {number}": 1 for number in range(each)})
        for talk in talks:
            async with asyncio.timeout(30):
                while await _replies(talk) != wanted:
                    await asyncio.sleep(0.1)
        await until(lambda: all(shown == wanted for shown in behind.shown), seconds=30)
        assert behind.is_alive and behind.renewals > OUTAGES and behind.refused_renewals > OUTAGES
        assert _megabytes() - memory[0] < MAX_GROWTH_MEGABYTES
        alive = await answer_to(people[0], lambda: talks[0].send("Are you there?"))
        assert alive.text == "You said: Are you there?"
        for talk in talks[1:]:
            assert await _replies(talk) == wanted
        assert all(shown == wanted for shown in behind.shown)
        await behind.leave()
        for user in people:
            await user.client.close()
