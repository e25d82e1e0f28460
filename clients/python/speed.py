"""How fast this client is: `python clients/python/speed.py`, or with `--backlog 10000`.

`--shared 4` lets one process, and then so many, empty the inbox of an agent whose handler takes 5 ms.

`--conversations 100000` measures the store of an agent that has so many: its start, a change, memory.

Without options: envelopes and wraps that are sealed and opened a second. `--backlog` starts a
cluster of its own, and an agent in a process of its own that opens and handles an inbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from blindpipe import Agent, Context, SharedFolder
from blindpipe.stores.pin_store import FilePins, StoredEpochMarks
from blindpipe.core.session import MAX_ROOMS, Handled, Session, SessionOptions
from blindpipe.e2ee import EpochKey, Principal, PrivateKeys, envelope, wrap
from blindpipe.e2ee.ids import ulid
from blindpipe.e2ee.room import EpochMarks, StoredMarks
from blindpipe.e2ee.trust import DirectoryKey, Trust
from blindpipe.testing import DevCluster, TestUser, dev_cluster
from blindpipe.transport.clock import now_ms
from blindpipe.transport.http import Http

ROOT = Path(__file__).parents[2]
PEOPLE = 20
SHARED_PEOPLE = 60
SHARED_EVENTS = 36
SHARED_SECONDS = 6
HANDLER_SECONDS = 0.005
AGENT = Principal.agent(bytes(16))
LIMITS = (
    "auth_register_ip",
    "default_ip",
    "default_user",
    "user_message_send",
    "agent_tier_1",
    "keys_lookup",
)


def report(what: str, run: Callable[[], object]) -> None:
    # Time of this process, so that others on the machine do not count.
    start, count = time.process_time(), 0
    while time.process_time() - start < 1:
        run()
        count += 1
    each = (time.process_time() - start) / count
    print(f"{what:>18}: {count:>7} a second, {each * 1e6:.0f} µs each")


def crypto() -> None:
    key, keys = EpochKey.random(bytes(16), 1), PrivateKeys.random()
    sender, place = Principal.user(bytes(16)), envelope.Message(bytes(16))
    content = json.dumps({"type": "text", "text": "x" * 200}).encode()
    sealed = envelope.seal(key, sender, keys, place, 1, content)
    report("envelopes sealed", lambda: envelope.seal(key, sender, keys, place, 1, content))
    report(
        "envelopes opened",
        lambda: envelope.open(
            sealed, bytes(16), sender, place, lambda _e, _s: key, lambda _k: keys.public
        ),
    )
    rotation = wrap.Rotation(key, bytes(16), keys, 1)
    wrapped = wrap.seal(rotation, sender, keys.public)
    report("wraps sealed", lambda: wrap.seal(rotation, sender, keys.public))
    report(
        "wraps opened",
        lambda: wrap.open(wrapped, bytes(16), 1, sender, keys, lambda _p, _k: None),
    )


async def made(cluster: DevCluster, owner: TestUser) -> dict[str, str]:
    """The environment of a new agent."""
    options = await cluster.agent("busy", owner.client, node=0)
    first = Agent(options)
    await first.check()
    await first.close()
    return {
        **os.environ,
        "BLINDPIPE_URL": options.url,
        "BLINDPIPE_AGENT_ID": options.agent_id,
        "BLINDPIPE_TOKEN": options.token,
        "BLINDPIPE_KEY": str(options.key),
        "SSL_CERT_FILE": cluster.ca_file,
    }


async def fill(people: Sequence[TestUser], agent_id: str, events: int) -> None:
    """Each of these people sends the agent so many messages."""

    async def say(person: TestUser) -> None:
        conversation = await person.client.open_agent(agent_id)
        for number in range(events):
            await conversation.send(f"message {number} {'x' * 200}")

    start = time.perf_counter()
    await asyncio.gather(*map(say, people))
    sent = events * len(people)
    print(f"{sent:>18} messages sent in {time.perf_counter() - start:.1f} s")


async def backlog(cluster: DevCluster, events: int, pins: Path) -> None:
    """Fills an agent's inbox, and lets a process of its own empty it."""
    people = [await cluster.user(f"person{number}") for number in range(PEOPLE)]
    environment = await made(cluster, people[0])
    await fill(people, environment["BLINDPIPE_AGENT_ID"], events // PEOPLE)
    environment["BLINDPIPE_PINS"] = str(pins)
    command = (sys.executable, __file__, "--drain", str(events // PEOPLE * PEOPLE))
    draining = await asyncio.create_subprocess_exec(*command, env=environment)
    if await draining.wait() != 0:
        sys.exit("the backlog was not handled")


async def shared(cluster: DevCluster, processes: int, folder: Path) -> None:
    """The pace of one process, and of several on two nodes, each of whose handlers takes 5 ms."""
    people = [await cluster.user(f"person{number}") for number in range(SHARED_PEOPLE)]
    alone = await pace(cluster, people, 1, folder / "one")
    together = await pace(cluster, people, processes, folder / "several")
    print(f"{'one process':>18}: {alone:.0f} events a second")
    print(f"{f'{processes} processes':>18}: {together:.0f}, {together / alone:.2f} times as many")


async def pace(
    cluster: DevCluster, people: Sequence[TestUser], processes: int, folder: Path
) -> float:
    """Events a second of processes that all have their share of the conversations."""
    environment = await made(cluster, people[0])
    agent_id = environment["BLINDPIPE_AGENT_ID"]
    folder.mkdir()

    async def run(number: int, times: list[float]) -> None:
        node = cluster.nodes[number % len(cluster.nodes)]
        env = environment | {"BLINDPIPE_URL": node, "SHARED_DIRECTORY": str(folder)}
        child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--share", env=env, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            while await child.stdout.readline():
                times.append(time.perf_counter())
        finally:
            child.kill()
            await child.wait()

    times = [list[float]() for _ in range(processes)]
    runs = [asyncio.create_task(run(number, own)) for number, own in enumerate(times)]
    while len((await people[0].client.agents.get(agent_id))["connections"]) < processes:
        await asyncio.sleep(0.1)
    await fill(people, agent_id, SHARED_EVENTS * processes)
    while not all(times):
        await asyncio.sleep(0.01)
    begin = time.perf_counter()
    await asyncio.sleep(SHARED_SECONDS)
    end = time.perf_counter()
    for one in runs:
        one.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    if min(own[-1] for own in times) < end - 0.5:
        print("a process had nothing left to do: the inbox was too short")
    return sum(begin <= at <= end for own in times for at in own) / (end - begin)


def share() -> None:
    """A process of a shared agent. It writes a line for each event that it has handled."""
    agent = Agent.from_env(
        logger=logging.getLogger("speed"), pins=SharedFolder(os.environ["SHARED_DIRECTORY"])
    )

    @agent.on("message")
    async def handle(ctx: Context) -> None:
        assert ctx.text.startswith("message") and ctx.encrypted
        # Nothing else of this process runs meanwhile, as with most code that is no coroutine.
        time.sleep(HANDLER_SECONDS)
        print(flush=True)

    agent.run(shared=True)


def drain(events: int) -> None:
    """Handles an inbox: its pace by the clock, its cost in this process alone, its memory."""
    # The cost of the log is not measured.
    agent, handled = Agent.from_env(logger=logging.getLogger("speed")), 0

    @agent.on("message")
    async def handle(ctx: Context) -> None:
        nonlocal handled
        assert ctx.text.startswith("message") and ctx.encrypted
        handled += 1
        if handled == events:
            agent.stop()

    before, start, cpu = peak_megabytes(), time.perf_counter(), time.process_time()
    agent.run()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"{'backlog handled':>18}: {handled / seconds:>7.0f} a second by the clock")
    cost = f"{cpu / handled * 1e6:.0f} µs each"
    print(f"{'the client alone':>18}: {handled / cpu:>7.0f} a second, {cost}")
    print(f"{'memory':>18}: {before:.0f} MB before, {peak_megabytes():.0f} MB at most")


def fill_store(path: Path, conversations: int) -> None:
    """The store of an agent that has talked with so many people, and handled a message of each."""
    trust, keys = Trust(AGENT), PrivateKeys.random().public
    shown = DirectoryKey("phone", keys.public_key, keys.signing_public_key, ("bp1",))
    marks: dict[str, StoredMarks] = {}
    handled: list[Handled] = []
    for number in range(conversations):
        person, id = Principal.user(number.to_bytes(16, "big")), name_of(number)
        trust.directory(person, [shown], 1)
        marks[id] = EpochMarks(3, 1, {person: "all", AGENT: "all"}, encrypted=True).store()
        handled.append(Handled(now_ms(), id, person, bytes(16)))
    store = FilePins(path)
    asyncio.run(store.save({"pins": trust.store(), "marks": marks}))
    asyncio.run(store.add_handled(handled))


def name_of(number: int) -> str:
    return ulid(number.to_bytes(16, "big"))


async def open_store(path: Path) -> None:
    """A start with that store, then every conversation is used once."""
    before, start = peak_megabytes(), time.perf_counter()
    store = FilePins(path)
    stored = await store.load()
    assert stored is not None
    trust = Trust(AGENT, stored=stored["pins"])
    options = SessionOptions(
        http=cast(Http, None),
        me=AGENT,
        signer=None,
        opening=(),
        device_id=None,
        trust=trust,
        marks=StoredEpochMarks(stored["marks"]),
        allows_clear=True,
        on_notice=lambda *_: None,
    )
    session = Session(options)
    session.resume_handled(await store.load_handled())
    seconds, conversations = time.perf_counter() - start, len(stored["marks"])
    print(f"{'start':>18}: {seconds:.2f} s, {peak_megabytes() - before:.0f} MB more than before")
    start = time.perf_counter()
    for number in range(conversations):
        person = Principal.user(number.to_bytes(16, "big"))
        assert session.is_remembered(name_of(number), person, name_of(0))
        assert trust.is_known(person)
    each = (time.perf_counter() - start) / conversations
    print(f"{'a use of each':>18}: {each * 1e6:.0f} µs, {MAX_ROOMS} rooms stay in memory")
    start, changes = time.perf_counter(), 100
    for number in range(changes):
        person = Principal.user(number.to_bytes(16, "big"))
        trust.link(person, bytes(16), number)
        await store.save({"pins": trust.take_changed()[1], "marks": {}})
    each = (time.perf_counter() - start) / changes
    print(f"{'a change is kept':>18}: {each * 1e3:.1f} ms")
    print(f"{'memory':>18}: {before:.0f} MB before, {peak_megabytes():.0f} MB at most")


def peak_megabytes() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    kilobytes = re.search(r"VmHWM:\s*(\d+)", status)
    return int(kilobytes[1]) / 1024 if kilobytes else 0.0


async def on_cluster(arguments: argparse.Namespace) -> None:
    overrides = ",".join(f"{name}=1000000/min" for name in LIMITS)
    with tempfile.TemporaryDirectory() as folder:
        started = dev_cluster(
            folder,
            program=arguments.program,
            arguments=["--packages", str(ROOT / ".dev/packages")],
            environment={"LIMIT_OVERRIDES": overrides, "AGENT_CONNECTIONS": "16"},
        )
        async with started as cluster:
            if arguments.shared:
                await shared(cluster, arguments.shared, Path(folder))
            else:
                await backlog(cluster, arguments.backlog, Path(folder) / "pins.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, help="measure a store of so many")
    parser.add_argument("--open-store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--backlog", type=int, metavar="EVENTS", help="count handled events")
    parser.add_argument("--shared", type=int, metavar="PROCESSES", help="compare with one process")
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--program", default=ROOT / "target/release/devcluster", help="the development cluster"
    )
    parser.add_argument("--drain", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drain:
        drain(arguments.drain)
    elif arguments.open_store:
        asyncio.run(open_store(arguments.open_store))
    elif arguments.conversations:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pins"
            fill_store(path, arguments.conversations)
            command = (sys.executable, __file__, "--open-store", str(path))
            subprocess.run(command, check=True)
    elif arguments.share:
        share()
    elif arguments.backlog or arguments.shared:
        asyncio.run(on_cluster(arguments))
    else:
        crypto()


main()
