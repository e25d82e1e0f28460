"""An active server makes epochs, serves old ones, and hands out altered and old backups."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
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
    header_of,
    newest,
)
from live import answer_to, collect, running, sign_in, texts, until

from blindpipe import BlindpipeError, Context, KeyUnavailable
from blindpipe.client import DeviceKeys
from blindpipe.e2ee import E2eeError, EpochKey, PrivateKeys, envelope, ids, to_base64, wrap
from blindpipe.e2ee.envelope import Message as MessagePlace
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.clock import now_ms
from blindpipe.transport.http import Call
from blindpipe.transport.socket import Frame


def _signer(user: TestUser) -> PrivateKeys:
    signer = user.client.session.options.signer
    assert signer
    return signer


def _rotated(real: Frame, epoch: int, wrapped: bytes, by: str) -> Frame:
    """The event of a rotation that never was."""
    wraps = [{**real["data"]["wrapped_keys"][0], "wrapped_key": to_base64(wrapped)}]
    return changed(again(real, 100), epoch=epoch, wrapped_keys=wraps, by=by)


async def test_an_epoch_of_the_servers_own_is_not_sealed_with(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim, forger = Victim(), PrivateKeys.random()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, options),
    ):
        conversation = await ada.client.open_agent(agent.agent_id)
        first = await answer_to(ada, lambda: conversation.send("before"))
        true = header_of(first.received.message["payload"] or {})

        key = EpochKey.random(ids.parse(conversation.id), 9)
        rotation = wrap.Rotation(key, ids.parse(ada.client.user_id), forger, now_ms())
        me = ids.principal("agent", agent.agent_id)
        wrapped = wrap.seal(rotation, me, options.keys()[0].keys().public)
        rotated = _rotated(newest(attacker, "key.rotated"), 9, wrapped, ada.client.user_id)
        told = {"epoch": 9, "current_epoch": 9, "wrapped_keys": rotated["data"]["wrapped_keys"]}
        groups = f"/keys/groups/{conversation.id}"
        attacker.on_answer = lambda _m, path, data: data | told if path == groups else data
        await attacker.push(rotated)

        # A message in the person's name, under that secret.
        place = MessagePlace(os.urandom(16))
        content = b'{"type":"text","text":"forged"}'
        sealed = envelope.seal(key, ada.client.me, forger, place, now_ms(), content)
        message = changed(
            again(newest(attacker, "message.created"), 101),
            payload={"type": "encrypted", "v": 1, "ciphertext": to_base64(sealed)},
            client_message_id=ids.ulid(place.client_message_id),
        )
        await attacker.push(message)
        await until(lambda: victim.faults)
        second = await answer_to(ada, lambda: conversation.send("after"))
    assert victim.faults == ["unknown_sender_key"]
    assert victim.heard == ["before", "after"] and second.text == "You said: after"
    sealed_with = header_of(second.received.message["payload"] or {})
    assert (sealed_with.epoch, sealed_with.sid) == (true.epoch, true.sid)


async def test_an_epoch_of_an_ex_member_is_not_sealed_with(
    cluster: DevCluster, ada: TestUser
) -> None:
    eve = await cluster.user("eve")
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "bob", Victim()) as bob,
    ):
        group = await ada.client.open_group([bob.client.user_id, eve.client.user_id])
        await group.send("with Eve")
        bobs = bob.client.conversation(group.id)
        assert await texts(bobs) == ["with Eve"]
        await collect(bob, lambda: group.remove_member(eve.client.user_id), has_event("key.rotated"))
        await group.send("without Eve")
        assert (await texts(bobs))[-1] == "without Eve"

        key = EpochKey.random(ids.parse(group.id), 7)
        rotation = wrap.Rotation(key, eve.client.me.id, _signer(eve), now_ms() + 1000)
        wrapped = wrap.seal(rotation, bob.client.me, _signer(bob).public)
        forged = _rotated(newest(attacker, "key.rotated"), 7, wrapped, eve.client.user_id)
        await collect(bob, lambda: attacker.push(forged), has_event("key.rotated"))
        await bobs.send("to those who are here")
        sent = await anext(aiter(group.history()))
        assert sent.text == "to those who are here"
        header = header_of(sent.message["payload"] or {})
        assert header.sid != key.sid
    await eve.client.close()


async def _old_answer(user: TestUser, conversation_id: str, epoch: int) -> Json:
    call = Call("GET", f"/keys/groups/{conversation_id}", {"epoch": epoch})
    old: Json = await user.client.account.http.data(call)
    return old


def _back_to(attacker: Attacker, conversation_id: str, old: Json) -> None:
    """From now on the server knows no epoch after this one."""

    def on_answer(_method: str, path: str, data: Any) -> Any:
        if path.startswith(f"/keys/groups/{conversation_id}") and "recipients" not in path:
            return {**old, "current_epoch": old["epoch"], "rotation_required": False}
        if path == f"/conversations/{conversation_id}":
            return {**data, "epoch": old["epoch"], "rotation_required": False}
        return data

    attacker.on_answer = on_answer


async def test_an_agent_goes_back_to_no_old_epoch(
    cluster: DevCluster, ada: TestUser, tmp_path: Path
) -> None:
    victim, refused = Victim(), list[KeyUnavailable]()
    async with attacking(cluster) as attacker:
        pins = tmp_path / "pins.json"
        behind = attacked_agent(cluster, attacker, ada.client, victim, pins=pins)
        async with behind as (_, options):
            conversation = await ada.client.open_agent(options.agent_id)
            await answer_to(ada, lambda: conversation.send("in the first"))
            await conversation.rotate()
            await answer_to(ada, lambda: conversation.send("in the second"))
        rotated = next(f for f in attacker.seen if f.get("event") == "key.rotated")
        old = {"epoch": 1, "wrapped_keys": rotated["data"]["wrapped_keys"]}
        _back_to(attacker, conversation.id, old)

        again_here = echo(options, victim)

        @again_here.on("agent.updated")
        async def say(ctx: Context) -> None:
            try:
                await ctx.send(conversation.id, "under the old secret?")
            except KeyUnavailable as error:
                refused.append(error)

        async with running(again_here):
            updated = again(newest(attacker, "message.created"), 100)
            await attacker.push({**updated, "event": "agent.updated", "data": {}})
            await until(lambda: refused)
            await conversation.send("in the second, unread")
            await until(lambda: victim.faults)
    assert victim.faults == ["no_epoch_key"] and len(victim.heard) == 2
    assert "under the old secret?" not in await texts(conversation)


async def test_a_person_goes_back_to_no_old_epoch(cluster: DevCluster, ada: TestUser) -> None:
    bob = await cluster.user("bob", device_id="laptop")
    conversation = await ada.client.open_direct(bob.client.user_id)
    await conversation.send("in the first")
    bobs = bob.client.conversation(conversation.id)
    assert await texts(bobs) == ["in the first"]
    old = await _old_answer(bob, conversation.id, 1)
    await bobs.rotate()
    await bobs.send("in the second")
    async with attacking(cluster) as attacker:
        again_here = await sign_in(
            cluster,
            bob,
            "laptop",
            url=attacker.url,
            ssl_context=None,
            marks=bob.client.session.marks(),
            pins=bob.client.trust.store(),
        )
        again_here.devices.use_keys(DeviceKeys(_signer(bob)))
        _back_to(attacker, conversation.id, old)
        with pytest.raises(BlindpipeError):
            await again_here.conversation(conversation.id).send("under the old secret?")
        await again_here.close()
    assert await texts(conversation) == ["in the first", "in the second"]
    await bob.client.close()


async def test_a_secret_whose_event_was_dropped_is_read_when_it_is_needed(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        attacker.on_frame = lambda f: () if f.get("event") == "key.rotated" else (f,)
        conversation = await ada.client.open_agent(agent.agent_id)
        for text in ("in the first", "in the second"):
            await conversation.rotate()
            answer = await answer_to(ada, lambda: conversation.send(text))
            assert answer.text == f"You said: {text}"
    assert not victim.faults


async def test_what_a_revoked_device_seals_is_handled_no_more(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        conversation = await ada.client.open_agent(agent.agent_id)
        phone = await sign_in(cluster, ada, "phone")
        await phone.devices.restore(ada.protection_password)
        on_phone = phone.conversation(conversation.id)
        await on_phone.send("mine")
        await until(lambda: victim.heard)
        await ada.client.devices.revoke("phone")
        await until(lambda: any(f.get("event") == "key.device_removed" for f in attacker.seen))

        # Its thief still holds key and secret, and the server helps.
        id = new_ulid()
        content = {"type": "text", "text": "stolen"}
        payload = await phone.session.seal_payload(
            conversation.id, MessagePlace(ids.parse(id)), content
        )
        later = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
        await attacker.push(
            changed(
                again(newest(attacker, "message.created"), 100),
                payload=payload,
                client_message_id=id,
                created_at=later,
            )
        )
        await until(lambda: victim.faults)
        await phone.close()
    assert (victim.heard, victim.faults) == (["mine"], ["retired_key"])


@pytest.mark.parametrize(
    ("altered", "reason"),
    [
        ({"argon2_params": {"m": 8_192, "t": 1, "p": 1}}, "malformed"),
        ({"argon2_params": {"m": 19_456, "t": 3, "p": 1}}, "wrong_key"),
        ({"backup_a": to_base64(b"\1" + bytes(76))}, "wrong_key"),
        ({"public_key": to_base64(PrivateKeys.random().public.public_key)}, "wrong_key"),
    ],
)
async def test_an_altered_backup_restores_nothing(
    cluster: DevCluster, ada: TestUser, altered: Json, reason: str
) -> None:
    def on_answer(method: str, path: str, data: Any) -> Any:
        is_backup = method == "GET" and path == "/keys/backup"
        return [{**each, **altered} for each in data] if is_backup else data

    async with attacking(cluster) as attacker:
        attacker.on_answer = on_answer
        phone = await sign_in(cluster, ada, "phone", url=attacker.url, ssl_context=None)
        with pytest.raises(E2eeError, match=f"^{reason}$"):
            await phone.devices.restore(ada.protection_password)
        await phone.close()


async def test_an_old_backup_is_called_old_and_introduces_nobody(
    cluster: DevCluster, bob: TestUser
) -> None:
    ada = await cluster.user("ada", device_id="laptop")
    direct = await ada.client.open_direct(bob.client.user_id)
    await direct.send("first contact")
    bobs = bob.client.conversation(direct.id)
    assert await texts(bobs) == ["first contact"]
    old = await ada.client.account.http.data(Call("GET", "/keys/backup"))
    await ada.client.devices.create(ada.protection_password)

    introductions: list[object] = []

    def on_request(_method: str, path: str, body: Any) -> Any:
        if path == "/keys/backup":
            introductions.append(body.get("introduction"))
        return body

    async with attacking(cluster) as attacker:
        attacker.on_request = on_request
        attacker.on_answer = lambda method, path, data: (
            old if (method, path) == ("GET", "/keys/backup") else data
        )
        phone = await sign_in(cluster, ada, "phone", url=attacker.url, ssl_context=None)
        keys = await phone.devices.restore(ada.protection_password)
        assert keys.is_old and introductions == [None]
        # It opens what it can.
        assert await texts(phone.conversation(direct.id)) == ["first contact"]
        await phone.close()
    honest = await sign_in(cluster, ada, "tablet")
    assert not (await honest.devices.restore(ada.protection_password)).is_old
    await honest.close()
    await ada.client.close()
