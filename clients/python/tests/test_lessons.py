"""An event is acknowledged once its lessons are stored: the server forgets it then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from attacker import Attacker, Victim, again, attacking, echo, newest
from blindpipe import Context
from blindpipe.agent.pin_store import FilePins, StoredTrust
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.acks import ACK_INTERVAL_SECONDS, Acks
from blindpipe.transport.socket import Frame
from live import answer_to, running, until

ROTATIONS = 3


class Store:
    """A developer's store that takes its time."""

    def __init__(self) -> None:
        self.saved: StoredTrust | None = None

    async def load(self) -> StoredTrust | None:
        return None

    async def save(self, trust: StoredTrust) -> None:
        await asyncio.sleep(0.01)
        self.saved = trust

    def epoch(self, conversation_id: str) -> int:
        marks = self.saved["marks"] if self.saved else {}
        return marks[conversation_id]["epoch"] if conversation_id in marks else 0


def _number(cursor: str) -> int:
    return int(cursor.rpartition("-")[2])


def _watch_acks(attacker: Attacker, transport: str, on_ack: Callable[[int], None]) -> None:
    """Tells the number of each acknowledgement as the server gets it."""

    def on_client_frame(frame: Frame) -> Frame:
        if frame["type"] == "ack":
            on_ack(_number(frame["cursor"]))
        return frame

    def on_path(path: str) -> str:
        # The cursor of a poll is what it acknowledges.
        for cursor in parse_qs(urlsplit(path).query).get("cursor", ()):
            if "/messages/poll" in path:
                on_ack(_number(cursor))
        return path

    if transport == "poll":
        attacker.on_path = on_path
    else:
        attacker.on_client_frame = on_client_frame


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_no_epoch_is_acknowledged_before_it_is_stored(
    cluster: DevCluster, ada: TestUser, transport: str
) -> None:
    store, rotated, acks = Store(), list[tuple[int, int]](), list[tuple[int, int]]()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("keeper", ada.client)
        conversation = await ada.client.open_agent(made.agent_id)
        agent = echo(replace(made, url=attacker.url, ssl_context=None, pins=store), Victim())

        @agent.on("key.rotated")
        def note(ctx: Context) -> None:
            rotated.append((ctx.event["seq"], ctx.event["data"]["epoch"]))

        async with running(agent, transport=transport):
            # An epoch of a conversation that was never read teaches nothing yet.
            await answer_to(ada, lambda: conversation.send("first"))
            rotated.clear()
            stored = partial(store.epoch, conversation.id)
            _watch_acks(attacker, transport, lambda number: acks.append((number, stored())))
            for turn in range(ROTATIONS):
                await conversation.rotate()
                await answer_to(ada, lambda: conversation.send("under a new secret"))
                await until(lambda: acks and len(rotated) > turn and acks[-1][0] >= rotated[-1][0])
    assert rotated[-1][1] >= ROTATIONS
    for number, kept in acks:
        assert kept >= max((epoch for seq, epoch in rotated if seq <= number), default=0)


async def test_a_store_that_fails_is_logged_and_stops_nothing(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(Store):
        async def save(self, trust: StoredTrust) -> None:
            raise OSError("no space")

    acks = list[int]()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("unkept", ada.client)
        options = replace(made, url=attacker.url, ssl_context=None, pins=Full())
        conversation = await ada.client.open_agent(made.agent_id)
        async with running(echo(options, Victim())):
            _watch_acks(attacker, "socket", acks.append)
            await answer_to(ada, lambda: conversation.send("hello"))
            number = newest(attacker, "message.created")["seq"]
            await until(lambda: acks and acks[-1] >= number)
    assert "the pins could not be stored" in caplog.text


async def test_many_lessons_are_stored_together() -> None:
    class Keeper:
        waiting = False
        saves = 0

        async def save(self) -> None:
            self.saves += 1
            self.waiting = False

    keeper, sent = Keeper(), list[str]()

    def send(cursor: str) -> bool:
        sent.append(cursor)
        return True

    acks = Acks(send, keeper)
    begun = asyncio.get_running_loop().time()
    for number in range(1_000):
        keeper.waiting = True
        acks.note(f"1-{number}")
        await asyncio.sleep(0)
    await acks.settle()
    seconds = asyncio.get_running_loop().time() - begun
    assert sent[-1] == "1-999"
    assert keeper.saves <= 2 + seconds / ACK_INTERVAL_SECONDS


async def test_a_message_that_was_handled_before_a_restart_is_not_handled_again(
    cluster: DevCluster, ada: TestUser, tmp_path: Path
) -> None:
    victim, path = Victim(), tmp_path / "pins.json"
    async with attacking(cluster) as attacker:
        made = await cluster.agent("elephant", ada.client)
        options = replace(made, url=attacker.url, ssl_context=None, pins=path)
        conversation = None
        for text in ("before", "after"):
            async with running(echo(options, victim)):
                conversation = conversation or await ada.client.open_agent(options.agent_id)
                if text == "after":
                    await attacker.push(again(newest(attacker, "message.created"), 100))
                await answer_to(ada, partial(conversation.send, text))
        handled = tmp_path / "pins.json.handled"
        assert handled.stat().st_mode & 0o777 == 0o600
    assert victim.heard == ["before", "after"]

    # A line that was cut off by a crash, and lines of more than 31 days ago, are left out.
    whole = handled.read_text()
    old = whole.splitlines()[0].replace(whole.split(" ")[0], "1000")
    handled.write_text(f"{old}\n{whole}{whole.splitlines()[0][:-20]}")
    kept = await FilePins(path).load_handled()
    assert len(kept) == 2 and handled.read_text() == whole
    await FilePins(path).add_handled(kept[:1])
    assert await FilePins(path).load_handled() == [*kept, kept[0]]
