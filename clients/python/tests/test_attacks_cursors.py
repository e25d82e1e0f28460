"""A cursor from which the server cannot read any more is told, and nothing is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from attacker import Attacker, Victim, attacking, echo, newest
from live import answer_to, running, texts, until

from blindpipe import Agent, AgentOptions, Context, Hooks
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


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_a_server_that_takes_no_cursor_is_not_asked_for_ever(
    cluster: DevCluster, ada: TestUser, transport: str
) -> None:
    victim, resyncs = Victim(), Resyncs()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("unheard", ada.client)
        options = replace(
            made, url=attacker.url, ssl_context=None, hooks={"resync": resyncs.resync}
        )
        conversation = await ada.client.open_agent(made.agent_id)
        async with running(echo(options, victim), transport=transport):
            await answer_to(ada, lambda: conversation.send("before"))
            _refuse_all(attacker, transport)
            if transport == "poll":
                await conversation.send("meanwhile")
            else:
                await attacker.hang_up()
            # After the last acknowledgement, with the oldest event, then with the newest.
            await until(lambda: len(resyncs.heads) >= 3)
            told = len(resyncs.heads)
            # A client that never pauses asks hundreds of times meanwhile.
            await asyncio.sleep(1)
            assert len(resyncs.heads) <= told + 20
            # A poll is refused whatever its cursor; a socket goes on at the head.
            attacker.on_path = lambda path: path
            await answer_to(ada, lambda: conversation.send("after"))
    assert victim.heard[0] == "before" and victim.heard[-1] == "after"


def _refuse_all(attacker: Attacker, transport: str) -> None:
    def on_path(path: str) -> str:
        route = path.partition("?")[0]
        return f"{route}?cursor={LOST_CURSOR}" if route.endswith("/messages/poll") else path

    def on_frame(frame: Frame) -> Iterable[Frame]:
        if frame["type"] != "ready":
            return (frame,)
        cursor = frame["cursor"]
        return frame, {"type": "resync_required", "oldest": cursor, "head": cursor}

    if transport == "poll":
        attacker.on_path = on_path
    else:
        attacker.on_frame = on_frame


async def test_what_ends_after_a_resync_acknowledges_nothing_of_the_new_history(
    cluster: DevCluster, ada: TestUser
) -> None:
    acks, begun, ended, go = list[str](), asyncio.Event(), asyncio.Event(), asyncio.Event()
    has_lost, is_silent = True, False

    def on_frame(frame: Frame) -> Iterable[Frame]:
        if frame["type"] != "event":
            return (frame,)
        return () if is_silent else ({**frame, "cursor": old(frame)} if has_lost else frame,)

    def old(frame: Frame) -> str:
        """The cursor of an earlier history, far ahead of the new one."""
        return f"1-{frame['seq'] + 1_000}"

    def on_client_frame(frame: Frame) -> Frame:
        if frame["type"] == "ack":
            acks.append(frame["cursor"])
        return frame

    async with attacking(cluster) as attacker:
        made = await cluster.agent("restored", ada.client)
        conversation = await ada.client.open_agent(made.agent_id)
        agent = Agent(replace(made, url=attacker.url, ssl_context=None))

        @agent.on("message")
        async def answer(ctx: Context) -> None:
            begun.set()
            await go.wait()
            ended.set()

        await agent.check()
        await conversation.send("hello")
        attacker.on_frame, attacker.on_client_frame = on_frame, on_client_frame
        async with running(agent):
            await begun.wait()
            acks.clear()
            has_lost, is_silent = False, True
            head = newest(attacker, "message.created")["cursor"]
            oldest = next(frame["cursor"] for frame in attacker.seen if frame["type"] == "ready")
            await attacker.push({"type": "resync_required", "oldest": oldest, "head": head})
            await until(lambda: sum(frame["type"] == "ready" for frame in attacker.seen) == 2)
            go.set()
            await ended.wait()
            is_silent = False
            # An acknowledgement that waits goes first on the next connection.
            await attacker.hang_up()
            await until(lambda: head in acks)
    assert not [cursor for cursor in acks if cursor.startswith("1-")]


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
