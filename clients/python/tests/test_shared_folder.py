"""The folder that processes in Python and in Rust share."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from crowd import Crowd
from live import environment
from support import stored_trust

from blindpipe import SharedFolder
from blindpipe.agent import StoreChanged
from blindpipe.core.session import Handled
from blindpipe.e2ee import Principal
from blindpipe.testing import DevCluster
from blindpipe.transport.clock import now_ms

PROGRAM = os.environ.get("INTEROP", "")
SHARER = Path(__file__).with_name("sharer.py")


def _message(conversation_id: str, ago_ms: int = 0) -> Handled:
    who = Principal.from_bytes(b"\x01" + bytes(16))
    return Handled(now_ms() - ago_ms, conversation_id, who, bytes(16))


async def test_a_folder_tells_what_others_have_saved(tmp_path: Path) -> None:
    one, other = SharedFolder(tmp_path), SharedFolder(tmp_path)
    assert await one.load() is None
    assert await other.load() is None
    await one.save(stored_trust("ada", "bob"))
    with pytest.raises(StoreChanged):
        await other.save(stored_trust("bob", "eve"))
    assert set((await other.news(None)).pins) == {"ada", "bob"}
    await other.save(stored_trust("bob", "eve"))
    assert set((await one.news(None)).pins) == {"bob", "eve"}
    assert not (await one.news(None)).pins
    # The marks of a conversation that this process has not entered come after a refusal.
    await one.save(stored_trust(talk=3))
    assert not (await other.news(None)).marks
    with pytest.raises(StoreChanged):
        await other.save(stored_trust(talk=2))
    assert (await other.news(None)).marks["talk"]["epoch"] == 3
    await other.save(stored_trust(talk=4))

    message, old = _message("talk"), _message("talk", 40 * 24 * 3_600_000)
    await one.add_handled([message, old])
    news = await other.news("talk")
    assert news.handled == [message, old]
    assert news.came_back
    assert not (await other.news("talk")).came_back
    assert (await one.news("talk")).came_back
    third = SharedFolder(tmp_path)
    stored = await third.load()
    assert stored is not None
    assert stored["marks"]["talk"]["epoch"] == 4
    assert await third.load_handled() == [message]
    for path in (tmp_path / "pins.log", tmp_path / "conversations" / "talk.log"):
        assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="no id"):
        await one.news("../pins")


async def test_news_that_could_not_be_told_come_again(tmp_path: Path) -> None:
    one, other = SharedFolder(tmp_path), SharedFolder(tmp_path)
    await one.save(stored_trust("ada"))
    log = tmp_path / "conversations" / "talk.log"
    log.write_text('{"format":2,"id":"of a later version"}\n')
    with pytest.raises(OSError, match="another format"):
        await other.news("talk")
    # A torn line of a process that was killed is cut off.
    log.write_text('{"format":1,"id":"a log"}\n{"by":"killed","mar')
    news = await other.news("talk")
    assert set(news.pins) == {"ada"}
    assert news.came_back
    assert "killed" not in log.read_text()


async def test_a_long_log_is_written_anew_while_others_read_it(tmp_path: Path) -> None:
    one, other = SharedFolder(tmp_path), SharedFolder(tmp_path)
    await other.news("talk")
    message, old = _message("talk"), _message("talk", 40 * 24 * 3_600_000)
    for _ in range(40):
        await one.add_handled([old])
        await one.add_handled([message])
        await one.save(stored_trust("ada", talk=3))
    before = (tmp_path / "conversations" / "talk.log").stat().st_size
    third = SharedFolder(tmp_path)
    await third.load()
    assert (tmp_path / "conversations" / "talk.log").stat().st_size < before / 2
    # Others read the new log as a whole, and the owner is still the same.
    news = await other.news("talk")
    assert not news.came_back
    assert news.handled == [message] * 40
    assert news.marks["talk"]["epoch"] == 3
    await one.add_handled([message])
    assert (await third.news("talk")).handled == [message]
    assert (await other.news("talk")).handled == [message]


@pytest.mark.skipif(not PROGRAM, reason="INTEROP names a Rust example; make sets it")
@pytest.mark.limit(90)
async def test_processes_in_python_and_rust_share_conversations(
    cluster: DevCluster, tmp_path: Path
) -> None:
    crowd = await Crowd.meet(cluster)

    async def until_connected() -> None:
        async with asyncio.timeout(40):
            path = f"/agents/{crowd.options.agent_id}"
            while len((await crowd.people[0].client.request("GET", path))["data"]["connections"]) < 2:
                await asyncio.sleep(0.1)

    async def start(*command: str | Path, node: int) -> asyncio.subprocess.Process:
        env = environment(cluster, crowd.options) | {"BLINDPIPE_URL": cluster.nodes[node]}
        env |= {"SHARED_DIRECTORY": str(tmp_path), "SHARED_STORE": "folder"}
        return await asyncio.create_subprocess_exec(*command, env=env)

    rust = Path(PROGRAM).with_name("sharer")
    starts: list[Callable[[], Awaitable[asyncio.subprocess.Process]]] = [
        lambda: start(sys.executable, SHARER, node=0),
        lambda: start(rust, node=1),
    ]
    children = [await each() for each in starts]
    dead: list[asyncio.subprocess.Process] = []
    try:
        await crowd.say(3)
        await crowd.until_answered(40)
        for _ in range(2):
            # The process that has a conversation is killed, so that of the other language takes it.
            answered_by = await crowd.answered_by()
            victim = next(n for n in range(2) if str(children[n].pid) == answered_by)
            children[victim].kill()
            dead.append(children[victim])
            await crowd.say(3)
            await crowd.until_answered(40)
            answered_by = await crowd.answered_by()
            assert answered_by == str(children[1 - victim].pid)
            children[victim] = await starts[victim]()
            await crowd.say(2)
            await crowd.until_answered(40)
            await until_connected()
        for child in children:
            child.send_signal(signal.SIGTERM)
            assert await child.wait() == 0
    finally:
        for child in children + dead:
            if child.returncode is None:
                child.kill()
    await crowd.check()
    await crowd.close()
