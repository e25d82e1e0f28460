"""How fast this client is: `python clients/python/speed.py`, or with `--backlog 10000`.

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
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from blindpipe import Agent, Context
from blindpipe.e2ee import EpochKey, Principal, PrivateKeys, envelope, wrap
from blindpipe.testing import DevCluster, TestUser, dev_cluster

ROOT = Path(__file__).parents[2]
PEOPLE = 20
LIMITS = ("auth_register_ip", "default_ip", "default_user", "user_message_send", "agent_tier_1")


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


async def backlog(cluster: DevCluster, events: int, pins: Path) -> None:
    """Fills an agent's inbox, and lets a process of its own empty it."""
    people = [await cluster.user(f"person{number}") for number in range(PEOPLE)]
    options = await cluster.agent("busy", people[0].client, node=0)
    first = Agent(options)
    await first.check()
    await first.close()

    async def fill(person: TestUser) -> None:
        conversation = await person.client.open_agent(options.agent_id)
        for number in range(events // PEOPLE):
            await conversation.send(f"message {number} {'x' * 200}")
        await person.client.close()

    start = time.perf_counter()
    await asyncio.gather(*map(fill, people))
    print(f"{events:>18} messages sent in {time.perf_counter() - start:.1f} s")
    environment = {
        **os.environ,
        "BLINDPIPE_URL": options.url,
        "BLINDPIPE_AGENT_ID": options.agent_id,
        "BLINDPIPE_TOKEN": options.token,
        "BLINDPIPE_KEY": str(options.key),
        "BLINDPIPE_PINS": str(pins),
        "SSL_CERT_FILE": cluster.ca_file,
    }
    command = (sys.executable, __file__, "--drain", str(events // PEOPLE * PEOPLE))
    draining = await asyncio.create_subprocess_exec(*command, env=environment)
    if await draining.wait() != 0:
        sys.exit("the backlog was not handled")


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
            environment={"LIMIT_OVERRIDES": overrides},
        )
        async with started as cluster:
            await backlog(cluster, arguments.backlog, Path(folder) / "pins.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlog", type=int, metavar="EVENTS", help="count handled events")
    parser.add_argument(
        "--program", default=ROOT / "target/release/devcluster", help="the development cluster"
    )
    parser.add_argument("--drain", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drain:
        drain(arguments.drain)
    elif arguments.backlog:
        asyncio.run(on_cluster(arguments))
    else:
        crypto()


main()
