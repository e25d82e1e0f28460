"""No text of people and agents is on the server: in no row, log, mail, object, and not in Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from live import MANIFEST, TOOLS, collect, from_agent, grant, running

from blindpipe import Agent, Context, NewFile
from blindpipe.client import ClientEvent, MessageEvent, ToolRequestEvent
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster


def files_with(folder: Path, *marks: str) -> dict[str, list[Path]]:
    """The files with each mark: of databases, their logs, the nodes' logs, objects and mails."""
    found: dict[str, list[Path]] = {mark: [] for mark in marks}
    for path in folder.rglob("*"):
        # Some come and go meanwhile.
        with suppress(OSError):
            content = path.read_bytes() if path.is_file() else b""
            for mark in marks:
                if mark.encode() in content:
                    found[mark].append(path)
    return found


class Redis:
    """The cluster's Redis, read to the last byte."""

    def __init__(self, folder: Path) -> None:
        url = urlsplit(json.loads((folder / "cluster.json").read_text())["redis_url"])
        self._command: list[str | Path] = [
            folder / "bin/redis-cli",
            "-h",
            str(url.hostname),
            "-p",
            str(url.port),
        ]
        self._env = {**os.environ, "REDISCLI_AUTH": str(url.password)}

    def call(self, *arguments: str | Path) -> str:
        command = [*self._command, *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True)
        return done.stdout

    def everything(self, file: Path) -> bytes:
        """Every key and value, as Redis writes it to a disk."""
        self.call("CONFIG", "SET", "rdbcompression", "no")
        self.call("--rdb", file)
        return file.read_bytes()

    def memory(self) -> bytes | None:
        """Values, buffers, and what was freed; None where the kernel lets nobody look."""
        told = dict(line.split(":", 1) for line in self.call("INFO").split("\n") if ":" in line)
        process, held = Path("/proc") / told["process_id"].strip(), bytearray()
        try:
            with open(process / "mem", "rb", buffering=0) as memory:
                for line in (process / "maps").read_text().split("\n"):
                    if " rw" in line:
                        start, end = (int(part, 16) for part in line.split(" ")[0].split("-"))
                        memory.seek(start)
                        # A guard page is no memory.
                        with suppress(OSError):
                            held += memory.read(end - start)
        except OSError:
            return None
        return bytes(held) or None


async def test_the_server_holds_none_of_what_is_said(cluster: DevCluster, tmp_path: Path) -> None:
    marks = {
        name: f"mark-{name}-{new_ulid()}"
        for name in ("text", "reply", "stream", "file-name", "file-content", "argument", "result")
    }
    title, ada = f"title-{new_ulid()}", await cluster.user("ada", tools=TOOLS)
    bob = await cluster.user("bob", node=1)
    options = await cluster.agent("discreet", ada.client, manifest=MANIFEST)
    agent = Agent(options)

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        async with ctx.stream() as out:
            out.write(marks["stream"])
        mail = {"text": marks["argument"]}
        result = await ctx.call("send_email", "notification:send", mail, prompt=marks["text"])
        assert result.result == marks["result"]
        await ctx.reply(marks["reply"])

    async def decide(events: list[ClientEvent]) -> bool:
        last = events[-1]
        if isinstance(last, ToolRequestEvent):
            await last.request.approve()
            await last.request.execute(lambda _tool, _mail: marks["result"])
        return sum(map(from_agent, events)) == 2

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        await grant(ada, conversation, options)
        events = await collect(ada, lambda: conversation.send(marks["text"]), decide)
    said = [each.text for each in events if isinstance(each, MessageEvent) and from_agent(each)]
    assert said == [marks["stream"], marks["reply"]]
    group = await ada.client.open_group([bob.client.user_id], title=title)
    file = NewFile(marks["file-name"], marks["file-content"].encode() * 40)
    await group.send_file(file)

    folder = Path(cluster.ca_file).parents[1]
    redis = Redis(folder)
    redis.call("SET", "planted", title)
    everything, memory = redis.everything(tmp_path / "redis.rdb"), redis.memory()
    redis.call("DEL", "planted")
    if memory is None:
        sys.stderr.write("*** The memory of Redis was not searched: the kernel refuses it.\n")
    # Titles are the server's to know, so the search finds one wherever it looks.
    for held in (everything, memory or everything):
        assert title.encode() in held
        assert [name for name, mark in marks.items() if mark.encode() in held] == []
    found = files_with(folder, title, *marks.values())
    assert found.pop(title)
    assert found == dict.fromkeys(marks.values(), [])
    for user in (ada, bob):
        await user.client.close()
