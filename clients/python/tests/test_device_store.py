"""A person's device goes on after a restart where it stopped: from its store alone."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attacker import Attacker, again, attacking, newest
from live import TOOLS, sign_in, texts, until

from blindpipe import Client, ClientOptions, Closed, FileStore, KeyUnavailable, UsageError
from blindpipe.client import (
    CaughtUp,
    DeviceState,
    MessageEvent,
    StoredConsents,
    StoreOwner,
)
from blindpipe.client.clear import MAX_CLEAR_CHOICES, ClearChoices
from blindpipe.client.tool_requests import ConsentKeeper
from blindpipe.e2ee import ids
from blindpipe.e2ee.consent import Consents, Sensitivity, Tool
from blindpipe.e2ee.ids import ulid
from blindpipe.e2ee.room import MAX_MESSAGE_AGE_MS, EpochMarks
from blindpipe.hooks import HookCaller, Hooks
from blindpipe.stores import log
from blindpipe.stores.pin_store import StoredTrust
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.acks import ACK_INTERVAL_SECONDS
from blindpipe.transport.clock import now_ms
from blindpipe.transport.socket import Frame

OWNER = StoreOwner("ada", "phone")


async def test_a_device_goes_on_from_its_store_alone(
    cluster: DevCluster, bob: TestUser, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, kept = tmp_path / "ada", cluster.options()
    with pytest.raises(Closed, match="nobody has signed in"):
        await Client.resume(replace(kept, store=FileStore(path)))
    ada = await cluster.user("ada", store=FileStore(path), tools=TOOLS)
    group = await ada.client.open_group([bob.client.user_id], title="notes")
    await group.send("before")
    bob_keys = ada.client.trust.store()["principals"][bob.client.me.to_bytes().hex()]["keys"]
    ada.client.verify_key(bob.client.me, bob_keys[0]["key_id"])
    await ada.client.close()
    assert "first contact" not in caplog.text and "no store" not in caplog.text
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}

    for _ in range(2):
        again_here = await Client.resume(replace(kept, store=FileStore(path)))
        assert again_here.account.device_id == ada.client.account.device_id
        assert again_here.trust.store()["principals"][bob.client.me.to_bytes().hex()]["keys"] == [
            {**bob_keys[0], "standing": "verified"}
        ]
        assert again_here.session.marks()[group.id].members
        assert await texts(again_here.conversation(group.id)) == ["before"]
        await again_here.close()

    # Nobody else gets what is kept, also if a file is lost. The person goes on by a new sign-in.
    before = path.read_text()
    (tmp_path / "ada.learned").unlink()
    with pytest.raises(UsageError, match="another person or another device"):
        await sign_in(cluster, bob, again_here.account.device_id, store=FileStore(path))
    with pytest.raises(UsageError, match="another person or another device"):
        await sign_in(cluster, ada, "other", store=FileStore(path))
    assert path.read_text() == before
    await again_here.account.logout()
    await again_here.close()
    with pytest.raises(Closed, match="has ended"):
        await Client.resume(replace(kept, store=FileStore(path)))
    options = replace(kept, store=FileStore(path))
    signed_in = await Client.login(
        options, email=ada.email, password=ada.password, turnstile_token="dev-pass"
    )
    assert await texts(signed_in.conversation(group.id)) == ["before"]
    await signed_in.close()
    path.write_text(path.read_text()[:-1])
    with pytest.raises(UsageError, match="damaged") as damaged:
        await Client.resume(options)
    assert damaged.value.__cause__ is None and damaged.value.__suppress_context__
    await FileStore(path).remove()
    assert not list(tmp_path.iterdir())


class _FailingStore(FileStore):
    async def save_device(self, device: DeviceState) -> None:
        raise OSError("the disk is full")


async def test_a_choice_to_write_in_clear_outlives_a_kill(
    cluster: DevCluster, tmp_path: Path
) -> None:
    path = tmp_path / "ada"
    ada = await cluster.user("ada", store=FileStore(path))
    agents = [await cluster.agent(name, ada.client) for name in ("chosen", "other")]
    chosen, other = [
        await ada.client.open_agent(options.agent_id) for options in agents
    ]
    with pytest.raises(KeyUnavailable, match="choose_clear"):
        await chosen.send("not yet")
    await chosen.choose_clear()
    # A program that is killed saves nothing at its end.
    await ada.client.account.http.close()

    resumed = await Client.resume(cluster.options(store=FileStore(path)))
    await resumed.conversation(chosen.id).send("in clear")
    with pytest.raises(KeyUnavailable, match="choose_clear"):
        await resumed.conversation(other.id).send("not here")
    assert await texts(resumed.conversation(chosen.id)) == ["in clear"]
    await resumed.close()

    # A choice that is not kept is none.
    failing = await Client.resume(cluster.options(store=_FailingStore(path)))
    with pytest.raises(OSError):
        await failing.conversation(other.id).choose_clear()
    with pytest.raises(KeyUnavailable, match="choose_clear"):
        await failing.conversation(other.id).send("not here")
    await failing.account.http.close()


async def test_a_store_keeps_the_newest_choices_to_write_in_clear() -> None:
    async def save() -> None:
        stored.append(choices.store())

    stored, choices = list[list[str]](), ClearChoices(save)
    for number in range(MAX_CLEAR_CHOICES + 1):
        await choices.choose(str(number))
    assert stored[-1] == [str(number) for number in range(1, MAX_CLEAR_CHOICES + 1)]
    assert "0" not in choices and "1" in choices
    resumed = ClearChoices(save)
    resumed.take(stored[-1])
    assert resumed.store() == stored[-1]


async def test_a_device_that_got_no_keys_yet_gets_them_after_a_restart(
    cluster: DevCluster, bob: TestUser, tmp_path: Path
) -> None:
    path = tmp_path / "bob"
    await (await sign_in(cluster, bob, "laptop", store=FileStore(path))).close()
    for has_keys in (False, True):
        laptop = await Client.resume(cluster.options(store=FileStore(path)))
        assert laptop.session.has_keys == has_keys
        if not has_keys:
            await laptop.devices.restore(bob.protection_password)
        assert json.loads(path.read_text())["keys"], "a crash loses none"
        group = await laptop.open_group([], title="notes")
        await group.send("sealed")
        await laptop.close()


async def test_a_device_goes_on_while_the_service_is_away(
    cluster: DevCluster, tmp_path: Path
) -> None:
    path, calls = tmp_path / "ada", list[str]()
    async with attacking(cluster) as attacker:

        def on_path(path: str) -> str:
            calls.append(path)
            return path

        attacker.on_path = on_path
        options = ClientOptions(attacker.url, store=FileStore(path))
        with pytest.raises(Closed, match="nobody has signed in"):
            await Client.resume_offline(options)
        ada = await cluster.user("ada", url=attacker.url, ssl_context=None, store=options.store)
        group = await ada.client.open_group([], title="notes")
        await group.send("kept")
        await ada.client.close()

        calls.clear()
        attacker.is_away = True
        later = await Client.resume_offline(replace(options, store=FileStore(path)))
        assert later.user_id == ada.client.user_id and later.trust.store()["principals"]
        conversation = later.conversation(group.id)
        assert calls == [], "nothing is asked"
        attacker.is_away = False
        assert await texts(conversation) == ["kept"]
        assert calls.count("/auth/refresh") == 1 and calls[0] == "/auth/refresh"
        await later.account.logout()
        await later.close()

        ended = await Client.resume_offline(replace(options, store=FileStore(path)))
        with pytest.raises(Closed, match="the sign-in has ended"):
            await ended.profile()
        with pytest.raises(Closed, match="the sign-in has ended"):
            async with aclosing(ended.events()) as events:
                await anext(events)
        await ended.close()


@asynccontextmanager
async def _started(
    attacker: Attacker, path: Path, dies_at: str = "", **changes: Any
) -> AsyncIterator[tuple[Client, list[str]]]:
    """A person's program, which shows what comes, until it dies at a text."""
    options = ClientOptions(attacker.url, store=FileStore(path))
    client = await Client.resume(replace(options, **changes))
    shown, live = list[str](), asyncio.Event()

    async def show() -> None:
        async with aclosing(client.events()) as events:
            async for event in events:
                if isinstance(event, CaughtUp):
                    live.set()
                if isinstance(event, MessageEvent):
                    shown.append(event.text or "")
                    if event.text == dies_at:
                        return

    showing = asyncio.create_task(show())
    await live.wait()
    yield client, shown
    showing.cancel()
    await asyncio.wait([showing])
    await client.close()


async def test_a_message_that_was_shown_before_a_restart_is_not_shown_again(
    cluster: DevCluster, bob: TestUser, tmp_path: Path
) -> None:
    path = tmp_path / "ada"
    async with attacking(cluster) as attacker:
        behind: dict[str, Any] = {"url": attacker.url, "ssl_context": None}
        ada = await cluster.user("ada", **behind, store=FileStore(path))
        await ada.client.close()
        direct = await bob.client.open_direct(ada.client.user_id)
        async with _started(attacker, path, "unseen") as (_, shown):
            await direct.send("before")
            await until(lambda: shown == ["before"])
            first = newest(attacker, "message.created")
            await direct.send("unseen")
            await until(lambda: shown == ["before", "unseen"])
            second = newest(attacker, "message.created")
        async with _started(attacker, path) as (_, shown):
            await attacker.push(again(first, 100))
            await attacker.push(again(second, 101))
            await direct.send("after")
            await until(lambda: "after" in shown)
    # A message on its way at the program's end comes again, and a shown one does not.
    assert shown == ["unseen", "after"]
    assert (tmp_path / "ada.handled").stat().st_mode & 0o777 == 0o600


class _Full(FileStore):
    """A disk without space, at times."""

    is_full = False

    def _check(self) -> None:
        if self.is_full:
            raise OSError("no space")

    async def save(self, trust: StoredTrust) -> None:
        self._check()
        await super().save(trust)

    async def add_handled(self, handled: list[Any]) -> None:
        self._check()
        await super().add_handled(handled)

    async def save_device(self, device: DeviceState) -> None:
        self._check()
        await super().save_device(device)

    async def add_consents(self, consents: StoredConsents) -> None:
        self._check()
        await super().add_consents(consents)


async def test_nothing_is_acknowledged_while_a_persons_store_fails(
    cluster: DevCluster, bob: TestUser, tmp_path: Path
) -> None:
    path, acks, failures = tmp_path / "ada", list[str](), list[None]()
    hooks: Hooks = {"store_failed": lambda: failures.append(None)}
    async with attacking(cluster) as attacker:
        behind: dict[str, Any] = {"url": attacker.url, "ssl_context": None}
        ada = await cluster.user("ada", **behind, store=FileStore(path))
        await ada.client.close()
        direct = await bob.client.open_direct(ada.client.user_id)

        def on_client_frame(frame: Frame) -> Frame:
            if frame["type"] == "ack":
                acks.append(frame["cursor"])
            return frame

        attacker.on_client_frame = on_client_frame
        store = _Full(path)
        async with _started(attacker, path, store=store, hooks=hooks) as (client, shown):
            await direct.send("one")
            await until(lambda: shown and acks and acks[-1] == newest_cursor(attacker))
            before, store.is_full = len(acks), True
            await direct.send("two")
            await until(lambda: len(shown) == 2 and failures)
            # A renewal that cannot be kept goes on too.
            assert await client.account.renew()
            await asyncio.sleep(5 * ACK_INTERVAL_SECONDS)
            assert len(acks) == before
            store.is_full = False
            await until(lambda: len(acks) > before and acks[-1] == newest_cursor(attacker))
            token = json.loads(path.read_text())["session"]["refresh_token"]
            assert token == client.account._refresh_token
    assert shown == ["one", "two"]


def newest_cursor(attacker: Attacker) -> str:
    cursor: str = newest(attacker, "message.created")["cursor"]
    return cursor


async def test_a_start_whose_store_cannot_keep_it_fails(
    cluster: DevCluster, bob: TestUser, tmp_path: Path
) -> None:
    store = _Full(tmp_path / "bob")
    store.is_full = True
    with pytest.raises(OSError, match="no space"):
        await sign_in(cluster, bob, "phone", store=store)
    with pytest.raises(UsageError):
        Client(cluster.options(store=store, pins={"principals": {}}))


async def test_consents_are_added_to_the_log_and_old_ones_leave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, agent, room = tmp_path / "ada", ids.principal("agent", ids.new_ulid()), bytes(16)
    tools = {"send an\ne-mail": Tool("mail", Sensitivity.LOW)}

    async def loaded() -> Consents:
        store = FileStore(path)
        await store.load(OWNER)
        return Consents.stored(tools, await store.load_consents())

    assert await FileStore(path).load(OWNER) is None
    now, consents = now_ms(), Consents(tools)
    # An agent chooses the id of a request, and nothing that it chooses is a line of the log.
    forged = next(log.lines_of([("owner", "mallory/phone", True)])).decode()
    for request_id, at in (("old", now - MAX_MESSAGE_AGE_MS), (f"new\n{forged}", now)):
        assert consents.begin(agent, request_id, at)
        await FileStore(path).add_consents(consents.take_changed())
    assert consents.remember(room, agent, "send an\ne-mail", now, 3)
    await FileStore(path).add_consents(consents.take_changed())
    found = await loaded()
    assert len(found.store()["remembered"]) == 1
    assert not found.begin(agent, f"new\n{forged}", now)
    with monkeypatch.context() as later:
        later.setattr("blindpipe.stores.device_store.now_ms", lambda: now + 1)
        assert (await loaded()).begin(agent, "old", now + 1), "it is too old to come again"

    consents.withdraw(agent)
    await FileStore(path).add_consents(consents.take_changed())
    assert (await loaded()).store()["remembered"] == {}
    lines = (tmp_path / "ada.learned").read_bytes().count(b"\n")
    assert lines == 5, "each change is one line more"
    monkeypatch.setattr(log, "FREE_BYTES", -(1 << 20))
    assert (await loaded()).store()["remembered"] == {}
    assert b"remembered" not in (tmp_path / "ada.learned").read_bytes()
    with pytest.raises(UsageError, match="another person"):
        await FileStore(path).load(StoreOwner("bob", "phone"))


async def test_a_withdrawal_that_a_store_refuses_is_kept_by_the_next_save(tmp_path: Path) -> None:
    store, failures = _Full(tmp_path / "ada"), list[None]()
    hooks: Hooks = {"store_failed": lambda: failures.append(None)}
    agent_id, room = str(uuid.uuid4()), bytes(16)
    agent, tools = ids.principal("agent", agent_id), {"ping": Tool("mail", Sensitivity.LOW)}
    await store.load(OWNER)
    keeper = ConsentKeeper(tools, store, HookCaller(hooks, logging.getLogger("blindpipe")))
    assert (await keeper.load()).remember(room, agent, "ping", now_ms(), 3)
    await keeper.save()
    store.is_full = True
    told: Any = {"event": "relation.revoked", "data": {"agent_id": agent_id}}
    await keeper.observe(told)
    assert len(failures) == 1 and keeper.waiting, "its event is not acknowledged"
    with pytest.raises(OSError):
        await keeper.withdraw(agent)
    assert len(failures) == 2
    store.is_full = False
    assert await keeper.try_save() and not keeper.waiting
    again_here = FileStore(tmp_path / "ada")
    await again_here.load(OWNER)
    kept = await again_here.load_consents()
    assert kept is not None and list(kept["remembered"].values()) == []


async def test_what_is_learned_is_kept_beside_the_consents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "FREE_BYTES", -(1 << 20))
    path = tmp_path / "ada"
    store = FileStore(path)
    await store.load(OWNER)
    names = [ulid(number.to_bytes(16, "big")) for number in range(50)]

    async def learn(name: str) -> None:
        await store.save({"pins": {"principals": {}}, "marks": {name: EpochMarks(1).store()}})

    async def begin(name: str) -> None:
        begun: StoredConsents = {"begun": {name: now_ms()}, "remembered": {}}
        await store.add_consents(begun)

    await asyncio.gather(*map(learn, names), *map(begin, names))
    again_here = FileStore(path)
    stored = await again_here.load(OWNER)
    assert stored is not None and set(stored["marks"]) == set(names)
    found = await again_here.load_consents()
    assert found is not None and set(found["begun"]) == set(names)
