"""How fast this client is: `python clients/python/speed.py`, or with `--backlog 10000`.

Without options: envelopes and wraps that are sealed and opened a second. `--backlog` starts a
cluster of its own and counts the events of an inbox that an agent opens and handles a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blindpipe import Agent, Context
from blindpipe.e2ee import EpochKey, Principal, PrivateKeys, envelope, wrap
from blindpipe.testing import DevCluster, TestUser, dev_cluster

ROOT = Path(__file__).parents[2]
PEOPLE = 20
LIMITS = ("auth_register_ip", "default_ip", "default_user", "user_message_send", "agent_tier_1")


def report(what: str, run: Callable[[], object]) -> None:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 1:
        run()
        count += 1
    each = (time.perf_counter() - start) / count
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


async def backlog(cluster: DevCluster, events: int) -> None:
    people = [await cluster.user(f"person{number}") for number in range(PEOPLE)]
    options = await cluster.agent("busy", people[0].client, node=0)
    # The cost of the log is not measured.
    options = replace(options, logger=logging.getLogger("speed"))
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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    agent, handled = Agent(options), 0

    @agent.on("message")
    async def handle(ctx: Context) -> None:
        nonlocal handled
        assert ctx.text.startswith("message") and ctx.encrypted
        handled += 1
        if handled == events // PEOPLE * PEOPLE:
            agent.stop()

    start = time.perf_counter()
    await agent.serve()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{'backlog handled':>18}: {handled / seconds:>7.0f} a second, {grown:.0f} MB more memory"
    )


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
            await backlog(cluster, arguments.backlog)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlog", type=int, metavar="EVENTS", help="count handled events")
    parser.add_argument(
        "--program", default=ROOT / "target/release/devcluster", help="the development cluster"
    )
    arguments = parser.parse_args()
    if arguments.backlog:
        asyncio.run(on_cluster(arguments))
    else:
        crypto()


main()
