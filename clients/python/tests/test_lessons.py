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
from blindpipe.stores.pin_store import FilePins, StoredTrust
from blindpipe.e2ee.room import StoredMarks
from blindpipe.hooks import Hooks
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.acks import ACK_INTERVAL_SECONDS, Acks
from blindpipe.transport.socket import Frame
from live import answer_to, cursor_number, running, until

ROTATIONS = 3


class Store:
    """A developer's store that takes its time."""

    def __init__(self) -> None:
        self.marks: dict[str, StoredMarks] = {}

    async def load(self) -> StoredTrust | None:
        return None

    async def save(self, trust: StoredTrust) -> None:
        await asyncio.sleep(0.01)
        self.marks.update(trust["marks"])

    def epoch(self, conversation_id: str) -> int:
        marks = self.marks.get(conversation_id)
        return marks["epoch"] if marks else 0


def _watch_acks(attacker: Attacker, transport: str, on_ack: Callable[[int], None]) -> None:
    """Tells the number of each acknowledgement as the server gets it."""

    def on_client_frame(frame: Frame) -> Frame:
        if frame["type"] == "ack":
            on_ack(cursor_number(frame["cursor"]))
        return frame

    def on_path(path: str) -> str:
        # The cursor of a poll is what it acknowledges.
        for cursor in parse_qs(urlsplit(path).query).get("cursor", ()):
            if "/messages/poll" in path:
                on_ack(cursor_number(cursor))
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


@pytest.mark.parametrize("transport", ["socket", "poll"])
async def test_nothing_is_acknowledged_until_a_store_is_mended(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    class Full(Store):
        is_full = True

        async def save(self, trust: StoredTrust) -> None:
            if self.is_full:
                raise OSError("no space")
            await super().save(trust)

    store, victim, acks, failures = Full(), Victim(), list[int](), list[None]()
    hooks: Hooks = {"store_failed": lambda: failures.append(None)}
    async with attacking(cluster) as attacker:
        made = await cluster.agent("unkept", ada.client)
        options = replace(made, url=attacker.url, ssl_context=None, pins=store, hooks=hooks)
        conversation = await ada.client.open_agent(made.agent_id)
        async with running(echo(options, victim), transport=transport):
            _watch_acks(attacker, transport, acks.append)
            await answer_to(ada, partial(conversation.send, "one"))
            # A poll names the last acknowledgement again and again.
            before = set(acks)
            await answer_to(ada, partial(conversation.send, "two"))
            await asyncio.sleep(5 * ACK_INTERVAL_SECONDS)
            assert set(acks) == before and failures
            store.is_full = False
            await until(lambda: max(acks, default=0) > max(before, default=0))
            assert store.marks
    assert victim.heard == ["one", "two"]
    assert "the pins could not be stored" in caplog.text


async def test_many_lessons_are_stored_together() -> None:
    class Keeper:
        waiting = False
        saves = 0

        async def save(self) -> bool:
            self.saves += 1
            self.waiting = False
            return True

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
