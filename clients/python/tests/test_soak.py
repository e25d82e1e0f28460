"""A service that goes away again and again: each message is answered once, and memory is level."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from attacker import Attacker, Victim, attacked_agent, attacking
from live import answer_to, until

from blindpipe.agent.options import DEFAULT_RETRY_DELAYS
from blindpipe.client import Conversation
from blindpipe.testing import DevCluster, TestUser

OUTAGES = 20
SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 600.0
TIME_SCALE = 300
"""Longer outages, and the agent's waits between tries, are shorter by this."""
PEOPLE = 20
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


async def _go_away(attacker: Attacker) -> None:
    outages = _outages()
    random.shuffle(outages)
    for seconds in outages:
        attacker.is_away = True
        await attacker.hang_up()
        await asyncio.sleep(seconds)
        attacker.is_away = False
        await until(lambda: attacker.is_connected)


async def _replies(conversation: Conversation) -> Counter[str]:
    read = [received.text or "" async for received in conversation.history()]
    return Counter(text for text in read if text.startswith("You said: "))


@pytest.mark.limit(120)
async def test_each_message_is_answered_once_while_the_service_goes_away(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = random.uniform
    monkeypatch.setattr(random, "uniform", lambda low, high: uniform(low, high) / TIME_SCALE)
    people = [await cluster.user(f"soak{number}") for number in range(PEOPLE)]
    each, victim = MESSAGES // PEOPLE, Victim()
    tries = [seconds / TIME_SCALE for seconds in DEFAULT_RETRY_DELAYS]
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim, retry_delays=tries) as (agent, _),
    ):
        talks = [await user.client.open_agent(agent.agent_id) for user in people]

        async def say(conversation: Conversation) -> None:
            for number in range(each):
                await conversation.send(f"{number}")
                await asyncio.sleep(BETWEEN_SENDS_SECONDS)

        memory = list[float]()

        async def look() -> None:
            await until(lambda: len(victim.heard) > MESSAGES // 4, seconds=60)
            memory.append(_megabytes())

        await asyncio.gather(_go_away(attacker), look(), *map(say, talks))
        wanted = Counter({f"You said: {number}": 1 for number in range(each)})
        for talk in talks:
            async with asyncio.timeout(30):
                while await _replies(talk) != wanted:
                    await asyncio.sleep(0.1)
        assert _megabytes() - memory[0] < MAX_GROWTH_MEGABYTES
        alive = await answer_to(people[0], lambda: talks[0].send("Are you there?"))
        assert alive.text == "You said: Are you there?"
        for talk in talks[1:]:
            assert await _replies(talk) == wanted
    for user in people:
        await user.client.close()
