"""A server that refuses a fresh secret keeps nobody in a conversation that they were removed from."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attacker import Attacker, Victim, attacked_person, attacking
from live import MANIFEST, TOOLS, answer_to, collect, grant, running, sign_in, texts

from blindpipe import Agent, Client, Context, Conversation, Hooks, KeyUnavailable
from blindpipe.client import DeviceKeys, EpochMarks, ToolRequestEvent
from blindpipe.testing import DevCluster, TestUser


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal for want of budget is final."""
    monkeypatch.setattr("blindpipe.transport.http.MAX_LIMIT_WAIT_SECONDS", -1)


class _Refusals(Victim):
    """What a client told of secrets that it could not make."""

    def __init__(self) -> None:
        super().__init__()
        self.not_rotated: list[tuple[str, str]] = []

    def tell(self, conversation_id: str, reason: str) -> None:
        self.not_rotated.append((conversation_id, reason))

    @property
    def hooks(self) -> Hooks:
        return {**super().hooks, "not_rotated": self.tell}


@asynccontextmanager
async def _behind(
    cluster: DevCluster,
) -> AsyncIterator[tuple[TestUser, Attacker, _Refusals]]:
    victim = _Refusals()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim) as ada,
    ):
        yield ada, attacker, victim


def _refuse(attacker: Attacker, status: int) -> None:
    """The server takes no rotation any more, and says that none is due."""

    def on_status(method: str, path: str) -> int | None:
        return status if method == "POST" and path.endswith("/rotate") else None

    def on_answer(_method: str, path: str, data: Any) -> Any:
        if isinstance(data, dict) and "rotation_required" in data:
            return {**data, "rotation_required": False}
        return data

    attacker.on_status, attacker.on_answer = on_status, on_answer


def _allow(attacker: Attacker) -> None:
    attacker.on_status = lambda _method, _path: None


@pytest.mark.parametrize("status", [429, 409])
async def test_after_a_removal_nothing_is_sealed_with_the_old_secret(
    cluster: DevCluster, bob: TestUser, status: int
) -> None:
    eve = await cluster.user("eve")
    async with _behind(cluster) as (ada, attacker, victim):
        group = await ada.client.open_group([bob.client.user_id, eve.client.user_id])
        await group.send("with Eve")
        _refuse(attacker, status)
        refusal: Any = KeyUnavailable if status == 429 else Exception
        with pytest.raises(refusal):
            await group.remove_member(eve.client.user_id)
        for _ in range(2):
            with pytest.raises(refusal):
                await group.send("still for Eve?")
        assert victim.not_rotated == ([(group.id, "change")] * 3 if status == 429 else [])
        _allow(attacker)
        await group.send("without Eve")
        assert await texts(bob.client.conversation(group.id)) == ["with Eve", "without Eve"]
    await eve.client.close()


async def _to_the_phone_too(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> tuple[Conversation, Client]:
    """A conversation whose secret a second device of Ada's has, and that device."""
    direct = await ada.client.open_direct(bob.client.user_id)
    phone = await sign_in(cluster, ada, "phone")
    await phone.devices.restore(ada.protection_password)
    await direct.send("to the phone too")
    return direct, phone


async def test_after_a_revocation_nothing_is_sealed_with_the_old_secret(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with _behind(cluster) as (ada, attacker, victim):
        direct, phone = await _to_the_phone_too(cluster, ada, bob)
        _refuse(attacker, 429)
        await ada.client.devices.revoke("phone")
        with pytest.raises(KeyUnavailable):
            await direct.send("still to the phone?")
        assert victim.not_rotated == [(direct.id, "change")] * 2
        _allow(attacker)
        await direct.send("to the phone no more")
        said = ["to the phone too", "to the phone no more"]
        assert await texts(bob.client.conversation(direct.id)) == said
        await phone.close()


async def test_a_secret_that_is_due_for_a_revocation_seals_nothing_after_a_restart_either(
    cluster: DevCluster, bob: TestUser
) -> None:
    async with _behind(cluster) as (ada, attacker, victim):
        direct, phone = await _to_the_phone_too(cluster, ada, bob)
        _refuse(attacker, 429)
        refused = attacker.on_status
        # The server lists no conversation either.
        attacker.on_status = lambda method, path: (
            429 if path == "/conversations" else refused(method, path)
        )
        await ada.client.devices.revoke("phone")
        session, device_id = ada.client.session, ada.client.account.device_id
        assert session.options.signer
        marks = {id: EpochMarks.stored(mark.store()) for id, mark in session.marks().items()}
        again = await sign_in(
            cluster,
            ada,
            device_id,
            url=attacker.url,
            ssl_context=None,
            hooks=victim.hooks,
            pins=ada.client.trust.store(),
            marks=marks,
        )
        again.devices.use_keys(DeviceKeys(session.options.signer))
        direct = again.conversation(direct.id)
        with pytest.raises(KeyUnavailable):
            await direct.send("still to the phone?")
        _allow(attacker)
        await direct.send("to the phone no more")
        said = ["to the phone too", "to the phone no more"]
        assert await texts(bob.client.conversation(direct.id)) == said
        await phone.close()
        await again.close()


async def test_age_alone_stops_nobody_for_ten_minutes(
    cluster: DevCluster, bob: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _behind(cluster) as (ada, attacker, victim):
        direct = await ada.client.open_direct(bob.client.user_id)
        await direct.send("first")
        monkeypatch.setattr("blindpipe.e2ee.room._MAX_EPOCH_MESSAGES", 1)
        _refuse(attacker, 429)
        await direct.send("second")
        now = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now() + 9 * 60 * 10**9)
        await direct.send("third")
        assert victim.not_rotated == []
        monkeypatch.setattr(time, "time_ns", lambda: now() + 11 * 60 * 10**9)
        with pytest.raises(KeyUnavailable):
            await direct.send("fourth")
        assert victim.not_rotated == [(direct.id, "age")]
        monkeypatch.setattr(time, "time_ns", now)
        _allow(attacker)
        await direct.send("fourth, with a fresh secret")
        assert len(await texts(bob.client.conversation(direct.id))) == 4


async def test_nothing_runs_whose_answer_could_not_be_sealed(cluster: DevCluster) -> None:
    victim, claims, runs = _Refusals(), list[str](), list[str]()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim, tools=TOOLS) as ada,
    ):
        options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
        agent = Agent(options)

        @agent.on("message")
        async def ask(ctx: Context) -> None:
            result = await ctx.call("send_email", "notification:send", {})
            await ctx.reply(f"it was {result.status}")

        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await grant(ada, conversation, options)
            phone = await sign_in(cluster, ada, "phone")
            await phone.devices.restore(ada.protection_password)
            events = await collect(
                ada,
                lambda: conversation.send("a mail, please"),
                lambda all: isinstance(all[-1], ToolRequestEvent),
            )
            assert isinstance(events[-1], ToolRequestEvent)
            request = events[-1].request
            _refuse(attacker, 429)
            await ada.client.devices.revoke("phone")

            def on_path(path: str) -> str:
                claims.extend([path] if path.endswith("/claim") else [])
                return path

            attacker.on_path = on_path
            await request.approve()
            with pytest.raises(KeyUnavailable):
                await request.execute(lambda tool, _mail: runs.append(tool))
            with pytest.raises(KeyUnavailable):
                await request.deny()
            assert runs == claims == []
            # It is still approved, and still this device's to run.
            _allow(attacker)
            answer = await answer_to(
                ada, lambda: request.execute(lambda tool, _mail: runs.append(tool))
            )
        assert answer.text == "it was executed" and runs == ["send_email"] and len(claims) == 1
        await phone.close()
