"""The mistakes of a first start are named, and a key that is about to end is kept."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import replace

import pytest
from live import answer_to, running, sign_in, until

from blindpipe import (
    Agent,
    AgentOptions,
    Client,
    ClientOptions,
    ConnectionLost,
    DecryptError,
    UsageError,
)
from blindpipe.agent import startup
from blindpipe.e2ee import AgentKey
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.http import Call


async def test_a_certificate_that_is_not_trusted_is_named_with_its_cause(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("trusting", ada.client)
    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match="certificate is not trusted.*SSL_CERT_FILE") as lost:
        await Agent(replace(options, ssl_context=None)).serve()
    assert lost.value.is_untrusted and time.monotonic() - begun < 2
    causes: list[BaseException] = [lost.value]
    while causes[-1].__cause__ or causes[-1].__context__:
        causes.append(causes[-1].__cause__ or causes[-1].__context__ or causes[-1])
    assert any(isinstance(each, ssl.SSLCertVerificationError) for each in causes)
    with pytest.raises(ConnectionLost, match="cannot be reached") as away:
        await Agent(replace(options, url="https://127.0.0.1:9")).check()
    assert isinstance(away.value.__cause__, OSError)


async def _regenerate(user: TestUser, agent_id: str) -> str:
    call = Call("POST", f"/agents/{agent_id}/token/regenerate", body={"emergency": False})
    made = await user.client.account.http.data(call)
    token: str = made["token"]
    return token


async def _keys(user: TestUser, agent_id: str) -> list[tuple[str, bool]]:
    shown = await user.client.account.http.data(Call("GET", f"/agents/{agent_id}/keys"))
    return [(key["key_id"], key["current"]) for key in shown["keys"]]


async def test_a_key_that_a_new_token_has_put_an_end_to_is_registered_again(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = await cluster.agent("renewed", ada.client)
    key_id = options.keys()[0].keys().key_id.hex()
    first = Agent(options)
    await first.check()
    await first.close()
    token = await _regenerate(ada, options.agent_id)
    assert await _keys(ada, options.agent_id) == [(key_id, False)]

    monkeypatch.setattr("blindpipe.agent.agent.KEY_CHECK_SECONDS", 0.1, raising=False)
    agent = Agent(replace(options, token=token))
    agent.on("message", lambda ctx: ctx.reply("here"))
    async with running(agent):
        assert await _keys(ada, options.agent_id) == [(key_id, True)]
        # And while it runs: its token goes on for a while after the next one was made.
        await _regenerate(ada, options.agent_id)
        async with asyncio.timeout(10):
            while await _keys(ada, options.agent_id) != [(key_id, True)]:
                await asyncio.sleep(0.05)
        conversation = await ada.client.open_agent(options.agent_id)
        assert (await answer_to(ada, lambda: conversation.send("?"))).text == "here"


async def test_a_key_that_another_one_has_replaced_is_not_put_back(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    options = await cluster.agent("rotated", ada.client)
    first = Agent(options)
    await first.check()
    await first.close()
    newer = Agent(replace(options, key=AgentKey.random().to_text()))
    # Its developer registers the newer key by hand.

    pair = newer._options.keys()[0].keys()
    await startup._register_key(newer._http, options.agent_id, pair)
    await newer.close()
    async with running(Agent(options)):
        await until(lambda: "another key than this agent's" in caplog.text)
    current = [key for key, is_current in await _keys(ada, options.agent_id) if is_current]
    assert current == [pair.key_id.hex()]


@pytest.mark.parametrize(
    "url", ["http://example.com", "http://10.0.0.1:8000", "ftp://x", "x", "http://[x"]
)
def test_no_token_goes_in_clear_over_a_network(url: str) -> None:
    options = AgentOptions(url=url, agent_id=new_ulid(), token="hsk_none")
    with pytest.raises(UsageError):
        Agent(options)
    with pytest.raises(UsageError):
        Client(ClientOptions(url))
    if url == "http://10.0.0.1:8000":
        Agent(replace(options, allow_http=True))
        Client(ClientOptions(url, allow_http=True))
    for here in ("http://localhost:1", "http://127.0.0.1:1/", "http://[::1]:1", "https://x"):
        Agent(replace(options, url=here))


async def test_the_password_that_the_server_sees_protects_no_backup(
    cluster: DevCluster, ada: TestUser, caplog: pytest.LogCaptureFixture
) -> None:
    phone = await sign_in(cluster, ada, "phone")
    with pytest.raises(DecryptError):
        await phone.devices.create(ada.password)
    await phone.devices.restore(ada.protection_password)
    assert "first contact with everybody" in caplog.text
    await phone.close()
