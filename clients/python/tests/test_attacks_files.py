"""Files from an active server, or from a sender who names something else as the file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attacker import Victim, attacked_person, attacking

from blindpipe import NewFile
from blindpipe.e2ee import E2eeError
from blindpipe.testing import DevCluster, TestUser
from support import refused


async def test_an_altered_file_gives_nothing_out(cluster: DevCluster, bob: TestUser) -> None:
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", Victim()) as ada,
    ):
        direct = await bob.client.open_direct(ada.client.user_id)
        await direct.send_file(NewFile("plan.txt", b"the true plan"))
        content = (await anext(aiter(ada.client.conversation(direct.id).history()))).content
        on_ada = ada.client.conversation(direct.id)
        assert await on_ada.download_file(content) == b"the true plan"
        changes: list[Callable[[bytes], bytes]] = [
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            lambda data: data[:-16],
            lambda _data: b"",
            lambda data: data + data,
        ]
        for change in changes:
            attacker.on_object = change
            with pytest.raises(E2eeError):
                await on_ada.download_file(content)


OTHER_CALLS = [
    "../agents/01J00000000000000000000000/messages/poll?cursor=1-9",
    "../users/me",
    "a/../../users/me",
    "a?cursor=1-9",
    "a#b",
]


async def test_a_file_message_makes_no_other_call(cluster: DevCluster, bob: TestUser) -> None:
    paths: list[str] = []

    def on_path(path: str) -> str:
        paths.append(path)
        return path

    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", Victim()) as ada,
    ):
        direct = await bob.client.open_direct(ada.client.user_id)
        await direct.send_file(NewFile("plan.txt", b"the true plan"))
        on_ada = ada.client.conversation(direct.id)
        content = (await anext(aiter(on_ada.history()))).content
        attacker.on_path = on_path
        for object_key in OTHER_CALLS:
            with refused("malformed"):
                await on_ada.download_file({**content, "object_key": object_key})
        with refused("malformed"):
            await on_ada.download_file({**content, "sha256": ""})
        assert paths == []
        assert await on_ada.download_file(content) == b"the true plan"
        assert len(paths) == 1
