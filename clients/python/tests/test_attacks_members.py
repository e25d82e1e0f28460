"""An active server adds members, recipients and keys, and says that nobody encrypts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from attacker import (
    Attacker,
    Json,
    Victim,
    again,
    attacked_agent,
    attacked_person,
    attacking,
    changed,
    echo,
    has_event,
    newest,
)
from live import (
    MANIFEST,
    TOOLS,
    answer_to,
    collect,
    decide_until_answered,
    grant,
    running,
    sign_in,
    texts,
    until,
)

from blindpipe import Agent, Context, DecryptError, FileStore, KeyUnavailable, ToolRequest
from blindpipe.client import ClientEvent, DeviceKeys, EpochMarks, ToolRequestEvent
from blindpipe.e2ee import PrivateKeys, ids, to_base64, wrap
from blindpipe.e2ee.envelope import Message as MessagePlace
from blindpipe.e2ee.ids import new_ulid
from blindpipe.e2ee.trust import NoticeKind
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.http import Call
from blindpipe.transport.socket import Frame

NOT_GIVEN = to_base64(wrap.NOT_GIVEN)


class _Recipients:
    """Lies about the members of a conversation, and looks at what a rotation gives them."""

    def __init__(self, attacker: Attacker, conversation_id: str, notices: list[Any]) -> None:
        self.conversation_id = conversation_id
        self.given: list[str] = []
        self.is_member = False
        self.injected: Json | None = None
        self.into: str | None = None
        self._notices = notices
        attacker.on_answer = self._on_answer
        attacker.on_request = self._on_request

    def inject(self, user: str, keys: PrivateKeys, device_id: str) -> None:
        """Another recipient, or another device of one that is there."""
        self.into = user
        self.injected = {
            "device_id": device_id,
            "key_id": keys.key_id.hex(),
            "public_key": to_base64(keys.public.public_key),
            "signing_public_key": to_base64(keys.public.signing_public_key),
            "schemes": ["bp1"],
        }

    def _on_answer(self, _method: str, path: str, data: Any) -> Any:
        if self.injected is None:
            return data
        if path.startswith(f"/keys/groups/{self.conversation_id}/recipients"):
            return {**data, "members": list(self._recipients(data["members"]))}
        if path == f"/conversations/{self.conversation_id}" and self.is_member:
            mallory = {**data["members"][0], "principal_id": self.into, "display_name": "Mallory"}
            return {**data, "members": [*data["members"], mallory]}
        return data

    def _recipients(self, members: list[Json]) -> Any:
        is_there = False
        for member in members:
            if member["principal_id"] == self.into:
                is_there, member = True, {**member, "devices": [*member["devices"], self.injected]}
            yield member
        if not is_there:
            kind = {"principal_type": "user", "principal_id": self.into, "list_version": 1}
            yield {**kind, "visibility": "all", "devices": [self.injected]}

    def _on_request(self, _method: str, path: str, body: Any) -> Any:
        if not path.endswith("/rotate") or self.injected is None:
            return body
        self._notices.append(("rotation", ""))
        ours, theirs = list[Json](), list[Json]()
        for each in body["wrapped_keys"]:
            is_injected = each.get("device_id") == self.injected["device_id"]
            (theirs if is_injected else ours).append(each)
        self.given.extend(each["wrapped_key"] for each in theirs)
        return {**body, "wrapped_keys": ours}


@asynccontextmanager
async def _lied_to(
    cluster: DevCluster, bob: TestUser, **changes: Any
) -> AsyncIterator[tuple[TestUser, Attacker, _Recipients, Victim]]:
    """Ada behind the attacker, after a first contact with Bob in a group that was true."""
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim, **changes) as ada,
    ):
        group = await ada.client.open_group([bob.client.user_id])
        await group.send("first contact")
        yield ada, attacker, _Recipients(attacker, group.id, victim.notices), victim


async def _read_anew(ada: TestUser, attacker: Attacker, conversation_id: str) -> None:
    """An event tells Ada's client to read the members again."""
    frame = again(newest(attacker, "message.created"), 100) if attacker.seen else None
    made: Frame = frame or {
        "type": "event",
        "event_id": new_ulid(),
        "cursor": "1-1000",
        "seq": 1000,
        "created_at": datetime.now(UTC).isoformat(),
    }
    told = {"event": "member.added", "conversation_id": conversation_id}
    event = {**made, **told, "data": {"conversation_id": conversation_id}}
    await collect(ada, lambda: attacker.push(event), has_event("member.added"))


async def test_a_recipient_who_is_no_member_is_given_nothing_and_named(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with _lied_to(cluster, bob) as (ada, attacker, lie, victim):
        mallory = new_ulid()
        lie.inject(mallory, PrivateKeys.random(), "mallorys")
        await _read_anew(ada, attacker, lie.conversation_id)
        group = ada.client.conversation(lie.conversation_id)
        await group.rotate()
        await group.send("for members")
    assert lie.given == [NOT_GIVEN]
    assert ("not_member", mallory) in victim.notices
    assert ("not_member", lie.conversation_id) in victim.places
    assert (await texts(bob.client.conversation(lie.conversation_id)))[-1] == "for members"


async def test_a_member_whom_the_server_adds_is_named_before_anything_is_sealed_for_it(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with _lied_to(cluster, bob) as (ada, attacker, lie, victim):
        mallory = new_ulid()
        lie.is_member = True
        lie.inject(mallory, PrivateKeys.random(), "mallorys")
        await _read_anew(ada, attacker, lie.conversation_id)
        await ada.client.conversation(lie.conversation_id).send("for members")
    named = victim.notices.index(("member_added", mallory))
    assert named < victim.notices.index(("rotation", ""))
    assert ("member_added", lie.conversation_id) in victim.places
    assert len(lie.given) == 1, "who is a member is the server's word, shown to the person"


@pytest.mark.parametrize("has_store", [True, False])
async def test_a_member_whom_the_server_adds_while_the_client_is_off_is_named_first_too(
    cluster: DevCluster, bob: TestUser, tmp_path: Path, has_store: bool
) -> None:
    kept: Json = {"store": FileStore(tmp_path / "ada")} if has_store else {}
    async with _lied_to(cluster, bob, **kept) as (ada, attacker, lie, victim):
        await ada.client.close()
        signer = ada.client.session.options.signer
        assert signer
        if not has_store:
            # An application stores this, and gives it to its next start.
            marks = {id: mark.store() for id, mark in ada.client.session.marks().items()}
            marks = json.loads(json.dumps(marks))
            kept = {"marks": {id: EpochMarks.stored(each) for id, each in marks.items()}}
            kept["pins"] = ada.client.trust.store()
        mallory = new_ulid()
        lie.is_member = True
        lie.inject(mallory, PrivateKeys.random(), "mallorys")
        kept |= {"url": attacker.url, "ssl_context": None, "hooks": victim.hooks}
        again_here = await sign_in(cluster, ada, ada.client.account.device_id, **kept)
        if not has_store:
            again_here.devices.use_keys(DeviceKeys(signer))
        await again_here.conversation(lie.conversation_id).send("for members")
        await again_here.close()
    named = victim.notices.index(("member_added", mallory))
    assert named < victim.notices.index(("rotation", ""))


async def test_a_member_whom_the_server_adds_while_an_agent_is_off_is_named_before_it_answers(
    cluster: DevCluster, ada: TestUser, bob: TestUser, tmp_path: Path
) -> None:
    made = await cluster.agent("aware", ada.client)
    async with running(Agent(made)):
        await ada.client.open_agent(made.agent_id)
    group = await ada.client.open_group([bob.client.user_id])
    await group.add_agent(made.agent_id, "all")
    mallory, told = new_ulid(), list[list[Any]]()
    async with attacking(cluster) as attacker:
        for is_there in (False, True):
            victim = Victim()
            behind: Json = {"url": attacker.url, "ssl_context": None, "pins": str(tmp_path / "pins")}
            options = replace(made, **behind, hooks=victim.hooks)

            def on_answer(_method: str, path: str, data: Any, is_there: bool = is_there) -> Any:
                if path != f"/conversations/{group.id}" or not is_there:
                    return data
                added = {"principal_type": "user", "principal_id": mallory}
                return {**data, "members": [*data["members"], {**data["members"][0], **added}]}

            def on_request(method: str, path: str, body: Any, victim: Victim = victim) -> Any:
                if path.endswith("/messages"):
                    told.append([each for each in victim.places if each[0] == "member_added"])
                return body

            attacker.on_answer, attacker.on_request = on_answer, on_request
            async with running(echo(options, victim)):
                await answer_to(ada, lambda: group.send("Are you there?"))
            named = [who for kind, who in victim.notices if kind == "member_added"]
            assert named == ([mallory] if is_there else [])
    assert told == [[], [("member_added", group.id)]]


async def test_nobody_joins_two(cluster: DevCluster, bob: TestUser) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim) as ada,
    ):
        direct = await ada.client.open_direct(bob.client.user_id)
        lie = _Recipients(attacker, direct.id, victim.notices)
        lie.is_member = True
        lie.inject(new_ulid(), PrivateKeys.random(), "mallorys")
        with pytest.raises(DecryptError, match="^malformed$"):
            await direct.send("for Bob alone")
        lie.injected = None
        await direct.send("for Bob")
    assert lie.given == []
    assert await texts(bob.client.conversation(direct.id)) == ["for Bob"]


async def test_a_key_that_the_server_adds_for_a_known_person_waits_and_is_given_nothing(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with _lied_to(cluster, bob) as (ada, attacker, lie, victim):
        lie.inject(bob.client.user_id, PrivateKeys.random(), "the-servers-own")
        await _read_anew(ada, attacker, lie.conversation_id)
        group = ada.client.conversation(lie.conversation_id)
        await group.rotate()
        await group.send("for Bob")
    assert lie.given == [NOT_GIVEN]
    assert ("waiting_key", bob.client.user_id) in victim.notices
    assert (await texts(bob.client.conversation(lie.conversation_id)))[-1] == "for Bob"


async def test_nothing_goes_in_clear_because_the_server_says_that_nobody_encrypts(
    cluster: DevCluster, bob: TestUser
) -> None:
    posted: list[str] = []

    def on_request(_method: str, path: str, body: Any) -> Any:
        if path.endswith("/messages"):
            posted.append(body["payload"]["type"])
        return body

    def on_answer(_method: str, path: str, data: Any) -> Any:
        if "/recipients" in path:
            for member in data["members"]:
                for key in member["devices"]:
                    key["schemes"] = []
        return data

    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", Victim()) as ada,
    ):
        attacker.on_request = on_request
        group = await ada.client.open_group([bob.client.user_id])
        await group.send("encrypted")
        attacker.on_answer = on_answer
        await _read_anew(ada, attacker, group.id)
        await group.send("still encrypted")
        # At a first contact the person is asked.
        stranger = await cluster.user("carl")
        direct = await ada.client.open_direct(stranger.client.user_id)
        with pytest.raises(KeyUnavailable):
            await direct.send("in clear?")
        await stranger.client.close()
    assert posted == ["encrypted", "encrypted"]


async def test_a_key_on_ones_own_list_that_one_did_not_add_is_an_alarm(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with _lied_to(cluster, bob) as (ada, attacker, lie, victim):
        lie.inject(ada.client.user_id, PrivateKeys.random(), "the-servers-own")
        await _read_anew(ada, attacker, lie.conversation_id)
        await ada.client.conversation(lie.conversation_id).rotate()
    assert lie.given == [NOT_GIVEN]
    assert ("own_list_key", ada.client.user_id) in victim.notices


async def test_what_an_ex_member_says_reaches_no_handler(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    victim, eve = Victim(), await cluster.user("eve")
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        await ada.client.open_agent(agent.agent_id)
        group = await ada.client.open_group([bob.client.user_id, eve.client.user_id])
        await group.add_agent(agent.agent_id, "all")
        await answer_to(ada, lambda: group.send("here is Eve"))
        eves = eve.client.conversation(group.id)
        await answer_to(eve, lambda: eves.send("as a member"))
        await group.remove_member(eve.client.user_id)
        await until(lambda: any(f.get("event") == "member.removed" for f in attacker.seen))

        # Eve holds the old secret, and the server helps.
        id, content = new_ulid(), {"type": "text", "text": "from outside"}
        payload = await eve.client.session.seal_payload(
            group.id, MessagePlace(ids.parse(id)), content
        )
        said = again(newest(attacker, "message.created"), 100)
        eves_own = {"type": "user", "id": eve.client.user_id}
        forged = changed(said, payload=payload, client_message_id=id, sender=eves_own)
        await attacker.push(changed(forged, in_reply_to=None))
        await until(lambda: victim.faults)
        await answer_to(ada, lambda: group.send("and without Eve"))
    assert victim.faults == ["not_member"]
    assert victim.heard == ["here is Eve", "as a member", "and without Eve"]
    # The history shows what she said, and of whom it is.
    shown = [each async for each in bob.client.conversation(group.id).history()]
    of_eve = next(each for each in shown if each.text == "as a member").opened
    assert of_eve and NoticeKind.NOT_MEMBER in [notice.kind for notice in of_eve.notices]
    await eve.client.close()


async def test_an_agent_that_was_removed_runs_no_tool_and_its_approvals_end(
    cluster: DevCluster, bob: TestUser
) -> None:
    victim, ran = Victim(), list[str]()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim, tools=TOOLS) as ada,
    ):
        options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
        agent = Agent(options)

        @agent.on("message")
        async def ask(ctx: Context) -> None:
            await ctx.call("send_email", "notification:send", {})
            await ctx.reply("done")

        async def remembering(request: ToolRequest) -> None:
            await request.remember()
            await request.execute(lambda tool, _: ran.append(tool))

        async def remembered() -> int:
            return len((await ada.client._consents.load()).store()["remembered"])

        async with running(agent):
            await ada.client.open_agent(options.agent_id)
            group = await ada.client.open_group([bob.client.user_id])
            await group.add_agent(options.agent_id, "all")
            await grant(ada, group, options)
            await decide_until_answered(ada, lambda: group.send("once"), remembering)
            assert (ran, await remembered()) == (["send_email"], 1)

            held: list[Frame] = []

            def on_frame(frame: Frame) -> Any:
                if frame.get("event") == "artifact_request":
                    held.append(frame)
                    return ()
                return (frame,)

            attacker.on_frame = on_frame

            async def removed() -> None:
                await group.send("twice")
                await until(lambda: held)
                await group.remove_member(options.agent_id)

            events = await collect(ada, removed, has_event("member.removed"))
            assert await remembered() == 0

            async def enough(events: list[ClientEvent]) -> bool:
                return bool(victim.faults)

            async def push() -> None:
                await attacker.push(again(held[0], 100))
                await bob.client.conversation(group.id).send("later")

            events += await collect(ada, push, enough)
    assert not any(isinstance(event, ToolRequestEvent) for event in events)
    assert (victim.faults, ran) == (["not_member"], ["send_email"])


@pytest.mark.parametrize("how", ["the grant", "the relation", "the device"])
async def test_what_a_device_remembers_ends_with_a_withdrawal(
    cluster: DevCluster, how: str
) -> None:
    ada = await cluster.user("ada", tools=TOOLS)
    options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
    agent = Agent(options)

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        await ctx.call("send_email", "notification:send", {})
        await ctx.reply("done")

    async def remembering(request: ToolRequest) -> None:
        await request.remember()
        await request.execute(lambda _tool, _arguments: None)

    async def remembered() -> int:
        return len((await ada.client._consents.load()).store()["remembered"])

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        await grant(ada, conversation, options)
        await decide_until_answered(ada, lambda: conversation.send("once"), remembering)
        assert await remembered() == 1
        if how == "the device":
            await ada.client.devices.withdraw(options.agent_id, "another:scope")
            assert await remembered() == 1
            await ada.client.devices.withdraw(options.agent_id, "notification:send")
        elif how == "the grant":
            granted = [each async for each in ada.client.grants()]
            await ada.client.revoke_grant(granted[0]["grant_id"])
        else:
            http = ada.client.account.http
            relation = (await http.data(Call("GET", "/relations")))[0]["relation_id"]
            end = Call("DELETE", f"/relations/{relation}")
            await collect(ada, lambda: http.data(end), has_event("relation.revoked"))
        assert await remembered() == 0
    await ada.client.close()
