"""The clients' answers to each end of a connection, and to each refusal for want of budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from live import until

from blindpipe import Closed, Hooks, RateLimited
from blindpipe.errors import ApiError, ConnectionLost
from blindpipe.hooks import HookCaller
from blindpipe.transport import socket as sockets
from blindpipe.transport.http import Call, Http
from blindpipe.transport.socket import Frame, Socket, SocketOptions

LOGGER = logging.getLogger("blindpipe")


@asynccontextmanager
async def _serving(path: str, handle: Any) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get(path, handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _http(url: str, hooks: Hooks | None = None) -> Http:
    async def token() -> None:
        return None

    return Http(url, HookCaller(hooks, LOGGER), token)


async def _waits(
    monkeypatch: pytest.MonkeyPatch,
    endings: Sequence[tuple[int, list[Frame]]],
    renewals: Sequence[bool | Exception] = (),
    hooks: Hooks | None = None,
    unread: Sequence[Exception] = (),
) -> list[float]:
    """The waits in seconds before each further connection of a client whose connections end so.

    The frames of an ending come before it. All jitter is full.
    """
    left, waits, renewed, unread = list(endings), list[float](), list(renewals), list(unread)

    async def handle(request: web.Request) -> web.StreamResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.receive()
        code, frames = left.pop(0)
        for frame in frames:
            await connection.send_json(frame)
        await connection.close(code=code)
        return connection

    async def pause(self: Socket, seconds: float) -> None:
        waits.append(seconds)
        if not left:
            self.close()

    async def auth() -> Frame:
        if unread:
            raise unread.pop()
        return {"type": "auth"}

    async def renew() -> bool:
        outcome = renewed.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def holders() -> Sequence[str]:
        return ["another"]

    monkeypatch.setattr(Socket, "_pause", pause)
    monkeypatch.setattr(sockets, "full_jitter", lambda n, first, most: min(most, first << n))
    async with _serving("/ws", handle) as url:
        http = _http(url)
        options = SocketOptions(
            http,
            HookCaller(hooks, LOGGER),
            auth,
            renew,
            on_frame=lambda *_: None,
            on_ready=lambda _: None,
            holders=holders,
        )
        try:
            await Socket(options).run()
        finally:
            await http.close()
    return waits


async def test_lost_connections_wait_longer_and_longer_until_one_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready: list[Frame] = [{"type": "ready"}, {"type": "caught_up"}]
    lost: list[tuple[int, list[Frame]]] = [(1001, [])] * 8
    waits = await _waits(monkeypatch, [*lost, (1001, ready)])
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5]


@pytest.mark.parametrize("code", [1011, 1012, 1013, 4410])
async def test_a_node_that_leaves_is_followed_by_another_at_once(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # Not twice: a server that ends every connection so is not asked without a pause.
    assert await _waits(monkeypatch, [(code, []), (code, [])]) == [0, 1]


async def test_places_floods_and_the_servers_own_word(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, object]] = []

    def disconnected(code: int, holders: object = None) -> None:
        told.append((code, holders))

    hint: list[Frame] = [{"type": "reconnect", "after_ms": 1234}]
    endings = [(4409, []), (4429, []), (1001, hint)]
    waits = await _waits(monkeypatch, endings, hooks={"disconnected": disconnected})
    assert waits == [10, 5, 1.234]
    assert (4409, ["another"]) in told


async def test_a_refused_credential_is_renewed_or_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _waits(monkeypatch, [(4401, []), (4401, [])], [True, True]) == [0, 0]
    for code in (4400, 4401, 4403):
        with pytest.raises(Closed) as closed:
            await _waits(monkeypatch, [(code, [])], [False])
        assert closed.value.close_code == code


async def test_only_a_refused_renewal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    away: list[Exception] = [ConnectionLost(), ApiError("HTTP_503", 503, "later")] * 4
    refused: list[tuple[int, list[Frame]]] = [(4401, [])] * 9
    assert await _waits(monkeypatch, refused, [*away, True]) == [1, 2, 4, 8, 16, 30, 30, 30, 0]
    # Nor does a token that cannot be had for now, before the connection.
    assert await _waits(monkeypatch, [(1012, [])], unread=away[:3]) == [0.5, 1, 2, 4]


async def test_a_frame_that_is_none_ends_the_connection_and_not_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strange: list[Frame] = [{"no": "type"}]
    assert await _waits(monkeypatch, [(1000, strange), (1000, [])]) == [0.5, 1]


async def test_a_refusal_for_want_of_budget_says_how_long_to_wait() -> None:
    limited: list[tuple[str, int]] = []
    waits = iter([100, None, 61_000])

    async def handle(request: web.Request) -> web.Response:
        wait = next(waits, None) if request.query.get("limited") else None
        if wait is None:
            spent = {"ratelimit": '"agent_tier_1";r=0;t=1'}
            return web.json_response({"data": "there"}, headers=spent)
        params = {"retry_after_ms": wait, "scope": "agent_tier_1"}
        error = {"code": "RATE_LIMITED", "message": "later", "params": params}
        return web.json_response({"error": error}, status=429)

    def rate_limited(scope: str, wait_ms: int) -> None:
        limited.append((scope, wait_ms))

    async with _serving("/there", handle) as url:
        http = _http(url, {"rate_limited": rate_limited})
        assert await http.data(Call("GET", "/there", {"limited": 1})) == "there"
        assert limited[0][0] == "agent_tier_1" and 100 <= limited[0][1] <= 110
        # The budget's last call was used, so the next one waits before it is refused.
        assert limited[1] == ("agent_tier_1", 1000)
        begun = asyncio.get_running_loop().time()
        # Nobody waits beyond a minute.
        with pytest.raises(RateLimited):
            await http.data(Call("GET", "/there", {"limited": 1}))
        assert asyncio.get_running_loop().time() - begun > 0.9
        await http.close()


async def test_the_header_of_a_refusal_rules_its_repeat() -> None:
    refused: list[int] = []

    async def handle(_request: web.Request) -> web.Response:
        return web.Response(status=503, headers={"retry-after": "7"})

    def retry(attempt: int, wait_ms: int, route: str) -> None:
        refused.append(wait_ms)

    async with _serving("/there", handle) as url:
        http = _http(url, {"retry": retry})
        asked = asyncio.create_task(http.data(Call("GET", "/there")))
        await until(lambda: refused)
        asked.cancel()
        # A call that may not be repeated fails at once.
        with pytest.raises(ApiError):
            await http.data(Call("DELETE", "/there"))
        await http.close()
    assert refused == [7000]
