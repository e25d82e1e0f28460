"""The programs of the README, word for word, behind a server that lies, repeats, reorders and drops."""

from __future__ import annotations

import ast
import asyncio
import re
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacker import Attacker, again, attacking, changed, flipped, is_message
from live import ROOT, environment, online, process, texts, until

from blindpipe import AgentOptions
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.socket import Frame

MODEL = '''
async def model(text):
    for part in ("You said: ", text):
        yield part
'''
"""The developer's own part of the README's agent."""
ROUNDS = {"pinning": 6, "forgetful": 2}
"""Outages and deaths by turns, of an agent with a pin store and one without; five messages each."""
BETWEEN_SENDS_SECONDS = 0.11
"""A person may send ten messages a second."""


def _blocks() -> list[str]:
    readme = (ROOT / "clients/python/README.md").read_text()
    return re.findall(r"```python\n(.*?)```", readme, re.DOTALL)


def _lies(frame: Frame, later: int) -> list[Frame]:
    """The message of an event, altered in each part that says who said what to whom."""
    data, stranger = frame["data"], new_ulid()
    fields: list[dict[str, Any]] = [
        {"payload": flipped(data["payload"])},
        {"payload": {"type": "text", "text": "in clear"}},
        {"client_message_id": stranger},
        {"conversation_id": stranger},
        {"sender": {**data["sender"], "id": stranger}},
    ]
    return [again(changed(frame, **each), later) for each in fields]


class _Liar:
    """Lies before each message, tells it twice, drops the first telling, and exchanges two."""

    def __init__(self, attacker: Attacker) -> None:
        self._attacker = attacker
        self._held: Frame | None = None
        self._dropped = set[str]()
        self.exchanges = False
        self.drops = False
        self.later = 0
        """The place of a lie, after its message's."""
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
        return [each for one in told for each in (*_lies(one, self.later), one, again(one, 0))]


class _Person:
    """The README's person. It prints what was said, and in brackets why something was not."""

    def __init__(self, given: dict[str, Any], store: Path) -> None:
        self._store = store
        self.printed = list[str]()
        self.refused = list[str]()
        self.names: dict[str, Any] = {**given, "print": self._print}

    def _print(self, text: object) -> None:
        line = str(text)
        (self.refused if line.startswith("(") else self.printed).append(line)

    async def run(self) -> None:
        """Its functions stand below the code that calls them."""
        source = next(block for block in _blocks() if "Client.login" in block)
        source = source.replace('FileStore("ada")', f'FileStore("{self._store}")')
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
        person = _Person(_given(before_person, user, options), tmp_path / "ada")
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
            # The program starts anew, without a password, and shows nothing again.
            await person.names.pop("client").close()
            del person.names["password"]
            for liar in liars:
                liar.drops = False
            running = asyncio.create_task(person.run())
            said.append("Hello")
            await until(lambda: len(person.printed) == 7)
            running.cancel()
            await asyncio.wait([running])
        shown = await _answered(user.client.conversation(person.names["conversation"].id), said)
    wanted = sorted(f"You said: {text}" for text in said)
    assert sorted(shown) == wanted and sorted(person.printed) == wanted
    assert {"(clear)", "(bad_ciphertext)", "(malformed)"} <= set(person.refused)
    await person.names["client"].close()
    await user.client.close()


class _Mortal:
    """The README's agent in a process of its own, which is killed and started again."""

    def __init__(self, program: Path, env: dict[str, str]) -> None:
        self._program, self._env = program, env
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, self._program, env=self._env
        )
        return self._child

    async def die(self) -> None:
        """By SIGKILL. It must have lived until now."""
        child, self._child = self._child, None
        if child is not None:
            lived = child.returncode is None
            if lived:
                child.kill()
            assert await child.wait() == -signal.SIGKILL and lived, "it ended by itself"


async def _mortal_lane(cluster: DevCluster, folder: Path) -> None:
    """Outages and deaths of an agent while a person writes, behind a server that lies to both."""
    folder.mkdir()
    program = folder / "agent.py"
    program.write_text(MODEL + _blocks()[0])
    user = await cluster.user("reader")
    options = await cluster.agent("of the readme", user.client)
    async with attacking(cluster, 0) as before_person, attacking(cluster, 1) as before_agent:
        person = _Person(_given(before_person, user, options), folder / "ada")
        for attacker in (before_person, before_agent):
            # A victim that handles a lie in a message's own place acknowledges the message by that.
            _Liar(attacker).later = -1
        env = environment(cluster, replace(options, url=before_agent.url))
        if folder.name == "pinning":
            env["BLINDPIPE_PINS"] = str(folder / "pins")
        agent = _Mortal(program, env)
        said = ["Hello"]
        try:
            await online(await agent.start(), options, user)
            running = asyncio.create_task(person.run())
            await until(lambda: person.printed)

            async def say(count: int) -> None:
                for _ in range(count):
                    said.append(f"message {len(said)}")
                    await person.names["conversation"].send(said[-1])
                    await asyncio.sleep(BETWEEN_SENDS_SECONDS)

            for number in range(ROUNDS[folder.name]):
                is_death = number % 2 == 1
                told = len(before_agent.seen)
                await say(1)
                if is_death:
                    await until(lambda: any(map(is_message, before_agent.seen[told:])))
                    await agent.die()
                else:
                    before_agent.is_away = True
                    await before_agent.hang_up()
                    await before_person.hang_up()
                await say(3)
                if is_death:
                    await agent.start()
                before_agent.is_away = False
                await say(1)
                await until(lambda: before_agent.is_connected)
            await until(lambda: len(person.printed) >= len(said), seconds=20)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])
            shown = await _answered(user.client.conversation(person.names["conversation"].id), said)
        finally:
            await agent.die()
    wanted = [f"You said: {text}" for text in said]
    assert shown == wanted and person.printed == wanted
    assert {"(clear)", "(bad_ciphertext)", "(malformed)"} <= set(person.refused)
    await person.names["client"].close()
    await user.client.close()


async def test_the_agent_of_the_readme_dies_and_loses_its_server_and_answers_each_message_once(
    cluster: DevCluster, tmp_path: Path
) -> None:
    await asyncio.gather(*(_mortal_lane(cluster, tmp_path / lane) for lane in ROUNDS))


def _given(attacker: Attacker, user: TestUser, options: AgentOptions) -> dict[str, Any]:
    """The names that the README's person is given."""
    return {
        "url": attacker.url,
        "email": user.email,
        "password": user.password,
        "token": "dev-pass",
        "protection_password": user.protection_password,
        "agent_id": options.agent_id,
    }


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
