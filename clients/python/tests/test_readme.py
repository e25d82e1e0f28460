"""The programs of the README, word for word, behind a server that lies, repeats, reorders and drops."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacker import Attacker, attacking, changed, flipped, is_message
from live import ROOT, environment, process, texts, until

from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster
from blindpipe.transport.socket import Frame

MODEL = '''
async def model(text):
    for part in ("You said: ", text):
        yield part
'''
"""The developer's own part of the README's agent."""


def _blocks() -> list[str]:
    readme = (ROOT / "clients/python/README.md").read_text()
    return re.findall(r"```python\n(.*?)```", readme, re.DOTALL)


def _lies(frame: Frame) -> list[Frame]:
    """The message of an event, altered in each part that says who said what to whom."""
    data, stranger = frame["data"], new_ulid()
    fields: list[dict[str, Any]] = [
        {"payload": flipped(data["payload"])},
        {"payload": {"type": "text", "text": "in clear"}},
        {"client_message_id": stranger},
        {"conversation_id": stranger},
        {"sender": {**data["sender"], "id": stranger}},
    ]
    return [{**changed(frame, **each), "event_id": new_ulid()} for each in fields]


class _Liar:
    """Lies before each message, tells it twice, drops the first telling, and exchanges two."""

    def __init__(self, attacker: Attacker) -> None:
        self._attacker = attacker
        self._held: Frame | None = None
        self._dropped = set[str]()
        self.exchanges = False
        self.drops = False
        attacker.on_frame = self._on_frame

    def _on_frame(self, frame: Frame) -> Iterable[Frame]:
        if not is_message(frame):
            return (frame,)
        if self.drops and frame["event_id"] not in self._dropped:
            self._dropped.add(frame["event_id"])
            return ()
        if self.exchanges and self._held is None:
            self._held = frame
            return ()
        held, self._held = self._held, None
        told = [frame, *([held] if held else [])]
        return [each for one in told for each in (*_lies(one), one, {**one, "event_id": new_ulid()})]


class _Person:
    """The README's person. It prints what was said, and in brackets why something was not."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.printed = list[str]()
        self.refused = list[str]()
        self.names: dict[str, Any] = {**given, "print": self._print}

    def _print(self, text: object) -> None:
        line = str(text)
        (self.refused if line.startswith("(") else self.printed).append(line)

    async def run(self) -> None:
        """Its functions stand below the code that calls them."""
        source = next(block for block in _blocks() if "Client.login" in block)
        main, functions = re.split(r"(?=^async def show)", source, maxsplit=1, flags=re.MULTILINE)
        for part in (functions, main):
            code = compile(part, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, self.names)
            if waiting is not None:
                await waiting


async def test_the_programs_of_the_readme_behind_an_active_server(
    cluster: DevCluster, tmp_path: Path
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(MODEL + _blocks()[0])
    user = await cluster.user("reader")
    options = await cluster.agent("of the readme", user.client)
    async with attacking(cluster, 0) as before_person, attacking(cluster, 1) as before_agent:
        person = _Person(
            {
                "url": before_person.url,
                "email": user.email,
                "password": user.password,
                "token": "dev-pass",
                "protection_password": user.protection_password,
                "agent_id": options.agent_id,
            }
        )
        liars = [_Liar(before_person), _Liar(before_agent)]
        behind = replace(options, url=before_agent.url)
        env = environment(cluster, behind) | {"BLINDPIPE_PINS": str(tmp_path / "pins")}
        async with process([sys.executable, program], env, options, user):
            running = asyncio.create_task(person.run())
            said = ["Hello"]
            await until(lambda: len(person.printed) == 1)

            async def say(*all: str) -> None:
                for text in all:
                    await person.names["conversation"].send(text)
                said.extend(all)

            await say("one")
            await until(lambda: len(person.printed) == 2)
            liars[1].exchanges = True
            await say("two", "three")
            await until(lambda: len(person.printed) == 4)
            liars[1].exchanges = False
            # A dropped event comes again after the next connection.
            for liar in liars:
                liar.drops = True
            await say("four")
            await asyncio.sleep(0.3)
            await before_agent.hang_up()
            shown = await _answered(user.client.conversation(person.names["conversation"].id), said)
            await before_person.hang_up()
            await until(lambda: len(person.printed) == 5)
            # An invented wish runs nothing and ends nothing.
            await before_person.push(_invented(before_person, options.agent_id))
            await say("five")
            await asyncio.sleep(0.3)
            await before_agent.hang_up()
            await asyncio.sleep(0.3)
            await before_person.hang_up()
            await until(lambda: len(person.printed) == 6)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])
        shown = await _answered(user.client.conversation(person.names["conversation"].id), said)
    wanted = sorted(f"You said: {text}" for text in said)
    assert sorted(shown) == wanted and sorted(person.printed) == wanted
    assert {"(clear)", "(bad_ciphertext)", "(malformed)"} <= set(person.refused)
    await person.names["client"].close()
    await user.client.close()


async def _answered(conversation: Any, said: list[str]) -> list[str]:
    """The agent's answers, once there are enough."""
    async with asyncio.timeout(20):
        while True:
            answers = [each for each in await texts(conversation) if each not in said]
            if len(answers) >= len(said):
                return answers
            await asyncio.sleep(0.1)


def _invented(attacker: Attacker, agent_id: str) -> Frame:
    told = next(frame for frame in reversed(attacker.seen) if is_message(frame))
    call = {
        "request_id": new_ulid(),
        "agent_id": agent_id,
        "user_id": told["data"]["sender"]["id"],
        "conversation_id": told["data"]["conversation_id"],
        "tool": "send_email",
        "scope": "notification:send",
        "sensitivity": "low",
        "created_at": told["created_at"],
        "payload": told["data"]["payload"],
    }
    return {**told, "event_id": new_ulid(), "event": "artifact_request", "data": call}
