"""A client that knows 100,000 conversations starts soon, is small, and waits for none of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacker import Frozen, attacking
from live import Program, environment, program, until

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
OTHERS = [f"other {number}" for number in range(20)]

pytestmark = [pytest.mark.slow, pytest.mark.limit(300)]


@dataclass(frozen=True)
class Line:
    """A line of the program."""

    what: str
    seconds: float
    megabytes: int
    text: str

    @classmethod
    def of(cls, line: str) -> Line:
        what, seconds, megabytes, text = line.split(" ", 3)
        return cls(what, float(seconds), int(megabytes), text)


def _heard(run: Program) -> list[str]:
    lines = map(Line.of, run.lines)
    return [line.text for line in lines if line.what == "heard"]


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
    run: Program, frozen: Frozen, slow: Conversation, others: Sequence[Conversation]
) -> None:
    """The program starts, and one conversation that it does not know holds up no other one."""
    frozen.paths = (f"/conversations/{slow.id}",)
    await until(lambda: run.lines, 60)
    await slow.send("first")
    await frozen.is_read.wait()
    await slow.send("second")
    for number, text in enumerate(OTHERS):
        await others[number % len(others)].send(text)
    await until(lambda: len(_heard(run)) == len(OTHERS), 30)
    assert sorted(_heard(run)) == sorted(OTHERS)
    frozen.thaw()
    await until(lambda: len(_heard(run)) == len(OTHERS) + 2)
    assert _heard(run)[-2:] == ["first", "second"]
    ready, last = Line.of(run.lines[0]), Line.of(run.lines[-1])
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
        async with program("crowded.py", env | {"BLINDPIPE_PINS": str(pins)}) as run:
            await until(lambda: run.lines, 60)
            slow, other = [
                await each.client.open_agent(options.agent_id) for each in (ada, bob)
            ]
            await _is_not_held_up(run, frozen, slow, [other])


async def test_a_person_with_many_conversations_starts_soon_and_is_small(
    cluster: DevCluster, ada: TestUser, bob: TestUser, tmp_path: Path
) -> None:
    path = tmp_path / "carol"
    carol = await cluster.user("carol", store=FileStore(path))
    await carol.client.close()
    await _fill(FileStore(path), carol.client.me)
    async with attacking(cluster) as attacker:
        frozen = Frozen(attacker)
        async with program("crowded.py", dict(os.environ), attacker.url, path) as run:
            await until(lambda: run.lines, 60)
            slow, other = [
                await each.client.open_direct(carol.client.user_id) for each in (ada, bob)
            ]
            await _is_not_held_up(run, frozen, slow, [other])
