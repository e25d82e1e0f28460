"""An active server lists keys of its own beside a key that people compared or a link named."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from attacker import Attacker, Json, Victim, attacked_person, attacking
from live import running, texts

from blindpipe import Agent, BlindpipeError, KeyUnavailable, UsageError
from blindpipe.e2ee import PrivateKeys, to_base64, wrap
from blindpipe.testing import DevCluster, TestUser

NOT_GIVEN = to_base64(wrap.NOT_GIVEN)


@dataclass
class _Evil:
    """The server lists a key of its own for somebody, and sees what it is given."""

    attacker: Attacker
    of: str
    instead: bool
    given: list[str] = field(default_factory=list)
    keys: PrivateKeys = field(default_factory=PrivateKeys.random)

    def __post_init__(self) -> None:
        self.attacker.on_answer = self._on_answer
        self.attacker.on_request = self._on_request

    def _with_evil(self, holder: Json) -> Json:
        evil = {
            "device_id": "evil",
            "key_id": self.keys.key_id.hex(),
            "public_key": to_base64(self.keys.public.public_key),
            "signing_public_key": to_base64(self.keys.public.signing_public_key),
            "schemes": ["bp1"],
        }
        return {**holder, "devices": [*([] if self.instead else holder["devices"]), evil]}

    def _on_answer(self, method: str, path: str, data: Any) -> Any:
        if method == "GET" and path == f"/keys/users/{self.of}/devices":
            return self._with_evil(data)
        if "/recipients" not in path:
            return data
        members: list[Json] = []
        for one in data["members"]:
            members.append(self._with_evil(one) if one["principal_id"] == self.of else one)
        return {**data, "members": members}

    def _on_request(self, _method: str, path: str, body: Any) -> Any:
        if not path.endswith("/rotate"):
            return body
        ours = [each for each in body["wrapped_keys"] if each.get("device_id") != "evil"]
        theirs = [each for each in body["wrapped_keys"] if each not in ours]
        self.given.extend(each["wrapped_key"] for each in theirs)
        return {**body, "wrapped_keys": ours}


async def test_a_key_beside_the_one_that_people_compared_reads_nothing(
    cluster: DevCluster, bob: TestUser
) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim) as ada,
    ):
        evil = _Evil(attacker, bob.client.user_id, instead=False)
        conversation = await ada.client.open_direct(bob.client.user_id)
        await conversation.send("first contact")
        assert evil.given[-1] != NOT_GIVEN
        # The digits are of all keys, so they differ.
        theirs = await bob.client.safety_number(ada.client.me)
        assert await ada.client.safety_number(bob.client.me) != theirs
        with pytest.raises(UsageError):
            ada.client.verify(bob.client.me, theirs)
        # Bob shows the key of his device alone.
        signer = bob.client.session.options.signer
        assert signer
        ada.client.verify_key(bob.client.me, signer.key_id.hex())
        assert ("waiting_key", bob.client.user_id) in victim.notices
        await conversation.send("for Bob alone")
        assert evil.given[-1] == NOT_GIVEN
    assert (await texts(bob.client.conversation(conversation.id)))[-1] == "for Bob alone"


@pytest.mark.parametrize("instead", [False, True])
async def test_a_key_beside_or_instead_of_the_one_of_a_link_reads_nothing(
    cluster: DevCluster, bob: TestUser, instead: bool
) -> None:
    victim, options = Victim(), await cluster.agent("linked", bob.client)
    agent = Agent(options)
    agent.on("message", lambda ctx: ctx.reply("hello"))
    async with (
        running(agent),
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim) as ada,
    ):
        evil = _Evil(attacker, options.agent_id, instead)
        key_id = options.keys()[0].keys().key_id.hex()
        conversation = await ada.client.open_agent(options.agent_id, key_id=key_id)
        # The node misses a wrap for the key that the server hides.
        with suppress(BlindpipeError, KeyUnavailable):
            await conversation.send("for the agent")
    told = [type for type, _ in victim.notices]
    assert "waiting_key" in told and ("link_retired" in told) == instead
    assert evil.given and set(evil.given) == {NOT_GIVEN}
