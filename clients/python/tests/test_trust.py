"""Keys that nobody introduced wait for a tap; a device goes on with what it kept."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from blindpipe import Agent, Context
from blindpipe.client import CaughtUp, DeviceKeys
from blindpipe.e2ee.trust import NoticeKind
from blindpipe.testing import DevCluster, TestUser
from live import answer_to, running, sign_in, until


async def test_a_device_that_nobody_introduced_waits_for_a_tap(
    cluster: DevCluster, bob: TestUser
) -> None:
    ada = await cluster.user("ada")
    changed, reasons = set[tuple[str, str | None]](), list[str]()

    def key_changed(
        type: str, principal_id: str, key_id: str | None, conversation_id: str | None
    ) -> None:
        changed.add((type, key_id))

    def undecryptable(reason: str, event_id: str, conversation_id: str) -> None:
        reasons.append(reason)

    options = await cluster.agent("wary", ada.client)
    agent = Agent(
        replace(options, hooks={"key_changed": key_changed, "undecryptable": undecryptable})
    )
    heard: list[str] = []

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        heard.append(ctx.text)
        await ctx.reply(f"heard: {ctx.text}")

    async with running(agent):
        conversation = await ada.client.open_agent(options.agent_id)
        with_bob = await ada.client.open_direct(bob.client.user_id)
        assert (await answer_to(ada, lambda: conversation.send("before"))).text
        await with_bob.send("before")
        bobs = bob.client.conversation(with_bob.id)
        assert (await anext(aiter(bobs.history()))).text == "before"

        # The server, or a thief of the password, could make such a device.
        stranger = await sign_in(cluster, ada, "stranger")
        keys = await stranger.devices.create("another protection password")
        key_id = keys.signer.key_id.hex()
        await stranger.conversation(conversation.id).send("from a stranger")
        assert await until(lambda: reasons) == ["unknown_sender_key"]
        assert ("waiting_key", key_id) in changed
        # Ada's other devices say so at every start.
        alarms: list[str | None] = []

        def alarm(type: str, key_id: str | None, **_told: str | None) -> None:
            if type == "own_list_key":
                alarms.append(key_id)

        phone = await sign_in(cluster, ada, "phone", hooks={"key_changed": alarm})
        await phone.devices.restore(ada.protection_password)
        async with aclosing(phone.events()) as events:
            async for event in events:
                if isinstance(event, CaughtUp):
                    break
        await phone.close()
        assert key_id in alarms

        await stranger.conversation(with_bob.id).send("from a stranger")
        shown = await anext(aiter(bobs.history()))
        assert shown.opened and not shown.opened.sender.authentic
        assert NoticeKind.WAITING_KEY in [notice.kind for notice in shown.opened.notices]

        # A person behind the agent, and Bob, asked Ada.
        await agent.trust("user", ada.client.user_id, key_id)
        user = TestUser(stranger, ada.email, ada.password, ada.protection_password)
        on_stranger = stranger.conversation(conversation.id)
        assert (await answer_to(user, lambda: on_stranger.send("me"))).text == "heard: me"
        bob.client.confirm(ada.client.me, key_id)
        shown = await anext(aiter(bobs.history()))
        assert shown.opened and shown.opened.sender.authentic
    assert heard == ["before", "me"]
    await stranger.close()
    await ada.client.close()


async def test_a_device_goes_on_with_what_it_kept(cluster: DevCluster, bob: TestUser) -> None:
    learned: list[None] = []
    ada = await cluster.user("ada", device_id="laptop", on_trust_changed=lambda: learned.append(None))
    conversation = await ada.client.open_direct(bob.client.user_id)
    await conversation.send("kept")
    assert learned, "there was something to keep"
    signer = ada.client.session.options.signer
    assert signer
    keys, marks = DeviceKeys(signer), ada.client.session.marks()
    pins = ada.client.trust.store()
    await ada.client.close()
    again = await sign_in(cluster, ada, "laptop", node=1, pins=pins, marks=marks)
    again.devices.use_keys(keys)
    kept = again.conversation(conversation.id)
    assert (await anext(aiter(kept.history()))).text == "kept"
    pin = again.trust.pin(bob.client.me, _key_of(bob))
    assert pin and pin.from_store
    await kept.send("and on")
    assert again.session.marks()[conversation.id].epoch >= marks[conversation.id].epoch > 0
    await again.close()


def _key_of(user: TestUser) -> bytes:
    signer = user.client.session.options.signer
    assert signer
    return signer.key_id


async def test_a_link_that_is_followed_is_told_to_the_store(
    cluster: DevCluster, bob: TestUser
) -> None:
    learned: list[None] = []
    ada = await cluster.user("ada", on_trust_changed=lambda: learned.append(None))
    options = await cluster.agent("linked", bob.client)
    key_id = options.keys()[0].keys().key_id.hex()
    learned.clear()
    await ada.client.open_agent(options.agent_id, key_id=key_id)
    assert learned
    linked = [entry["linked"] for entry in ada.client.trust.store()["principals"].values()]
    assert key_id in linked
    await ada.client.close()
