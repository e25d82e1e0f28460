"""Anybody reaches a webhook's address: whatever they send, the receiver answers and goes on."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import random
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from blindpipe import Agent, AgentOptions, UsageError, verify_delivery
from blindpipe.agent.webhook import MAX_BODY_BYTES, AsgiApp
from blindpipe.e2ee import AgentKey
from blindpipe.e2ee.ids import new_ulid

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
REQUESTS = 400


def _agent() -> Agent:
    key = AgentKey.random().to_text()
    return Agent(AgentOptions(url="http://127.0.0.1:9", agent_id=new_ulid(), token="no", key=key))


def _signed(body: bytes) -> dict[str, str]:
    timestamp, key = str(int(time.time())), base64.b64decode(SECRET.removeprefix("whsec_"))
    signature = hmac.digest(key, f"msg_1.{timestamp}.".encode() + body, "sha256")
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
    }


def _raw(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


@asynccontextmanager
async def _served(app: AsgiApp, faults: list[BaseException]) -> AsyncIterator[int]:
    """A server that is less strict than any true one, so that more reaches the application."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, _, rest = (await reader.read(1 << 16)).partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            method, _, path = first.decode("latin-1").partition(" ")
            pairs = [line.partition(b":")[::2] for line in lines]
            headers = [(name.strip().lower(), value.strip()) for name, value in pairs]
            wanted = dict(headers).get(b"content-length", b"")
            size = int(wanted) if wanted.isdigit() and len(wanted) < 9 else len(rest)
            chunks = [rest[:size]]

            async def receive() -> MutableMapping[str, Any]:
                nonlocal size
                chunk = chunks.pop(0) if chunks else await reader.read(1 << 16)
                size -= len(chunk)
                if not chunk and size > 0:
                    return {"type": "http.disconnect"}
                return {"type": "http.request", "body": chunk, "more_body": size > 0}

            async def send(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    writer.write(b"HTTP/1.1 %d x\r\n\r\n" % message["status"])
                else:
                    writer.write(message["body"])

            scope = {"type": "http", "method": method, "path": path, "headers": headers}
            await app(scope, receive, send)
        except BaseException as error:
            faults.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _ask(port: int, data: bytes) -> int | None:
    """The status of the answer; None if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        told = await reader.read()
    except ConnectionError:
        return None
    finally:
        writer.close()
    return int(told.split(b" ", 2)[1]) if told.startswith(b"HTTP/1.1 ") else None


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0:
                changed[at:at] = chance.randbytes(chance.randrange(1, 40))
            case 1:
                del changed[at : at + chance.randrange(1, 40)]
            case 2:
                changed[at : at + 1] = chance.randbytes(1)
            case _:
                del changed[at:]
    return bytes(changed)


async def test_raw_bytes_over_a_socket_end_nothing() -> None:
    agent, faults, statuses = _agent(), list[BaseException](), set[int | None]()
    chance = random.Random(7)
    body = json.dumps({"event": "webhook.test", "event_id": new_ulid(), "data": {}}).encode()
    genuine = _raw("POST", "/", _signed(body), body)
    async with _served(agent.asgi(SECRET), faults) as port:
        for number in range(REQUESTS):
            junk = chance.randbytes(chance.randrange(1, 400)) if number % 4 == 0 else None
            statuses.add(await _ask(port, junk or _mutated(genuine, chance)))
        for method, path in (("TRACE", "/"), ("OPTIONS", "*"), ("CONNECT", "a:1"), ("", "")):
            assert await _ask(port, _raw(method, path, {}, b"")) == 405
        # Genuine, and yet no event.
        for strange in (b"", b"[]", b"1", b'{"event":1,"data":{}}', b'{"event":"x"}', b"\xff{"):
            assert await _ask(port, _raw("POST", "/", _signed(strange), strange)) == 400
        large = bytes(MAX_BODY_BYTES + 1)
        assert await _ask(port, _raw("POST", "/", _signed(large), large)) == 413
        assert await _ask(port, genuine) == 200
    assert faults == []
    assert statuses <= {None, 200, 401, 405}, "nothing but a refusal without a signature"
    assert (await agent.deliver(SECRET, _signed(large), large)).status == 413


@pytest.mark.parametrize("secret", ["", "whsec_", "short", "whsec_c2hvcnQ=", "whsec_!", []])
async def test_a_secret_that_is_missing_or_short_is_refused(secret: str | list[str]) -> None:
    agent = _agent()
    for refused in (
        lambda: agent.asgi(secret),
        lambda: verify_delivery(secret, {}, b""),
        lambda: verify_delivery([SECRET, *([secret] if isinstance(secret, str) else [""])], {}, b""),
    ):
        with pytest.raises(UsageError):
            refused()
    with pytest.raises(UsageError):
        await agent.deliver(secret, {}, b"{}")
    agent.asgi("x" * 24)
