"""A person signs in with a passkey, which an authenticator of the program makes and uses."""

from __future__ import annotations

import json

import pytest
from authenticator import SoftAuthenticator
from live import texts

from blindpipe import Client
from blindpipe.api_errors import PasskeyInvalid
from blindpipe.testing import DevCluster, TestUser


def _authenticator(cluster: DevCluster) -> SoftAuthenticator:
    return SoftAuthenticator(json.loads(cluster.file.read_text())["origin"])


async def test_a_person_makes_a_passkey_and_signs_in_with_it_on_another_device(
    cluster: DevCluster, bob: TestUser
) -> None:
    ada, key = await cluster.user("ada"), _authenticator(cluster)
    made = await ada.client.create_passkey(key, name="laptop")
    assert [each["name"] async for each in ada.client.passkeys()] == [made["name"]] == ["laptop"]
    conversation = await ada.client.open_direct(bob.client.user_id)
    await conversation.send("before")

    options = cluster.options(1, device_id="phone")
    async with await Client.login_with_authenticator(options, key) as phone:
        assert (phone.user_id, phone.account.device_id) == (ada.client.user_id, "phone")
        # A passkey opens the account, and the protection password the keys.
        assert not phone.session.has_keys
        await phone.devices.restore(ada.protection_password)
        await phone.conversation(conversation.id).send("from the phone")
        await phone.reauth_with_authenticator(key)
        assert await texts(conversation) == ["before", "from the phone"]
    await ada.client.close()


async def test_a_passkey_that_nobody_has_added_or_that_was_copied_signs_nobody_in(
    cluster: DevCluster, bob: TestUser
) -> None:
    key, other = _authenticator(cluster), _authenticator(cluster)
    await bob.client.create_passkey(key)
    # It says the same user, and was never added.
    other._user_handle = key._user_handle
    foreign = SoftAuthenticator("https://example.org")
    with pytest.raises(PasskeyInvalid):
        await bob.client.create_passkey(foreign)
    with pytest.raises(PasskeyInvalid):
        await Client.login_with_authenticator(cluster.options(), other)
    with pytest.raises(PasskeyInvalid):
        await bob.client.reauth_with_authenticator(other)
    for _ in range(2):
        client = await Client.login_with_authenticator(cluster.options(), key)
        await client.close()
    key.counter -= 2
    with pytest.raises(PasskeyInvalid):
        await Client.login_with_authenticator(cluster.options(), key)
    assert [each async for each in bob.client.passkeys()] == [], "the service removes a copied key"
