"""A person's process that is killed with `kill -9` during a talk, again and again."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from attacker import Attacker, attacking
from live import Program, program

from blindpipe import Client, ClientOptions, Conversation, FileStore
from blindpipe.e2ee.ids import ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.acks import ACK_INTERVAL_SECONDS
from blindpipe.transport.socket import Frame

KILLS = int(os.environ.get("KILLS", "10"))
"""`KILLS=200` for the long form."""
BETWEEN_SENDS_SECONDS = 0.15
"""A person may send ten messages a second."""
TALK_SECONDS = 2 * ACK_INTERVAL_SECONDS
"""A life that talks has stored some of what it has shown, and dies before the rest."""


def _life(attacker: Attacker, path: Path) -> AbstractAsyncContextManager[Program]:
    return program("person.py", dict(os.environ), attacker.url, path)


def _ids(life: Program) -> list[str]:
    """The ids of the messages that a life has shown, in their order."""
    return [line.partition(" ")[0] for line in life.lines]


def _texts(life: Program) -> list[str]:
    return [line.partition(" ")[2] for line in life.lines]


async def _stored(path: Path) -> set[str]:
    """The messages that the program's store has as shown."""
    return {ulid(each.client_message_id) for each in await FileStore(path).load_handled()}


async def _seen(talk: Conversation) -> list[str]:
    read = [received.text or "" async for received in talk.history()]
    return [text for text in reversed(read) if text.startswith("seen ")]


@pytest.mark.limit(150)
async def test_a_person_whose_program_is_killed_again_and_again_loses_no_message(
    cluster: DevCluster, bob: TestUser, tmp_path: Path
) -> None:
    path, sent = tmp_path / "ada", list[str]()
    async with attacking(cluster) as attacker:
        options = ClientOptions(attacker.url, store=FileStore(path))
        ada = await cluster.user("ada", url=attacker.url, ssl_context=None, store=options.store)
        talk = await bob.client.open_direct(ada.client.user_id)
        await ada.client.close()

        is_over = loses_acks = False
        acks: list[str] = []

        def on_client_frame(frame: Frame) -> Frame:
            if frame["type"] != "ack":
                return frame
            acks.append(frame["cursor"])
            return {**frame, "cursor": acks[0 if loses_acks else -1]}

        async def say() -> None:
            while not is_over:
                await talk.send(f"{len(sent)}")
                sent.append(f"{len(sent)}")
                await asyncio.sleep(BETWEEN_SENDS_SECONDS)

        attacker.on_client_frame = on_client_frame
        saying = asyncio.create_task(say())
        begun = time.monotonic()
        async with _life(attacker, path) as life:
            await life.has_written.wait()
        start_seconds = time.monotonic() - begun
        lives = [life]
        # Half of them die in their start, evenly spread over it, and half while they talk.
        for place in random.sample(range(KILLS), KILLS):
            stored = await _stored(path)
            # The service sends all again that it did not hear of, also what the store has.
            loses_acks = place % 4 < 2
            async with _life(attacker, path) as life:
                if place % 2:
                    await asyncio.sleep(place * start_seconds / KILLS)
                else:
                    await life.has_written.wait()
                    await asyncio.sleep(random.uniform(0, TALK_SECONDS))
            lives.append(life)
            assert not stored & set(_ids(life)), "a message that was stored is shown again"
        is_over, loses_acks = True, False
        await saying

        stored = await _stored(path)
        async with _life(attacker, path) as last, asyncio.timeout(40):
            wanted = [f"seen {text}" for text in sent]
            while len(await _seen(talk)) < len(wanted):
                await asyncio.sleep(0.2)
        assert not stored & set(_ids(last))
        assert await _seen(talk) == wanted
        for life in [*lives, last]:
            assert _texts(life) == sorted(set(_texts(life)), key=int)
        assert {text for life in [*lives, last] for text in _texts(life)} == set(sent)

        async with await Client.resume(options) as resumed:
            await resumed.conversation(talk.id).send("still here")
        newest = await anext(aiter(talk.history(limit=1)))
        assert newest.text == "still here"
