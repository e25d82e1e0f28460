"""What a stolen session has added is seen and undone, and an identity is proven anew."""

from __future__ import annotations

import pytest
from live import sign_in

from blindpipe.api_errors import InvalidCredentials, NotFound
from blindpipe.testing import DevCluster


async def test_what_another_session_added_is_undone(cluster: DevCluster) -> None:
    ada, bob = await cluster.user("ada"), await cluster.user("bob")
    options = await cluster.agent("foreign", bob.client)
    phone = await sign_in(cluster, ada, "phone", node=1)
    # A thief's device has no keys, and opens the conversation all the same.
    await phone.request(
        "POST", "/conversations", body={"type": "agent", "agent_id": options.agent_id}
    )
    await cluster.agent("planted", phone)
    device = next(it for it in await ada.client.devices.list() if it["device_id"] == "phone")
    session = device["session_id"]
    assert session is not None
    await ada.client.devices.revoke("phone")

    listed = {it["session_id"]: it["changes"] for it in await ada.client.sessions.list()}
    assert listed[session] == 2
    changes = await ada.client.sessions.changes(session)
    assert {(it["kind"], it["name"]) for it in changes} == {
        ("relation", "foreign"),
        ("agent", "planted"),
    }
    with pytest.raises(NotFound):
        await bob.client.sessions.changes(session)
    first = next(it for it in changes if it["kind"] == "relation")
    assert await ada.client.sessions.undo(session, [first["id"]]) == [first]
    assert [it["kind"] for it in await ada.client.sessions.undo(session)] == ["agent"]
    assert not await ada.client.sessions.changes(session)
    assert not await ada.client.sessions.undo(session)


async def test_an_identity_is_proven_anew(cluster: DevCluster) -> None:
    ada = await cluster.user("ada")
    await ada.client.reauth(account_password=ada.password)
    with pytest.raises(InvalidCredentials):
        await ada.client.reauth(account_password="another password")
