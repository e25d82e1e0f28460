"""A client that knows 100,000 conversations starts soon, is small, and waits for none of them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacker import Frozen, attacking
from live import ROOT, environment, until

from blindpipe import Conversation, FilePins, FileStore
from blindpipe.core.session import Handled
from blindpipe.e2ee import Principal, PrivateKeys, ids
from blindpipe.e2ee.room import EpochMarks, StoredMarks
from blindpipe.e2ee.trust import DirectoryKey, Trust
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.clock import now_ms

CONVERSATIONS = 100_000
MAX_START_SECONDS = 5.0
"""Of the process's own work, from its begin until it has heard all that waited."""
MAX_MEGABYTES = 200
PROGRAM = Path(__file__).with_name("crowded.py")
OTHERS = [f"other {number}" for number in range(20)]

pytestmark = [pytest.mark.slow, pytest.mark.limit(300)]


@dataclass(frozen=True)
class Line:
    """A line of the program."""

    what: str
    seconds: float
    megabytes: int
    text: str


class Program:
    """The program, and what it has written."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    @property
    def heard(self) -> list[str]:
        return [line.text for line in self.lines if line.what == "heard"]

    async def listen(self, written: asyncio.StreamReader) -> None:
        async for line in written:
            what, seconds, megabytes, text = line.decode().rstrip("\n").split(" ", 3)
            self.lines.append(Line(what, float(seconds), int(megabytes), text))


@asynccontextmanager
async def running(env: dict[str, str], *arguments: str | Path) -> AsyncIterator[Program]:
    """Runs the program for the time of a block."""
    command = [sys.executable, PROGRAM, *arguments]
    child = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    program = Program()
    listening = asyncio.create_task(program.listen(child.stdout))
    try:
        yield program
        assert child.returncode is None, "the program has ended by itself"
    finally:
        if child.returncode is None:
            child.kill()
        await asyncio.gather(child.wait(), listening)


async def _fill(store: FilePins | FileStore, me: Principal) -> None:
    """The store has talked with so many people, and was told a message by each."""
    trust, keys = Trust(me), PrivateKeys.random().public
    shown = DirectoryKey("phone", keys.public_key, keys.signing_public_key, ("bp1",))
    marks: dict[str, StoredMarks] = {}
    handled: list[Handled] = []
    for number in range(CONVERSATIONS):
        person, id = Principal.user(number.to_bytes(16, "big")), ids.ulid(number.to_bytes(16, "big"))
        trust.directory(person, [shown], 1)
        marks[id] = EpochMarks(3, 1, {person: "all", me: "all"}, encrypted=True).store()
        handled.append(Handled(now_ms(), id, person, bytes(16)))
    await store.save({"pins": trust.store(), "marks": marks})
    await store.add_handled(handled)


async def _is_not_held_up(
    program: Program, frozen: Frozen, slow: Conversation, others: Sequence[Conversation]
) -> None:
    """The program starts, and one conversation that it does not know holds up no other one."""
    frozen.paths = (f"/conversations/{slow.id}",)
    await until(lambda: program.lines, 60)
    await slow.send("first")
    await frozen.is_read.wait()
    await slow.send("second")
    for number, text in enumerate(OTHERS):
        await others[number % len(others)].send(text)
    await until(lambda: len(program.heard) == len(OTHERS), 30)
    assert sorted(program.heard) == sorted(OTHERS)
    frozen.thaw()
    await until(lambda: len(program.heard) == len(OTHERS) + 2)
    assert program.heard[-2:] == ["first", "second"]
    ready, last = program.lines[0], program.lines[-1]
    assert ready.what == "ready" and ready.seconds < MAX_START_SECONDS
    assert last.megabytes <= MAX_MEGABYTES


async def test_an_agent_with_many_conversations_starts_soon_and_is_small(
    cluster: DevCluster, ada: TestUser, bob: TestUser, tmp_path: Path
) -> None:
    options, pins = await cluster.agent("crowded", ada.client), tmp_path / "pins"
    await _fill(FilePins(pins), ids.principal("agent", options.agent_id))
    async with attacking(cluster) as attacker:
        frozen = Frozen(attacker)
        env = environment(cluster, options) | {"BLINDPIPE_URL": attacker.url}
        async with running(env | {"BLINDPIPE_PINS": str(pins)}) as program:
            await until(lambda: program.lines, 60)
            slow, other = [
                await each.client.open_agent(options.agent_id) for each in (ada, bob)
            ]
            await _is_not_held_up(program, frozen, slow, [other])


async def test_a_person_with_many_conversations_starts_soon_and_is_small(
    cluster: DevCluster, ada: TestUser, bob: TestUser, tmp_path: Path
) -> None:
    path, env = tmp_path / "carol", {**os.environ, "PYTHONPATH": str(ROOT / "clients/python/src")}
    carol = await cluster.user("carol", store=FileStore(path))
    await carol.client.close()
    await _fill(FileStore(path), carol.client.me)
    async with attacking(cluster) as attacker:
        frozen = Frozen(attacker)
        async with running(env, attacker.url, path) as program:
            await until(lambda: program.lines, 60)
            slow, other = [
                await each.client.open_direct(carol.client.user_id) for each in (ada, bob)
            ]
            await _is_not_held_up(program, frozen, slow, [other])
