"""Several processes of one agent share its conversations."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import pytest
from crowd import Crowd
from live import ROOT, environment, texts
from support import stored_trust

from blindpipe import Agent, FilePins, PostgresStore, SharedPins, UsageError
from blindpipe.agent import POSTGRES_TABLES, StoreChanged
from blindpipe.core.session import Handled
from blindpipe.e2ee import Principal
from blindpipe.e2ee.keys import PrivateKeys
from blindpipe.e2ee.pins import Pin, Pins, Standing, StoredPrincipal, stored_pins
from blindpipe.e2ee.room import StoredMarks
from blindpipe.e2ee.trust import Trust
from blindpipe.testing import DevCluster
from blindpipe.transport.clock import now_ms

SHARER = Path(__file__).with_name("sharer.py")


def _handled(history: str) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
    """Per conversation, when which process handled something: begin, end, process."""
    open: dict[tuple[str, str], list[int]] = {}
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    last = 0
    for line in history.splitlines():
        at, process, what, conversation, _ = line.split(" ", 4)
        last = int(at)
        if what == "begins":
            open[(process, conversation)] = [last]
        else:
            begin = open.pop((process, conversation))[0]
            found[conversation].append((begin, last, int(process)))
    yield from found.items()


@pytest.mark.limit(90)
async def test_two_processes_answer_each_message_once_and_in_order(
    cluster: DevCluster, tmp_path: Path
) -> None:
    crowd = await Crowd.meet(cluster)

    async def start(node: int) -> asyncio.subprocess.Process:
        env = environment(cluster, crowd.options)
        env |= {"BLINDPIPE_URL": cluster.nodes[node], "SHARED_DIRECTORY": str(tmp_path)}
        return await asyncio.create_subprocess_exec(sys.executable, SHARER, env=env)

    children = [await start(0), await start(1)]
    try:
        await crowd.say(3)
        await crowd.until_answered(20)
        # A process that has conversations is killed, so others must take them.
        answered_by = await crowd.answered_by()
        victim = next(child for child in children if str(child.pid) == answered_by)
        dying = asyncio.create_task(crowd.say(6))
        await asyncio.sleep(0.3)
        victim.kill()
        await dying
        children.append(await start(0))
        await crowd.until_answered(40)
        await crowd.say(2)
        await crowd.until_answered(20)
        for child in children:
            if child is victim:
                continue
            child.send_signal(signal.SIGTERM)
            assert await child.wait() == 0
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
    await crowd.check()
    answering = {text.rpartition(" ")[2] for talk in crowd.talks for text in await texts(talk)}
    assert len(answering & {str(child.pid) for child in children}) > 1
    for conversation, turns in _handled((tmp_path / "history").read_text()):
        for one, other in zip(turns, turns[1:]):
            assert one[1] <= other[0], (conversation, one, other)
    await crowd.close()


async def test_a_tap_reaches_a_key_that_another_process_has_seen(
    cluster: DevCluster, tmp_path: Path
) -> None:
    ada = await cluster.user("ada")
    options = await cluster.agent("tapped", ada.client)
    stores = (SharedPins(tmp_path / "pins.db") for _ in range(2))
    one, other = (Agent(replace(options, pins=store)) for store in stores)
    await one.check()
    await other.check()
    talk = await ada.client.open_agent(options.agent_id)
    await talk.send("hello")
    await one.approve(talk.id, "sign")
    signer = ada.client.session.options.signer
    assert signer is not None
    tapped = False
    async with asyncio.timeout(20):
        while not tapped:
            # Keys are stored half a second after they are learned.
            await asyncio.sleep(0.1)
            with suppress(UsageError):
                await other.trust("user", ada.client.user_id, signer.key_id.hex())
                tapped = True
    with pytest.raises(UsageError):
        await other.trust("user", ada.client.user_id, bytes(16).hex())
    await one.close()
    await other.close()
    await ada.client.close()


async def test_a_store_of_one_process_is_refused(cluster: DevCluster, tmp_path: Path) -> None:
    ada = await cluster.user("ada")
    options = await cluster.agent("alone", ada.client)
    options = replace(options, pins=FilePins(tmp_path / "pins"))
    with pytest.raises(UsageError):
        await Agent(options).serve(shared=True)
    await ada.client.close()


def _of_user(n: int) -> Principal:
    return Principal.from_bytes(b"\x01" + bytes(15) + bytes([n]))


async def test_a_shared_store_tells_what_others_have_saved(tmp_path: Path) -> None:
    one, other = SharedPins(tmp_path / "pins.db"), SharedPins(tmp_path / "pins.db")
    assert await one.load() is None
    assert await other.load() is None
    await one.save(stored_trust("ada", "bob"))
    # A save over what was not read is refused as a whole.
    with pytest.raises(StoreChanged):
        await other.save(stored_trust("bob", "eve"))
    news = await other.news(None)
    assert set(news.pins) == {"ada", "bob"}
    await other.save(stored_trust("bob", "eve"))
    assert set((await one.news(None)).pins) == {"bob", "eve"}
    assert not (await one.news(None)).pins

    message = Handled(now_ms(), "c", _of_user(1), bytes(16))
    await one.add_handled([message])
    assert (await other.news(None)).handled == [message]
    assert (await one.news(None)).handled == []
    old = Handled(now_ms() - 40 * 24 * 3_600_000, "c", _of_user(1), bytes(16))
    await one.add_handled([old])
    third = SharedPins(tmp_path / "pins.db")
    await third.load()
    assert await third.load_handled() == [message]

    assert (await one.news("c")).came_back
    assert not (await one.news("c")).came_back
    assert (await other.news("c")).came_back
    assert (await one.news("c")).came_back
    assert (tmp_path / "pins.db").stat().st_mode & 0o077 == 0


async def test_a_store_in_postgres_is_one_for_all_languages(cluster: DevCluster) -> None:
    code = (ROOT / "clients/typescript/src/stores/postgres-store.ts").read_text()
    assert all(f"`{statement}`" in code for statement in POSTGRES_TABLES)
    address = json.loads(cluster.file.read_text())["postgres_url"]
    stores = urlsplit(address)._replace(path="/stores").geturl()
    admin = await asyncpg.connect(address)
    for statement in ("drop database if exists stores with (force)", "create database stores"):
        await admin.execute(statement)
    await admin.close()
    db = await asyncpg.create_pool(stores, min_size=1, max_size=2)
    for statement in POSTGRES_TABLES:
        await db.execute(statement)

    one, other = PostgresStore(db, "replies"), PostgresStore(db, "replies")
    assert await one.load() is None
    assert await other.load() is None
    marks: dict[str, StoredMarks] = {"c": {"epoch": 1, "time": 7}}
    await one.save(stored_trust("ada", "bob") | {"marks": marks})
    with pytest.raises(StoreChanged):
        await other.save(stored_trust("bob", "eve"))
    news = await other.news(None)
    assert (set(news.pins), dict(news.marks)) == ({"ada", "bob"}, {})
    await other.save(stored_trust("bob", "eve"))
    assert set((await one.news(None)).pins) == {"bob", "eve"}
    assert not (await one.news(None)).pins

    message = Handled(now_ms(), "c", _of_user(1), bytes(16))
    old = Handled(now_ms() - 40 * 24 * 3_600_000, "c", _of_user(1), bytes(15) + b"1")
    await one.add_handled([message, message, old])
    with pytest.raises(StoreChanged):
        await other.save(stored_trust() | {"marks": marks})
    news = await other.news("c")
    assert (news.came_back, dict(news.marks)) == (True, marks)
    assert sorted(each.at for each in news.handled) == [old.at, message.at]
    await other.save(stored_trust() | {"marks": marks})
    assert not (await other.news("c")).came_back
    assert (await one.news("c")).came_back
    third = PostgresStore(db, "replies")
    loaded = await third.load()
    assert loaded is not None
    assert set(loaded["pins"]["principals"]) == {"ada", "bob", "eve"}
    assert await third.load_handled() == [message]
    assert await PostgresStore(db, "audit").load() is None

    # Postgres has kept what a process saved, and the answer was lost.
    class Deaf:
        is_deaf = True

        async def fetch(self, query: str, /, *args: Any) -> Any:
            rows = await db.fetch(query, *args)
            if self.is_deaf and query.startswith("with given"):
                raise ConnectionError
            return rows

    deaf = Deaf()
    doubting = PostgresStore(deaf, "replies")
    await doubting.load()
    with pytest.raises(ConnectionError):
        await doubting.save(stored_trust("ann") | {"marks": {"d": marks["c"]}})
    deaf.is_deaf = False
    with pytest.raises(StoreChanged):
        await doubting.save(stored_trust("ann"))
    news = await doubting.news(None)
    assert (set(news.pins), dict(news.marks)) == ({"ann"}, {"d": marks["c"]})
    await doubting.save(stored_trust("ann") | {"marks": {"d": marks["c"]}})
    assert not (await doubting.news(None)).pins
    assert set((await one.news(None)).pins) == {"ann"}

    # What commits late is news.
    late = await asyncpg.connect(stores)
    slow = PostgresStore(late, "replies")
    await slow.load()
    transaction = late.transaction()
    await transaction.start()
    await slow.save(stored_trust("zoe"))
    await third.save(stored_trust("tim"))
    assert set((await one.news(None)).pins) == {"tim"}
    await transaction.commit()
    assert set((await one.news(None)).pins) == {"zoe"}
    await late.close()
    await db.close()


def test_of_pins_that_two_processes_changed_the_stricter_count() -> None:
    me, who = _of_user(9), _of_user(1)
    first, second = (PrivateKeys.random().public for _ in range(2))

    def stored(**standings: Standing) -> StoredPrincipal:
        keys = {"first": first, "second": second}
        pins = {
            keys[name].key_id: Pin(keys[name], None, standing, False)
            for name, standing in standings.items()
        }
        return stored_pins(Pins(pins))

    name = who.to_bytes().hex()
    before = {name: stored(first=Standing.KNOWN, second=Standing.WAITING)}
    trust = Trust(me, stored={"principals": before})
    # Only the other process has changed something: its entry counts.
    trust.take_over({name: stored(first=Standing.KNOWN, second=Standing.KNOWN)})
    assert trust.pin(who, second.key_id).standing == Standing.KNOWN  # type: ignore[union-attr]
    # Both have: here a tap, there a key that left.
    trust.confirm(who, first.key_id, now_ms())
    theirs = stored(first=Standing.VERIFIED, second=Standing.KNOWN)
    theirs["keys"][0]["retired"] = True
    trust.take_over({name: theirs})
    one, other = trust.pin(who, first.key_id), trust.pin(who, second.key_id)
    assert one is not None and one.retired and one.standing == Standing.VERIFIED
    assert other is not None and other.standing == Standing.WAITING
