"""The calls of an account: a sign-in that goes on, agents, profile, blocks, relations, limits."""

from __future__ import annotations

import hmac
import os
from datetime import UTC, datetime, timedelta

import pytest
from live import MANIFEST, sign_in, texts

from blindpipe import Agent, AgentOptions, ApiError, Client, Closed, UsageError
from blindpipe.client import DeviceKeys, StoredSession
from blindpipe.e2ee import AgentKey
from blindpipe.testing import DevCluster, TestUser


async def test_a_sign_in_goes_on_after_a_restart(cluster: DevCluster, ada: TestUser) -> None:
    kept: list[StoredSession] = []
    laptop = await sign_in(cluster, ada, "laptop", on_session=kept.append)
    keys: DeviceKeys = await laptop.devices.restore(ada.protection_password)
    conversation = await laptop.open_group([], title="notes")
    await conversation.send("before")
    await laptop.close()

    options = cluster.options(on_session=kept.append)
    again = await Client.resume(options, kept[-1])
    again.devices.use_keys(keys)
    assert (again.user_id, again.account.device_id) == (ada.client.user_id, "laptop")
    assert await texts(again.conversation(conversation.id)) == ["before"]
    # A renewal replaces the stored one, and a logout ends it.
    assert kept[-1].refresh_token != kept[0].refresh_token
    assert kept[-1].refresh_token not in repr(kept[-1])
    await again.account.logout()
    await again.close()
    with pytest.raises(Closed):
        await Client.resume(options, kept[-1])


async def test_agents_are_made_described_and_given_tokens(
    cluster: DevCluster, ada: TestUser
) -> None:
    agents = ada.client.agents
    created = await agents.create("clerk", description="files things")
    id, token = created["agent_id"], created["token"]
    assert id in [agent["agent_id"] async for agent in agents.list()]
    assert (await agents.update(id, display_name="chief clerk"))["display_name"] == "chief clerk"

    agent = Agent(
        AgentOptions(
            url=cluster.nodes[0],
            agent_id=id,
            token=token,
            key=AgentKey.random().to_text(),
            manifest=MANIFEST,
            ssl_context=cluster.ssl_context,
        )
    )
    await agent.check()
    shown = await agents.get(id)
    assert shown["manifest"]["tools"][0]["name"] == "send_email"
    assert len((await agents.keys(id))["keys"]) == 1
    assert (await agent.request("GET", f"/agents/{id}"))["data"]["agent_id"] == id
    with pytest.raises(UsageError):
        await agent.request("GET", "agents")
    assert [each async for each in agent.approvals()] == []
    assert [each async for each in agent.conversations()] == []
    await agent.close()

    assert (await agents.rotate(id))["token"] != token
    with pytest.raises(ApiError):
        await agents.webhook(id)
    assert (await agents.revoke_token(id))["connections_closed"] == 0
    await agents.delete(id)
    assert id not in [agent["agent_id"] async for agent in agents.list()]


async def test_the_calls_of_an_account(ada: TestUser, bob: TestUser) -> None:
    client = ada.client
    assert (await client.update_profile(display_name="Ada L."))["display_name"] == "Ada L."
    assert (await client.profile())["user_id"] == client.user_id
    await client.block(bob.client.user_id)
    assert [each["principal_id"] async for each in client.blocks()] == [bob.client.user_id]
    await client.unblock(bob.client.user_id)
    assert [each async for each in client.blocks()] == []
    assert [each async for each in client.passkeys()] == []
    assert await client.limits()
    share = await client.share(expires_at=datetime.now(UTC) + timedelta(hours=1))
    card = await bob.client.open_share(share["share_id"])
    assert (card["kind"], card["user_id"]) == ("contact", client.user_id)
    await client.revoke_share(share["share_id"])
    with pytest.raises(ApiError):
        await bob.client.open_share(share["share_id"])
    with pytest.raises(ApiError):
        await client.delete_object("0" * 32)
    assert (await client.version())["supported"]
    created = await client.agents.create("searched for")
    await client.open_agent(created["agent_id"])
    relation = [each async for each in client.relations()][0]
    assert relation["agent_id"] == created["agent_id"]
    assert [hit["kind"] async for hit in client.search("searched", types=["agent"])] == ["agent"]
    assert [read async for read in client.access_log(agent_id=created["agent_id"])] == []
    assert (await client.revoke_relation(relation["relation_id"]))["state"] == "revoked"
    group = await client.open_group([bob.client.user_id], title="two")
    await group.set_title("both")
    member = await group.set_role(bob.client.user_id, "admin")
    assert member["role"] == "admin"
    direct = await client.open_direct(bob.client.user_id)
    assert (await direct.request_rotation())["request_id"]
    await client.change_password(ada.password, "another " + ada.password)
    with pytest.raises(UsageError):
        await client.request("GET", "https://example.com/")


async def test_passkeys_and_a_forgotten_password(cluster: DevCluster, bob: TestUser) -> None:
    challenge = await bob.client.begin_passkey()
    assert challenge["public_key"]["challenge"]
    with pytest.raises(ApiError):
        await bob.client.add_passkey(challenge["challenge_id"], {}, name="key")
    options = cluster.options()
    begun = await Client.begin_passkey_login(options)
    assert begun["public_key"]["challenge"]
    with pytest.raises(ApiError):
        await Client.login_with_passkey(
            options, challenge_id=begun["challenge_id"], credential={}
        )
    with pytest.raises(ApiError):
        await Client.reset_password(
            options, email=bob.email, code="000000", new_password="quite another one"
        )


async def test_messages_are_found_by_the_tokens_of_a_program(ada: TestUser) -> None:
    key = os.urandom(32)

    def tokens(words: str) -> list[str]:
        return [hmac.new(key, word.encode(), "sha256").hexdigest() for word in words.split()]

    client = ada.client
    group = await client.open_group([], title="notes")
    both = await group.send("red green", search_tokens=tokens("red green"))
    red = await group.send("red", search_tokens=tokens("red"))
    await group.send("none")

    async def found(words: str) -> list[str]:
        return [hit["id"] async for hit in client.search(tokens=tokens(words))]

    assert await found("red") == [red["message_id"], both["message_id"]]
    assert await found("green red") == [both["message_id"]]
    assert await found("none") == []


async def test_words_are_found_where_a_person_wants_it(cluster: DevCluster) -> None:
    eve = (await cluster.user("eve", searchable=True)).client
    bob, carol = [(await cluster.user(name)).client for name in ("bob", "carol")]
    group = await eve.open_group([bob.user_id], title="words")

    async def found(reader: Client, text: str) -> list[str]:
        return [hit["id"] async for hit in reader.conversation(group.id).search(text)]

    first = await group.send("Deploy the Straße today")
    assert await found(bob, "STRASSE, deploy!") == [first["message_id"]]
    assert await found(bob, "deploy tomorrow") == []
    # Nothing is told of the words of others.
    await bob.conversation(group.id).send("deploy nothing")
    assert await found(eve, "deploy") == [first["message_id"]]
    for words in ("...", " ".join(map(str, range(17)))):
        with pytest.raises(UsageError):
            await found(eve, words)

    await group.add_members(carol.user_id)
    second = await group.send("deploy again")
    assert await found(bob, "deploy") == [second["message_id"], first["message_id"]]
    assert await found(carol, "deploy") == [second["message_id"]]
    for client in (eve, bob, carol):
        await client.close()


async def test_a_device_subscribes_to_pushes_and_ends_them(ada: TestUser) -> None:
    devices = ada.client.devices
    with pytest.raises(ApiError):
        await devices.subscription()
    # Any point of the curve will do, and nothing is sent to the address here.
    point, secret = await devices.push_key(), "A" * 22
    endpoint = "http://127.0.0.1:9/push"
    made = await devices.subscribe(endpoint, p256dh=point, auth=secret)
    assert (made["kind"], made["last_error"]) == ("webpush", None)
    assert endpoint not in str(made)
    replaced = await devices.subscribe(endpoint, p256dh=point, auth=secret, kind="unifiedpush")
    assert replaced["kind"] == "unifiedpush"
    assert await devices.subscription() == replaced
    with pytest.raises(ApiError):
        await devices.subscribe(endpoint, p256dh="no point", auth=secret)
    await devices.unsubscribe()
    with pytest.raises(ApiError):
        await devices.subscription()
