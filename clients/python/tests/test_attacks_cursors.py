"""A cursor from which the server cannot read any more is told, and nothing is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from attacker import Attacker, Victim, attacking, echo
from live import answer_to, running, texts, until

from blindpipe import AgentOptions, Hooks
from blindpipe.client import CaughtUp, MessageEvent
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.socket import Frame

LOST_CURSOR = "1-1"
"""A cursor of another epoch, as after the database was restored."""


class Resyncs:
    """Counts what the hook tells."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    def resync(self, oldest: str, head: str) -> None:
        self.heads.append(head)


def _lost(frame: Frame) -> Frame:
    return {**frame, "resume": LOST_CURSOR} if "resume" in frame else frame


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_an_agent_is_told_and_handles_what_comes_then(
    cluster: DevCluster, ada: TestUser, transport: str
) -> None:
    victim, resyncs = Victim(), Resyncs()
    hooks: Hooks = {"resync": resyncs.resync}
    async with attacking(cluster) as attacker:
        made = await cluster.agent("resynced", ada.client)
        options: AgentOptions = replace(made, url=attacker.url, ssl_context=None, hooks=hooks)
        async with running(echo(options, victim), transport=transport):
            conversation = await ada.client.open_agent(options.agent_id)
            await answer_to(ada, lambda: conversation.send("before"))
            await _lose_cursors(attacker, transport)
            if transport == "poll":
                # It ends the poll that waits; the next one brings the lost cursor.
                await answer_to(ada, lambda: conversation.send("meanwhile"))
            await until(lambda: resyncs.heads)
            attacker.on_path = lambda path: path
            await answer_to(ada, lambda: conversation.send("after"))
    assert len(resyncs.heads) == 1
    assert [text for text in victim.heard if text != "meanwhile"] == ["before", "after"]
    answers = [text for text in await texts(conversation) if text.startswith("You")]
    assert answers == [f"You said: {text}" for text in victim.heard]


async def _lose_cursors(attacker: Attacker, transport: str) -> None:
    if transport == "socket":
        attacker.on_client_frame = _lost
        await attacker.hang_up()
        return
    lost = iter([LOST_CURSOR])

    def on_path(path: str) -> str:
        cursor = next(lost, None) if "cursor=" in path else None
        return path.split("cursor=")[0] + f"cursor={cursor}" if cursor else path

    attacker.on_path = on_path


async def test_an_agent_whose_acknowledgement_is_too_old_begins_with_the_oldest_event(
    cluster: DevCluster, ada: TestUser
) -> None:
    """As after 30 days away: reading after the last acknowledgement answers a resync as well."""
    victim, resumed = Victim(), list[str | None]()
    oldest = list[str]()

    def on_frame(frame: Frame) -> Iterable[Frame]:
        if frame["type"] != "ready" or resumed[-1] is not None:
            return (frame,)
        oldest.append(frame["cursor"])
        head = f"{frame['cursor'].partition('-')[0]}-{frame['replay']['to']}"
        return frame, {"type": "resync_required", "oldest": oldest[-1], "head": head}

    def on_client_frame(frame: Frame) -> Frame:
        if frame["type"] == "auth":
            resumed.append(frame.get("resume"))
        return frame

    resyncs = Resyncs()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("away", ada.client)
        conversation = await ada.client.open_agent(made.agent_id)
        options: AgentOptions = replace(
            made, url=attacker.url, ssl_context=None, hooks={"resync": resyncs.resync}
        )
        attacker.on_frame, attacker.on_client_frame = on_frame, on_client_frame
        agent = echo(options, victim)
        await agent.check()
        await conversation.send("while it was away")
        async with running(agent):
            await until(lambda: victim.heard)
            await answer_to(ada, lambda: conversation.send("and now"))
    assert victim.heard == ["while it was away", "and now"]
    assert resumed == [None, *oldest] and len(resyncs.heads) == 1


async def test_a_person_is_told_and_sees_what_comes_then(
    cluster: DevCluster, ada: TestUser
) -> None:
    resyncs, shown = Resyncs(), list[str | None]()
    async with attacking(cluster) as attacker:
        hooks: Hooks = {"resync": resyncs.resync}
        bob = await cluster.user("bob", url=attacker.url, ssl_context=None, hooks=hooks)
        conversation = await ada.client.open_direct(bob.client.user_id)
        await conversation.send("before")
        caught_up: Iterator[int] = iter(range(10))
        async with aclosing(bob.client.events()) as events:
            async for event in events:
                if isinstance(event, CaughtUp):
                    if next(caught_up) == 0:
                        attacker.on_client_frame = _lost
                        asyncio.get_running_loop().create_task(attacker.hang_up())
                    else:
                        await conversation.send("after")
                elif isinstance(event, MessageEvent):
                    shown.append(event.text)
                    if event.text == "after":
                        break
        await bob.client.close()
    assert len(resyncs.heads) == 1
    assert shown == ["before", "after"]
