"""Deliveries of a webhook: genuine ones become events."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ..core.types import Event, JsonObject
from ..e2ee import E2eeError, from_base64
from ..errors import UsageError

TOLERANCE_SECONDS: Final = 300
DEADLINE_SECONDS: Final = 9.0
RETRY_SECONDS: Final = 5
MAX_BODY_BYTES: Final = 2 * 1024 * 1024
MIN_SECRET_BYTES: Final = 24
"""The service takes no shorter one. An empty setting would be a key that everybody knows."""

Secrets = str | Sequence[str]
"""A webhook's secret, or several while it is rotated."""


def verify_delivery(
    secrets: Secrets, headers: Mapping[str, str], body: bytes, now: float | None = None
) -> bool:
    """Whether a delivery is genuine, over its bytes as they came and in constant time.

    `headers` may have names in any case. `now` is Unix seconds. Raises `UsageError` for a secret
    that is too short.
    """
    keys = checked_keys(secrets)
    lower = {name.lower(): value for name, value in headers.items()}
    timestamp = lower.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        return False
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    text = f"{lower.get('webhook-id', '')}.{timestamp}.".encode() + body
    signatures = lower.get("webhook-signature", "").split(" ")
    wanted = [hmac.digest(key, text, hashlib.sha256) for key in keys]
    return any([hmac.compare_digest(each, got) for each in wanted for got in _decoded(signatures)])


def checked_keys(secrets: Secrets) -> list[bytes]:
    """The keys of the secrets. Raises `UsageError` for none, and for one that is too short."""
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys or any(len(key) < MIN_SECRET_BYTES for key in keys):
        raise UsageError(f"a webhook's secret has {MIN_SECRET_BYTES} bytes or more")
    return keys


def _key(secret: str) -> bytes:
    """The bytes behind `whsec_`, or the characters of a secret without that prefix."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return from_base64(secret[6:])
    except E2eeError:
        raise UsageError("a webhook's secret is no base64 after whsec_") from None


def delivered(body: bytes) -> Event | list[Event]:
    """The event of a call, or the events of a batch.

    Raises `ValueError`, `LookupError` or `TypeError`.
    """
    call = json.loads(body)
    if not isinstance(call, dict):
        raise TypeError
    if "events" not in call:
        return _checked(call)
    if not isinstance(call["events"], list):
        raise TypeError
    return [_checked(event) for event in call["events"]]


def _checked(event: Any) -> Event:
    if not isinstance(event["data"], dict) or not isinstance(event["event"], str):
        raise TypeError
    checked: Event = event
    return checked


def _decoded(signatures: Iterable[str]) -> list[bytes]:
    found = []
    for signature in signatures:
        if signature.startswith("v1,"):
            try:
                found.append(from_base64(signature[3:]))
            except E2eeError:
                continue
    return found


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """The answer to a delivery, for any framework."""

    status: int
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)

    @classmethod
    def text(cls, status: int, text: str, *headers: tuple[str, str]) -> WebhookAnswer:
        """An answer for a human reader."""
        plain = ("content-type", "text/plain; charset=utf-8")
        return cls(status, text.encode(), (plain, *headers))

    @classmethod
    def later(cls, why: str) -> WebhookAnswer:
        """Asks for another try."""
        return cls.text(503, why, ("retry-after", str(RETRY_SECONDS)))


def challenge_of(event: Event) -> WebhookAnswer | None:
    """The answer to a registration or a test; None for what is to be handled."""
    if event["event"] == "webhook.verify":
        challenge = {"challenge": event["data"]["challenge"]}
        return WebhookAnswer(200, json.dumps(challenge).encode())
    return WebhookAnswer(200) if event["event"] == "webhook.test" else None


async def answer_batch(
    events: Sequence[Event], handle: Callable[[Event], Awaitable[WebhookAnswer]]
) -> WebhookAnswer:
    """Handles those of a conversation in their order, and conversations side by side.

    The answer names what has failed. If nothing succeeds, it is that of the first event.
    """
    conversations: dict[str | None, list[Event]] = {}
    for event in events:
        conversations.setdefault(event.get("conversation_id"), []).append(event)

    async def run(own: list[Event]) -> tuple[list[Event], WebhookAnswer]:
        answer = WebhookAnswer(200)
        for n, event in enumerate(own):
            answer = await handle(event)
            if answer.status != 200:
                return own[n:], answer
        return [], answer

    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(run(own)) for own in conversations.values()]
    ended = [task.result() for task in runs]
    failed = [event for events, _ in ended for event in events]
    if failed and len(failed) == len(events):
        return ended[0][1]
    # Those after a failed one in its conversation come again by themselves.
    ids = [cast(JsonObject, unfinished[0]).get("delivery_id") for unfinished, _ in ended if unfinished]
    return WebhookAnswer(200, json.dumps({"failed": ids}).encode())


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


def asgi_app(
    deliver: Callable[[Mapping[str, str], bytes], Awaitable[WebhookAnswer]],
    close: Callable[[], Awaitable[None]],
) -> AsgiApp:
    """An application that any ASGI server runs, or any framework mounts."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send, close)
        if scope["type"] != "http":
            return
        try:
            answer = await _answer(scope, receive, deliver)
        except Exception:
            # Whatever anybody sends, the server goes on.
            answer = WebhookAnswer.text(500, "the receiver has failed")
        if answer is None:
            return
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await send({"type": "http.response.body", "body": answer.body})

    return app


async def _answer(
    scope: MutableMapping[str, Any],
    receive: Receive,
    deliver: Callable[[Mapping[str, str], bytes], Awaitable[WebhookAnswer]],
) -> WebhookAnswer | None:
    """None if nobody waits for an answer any more."""
    if scope["method"] != "POST":
        return WebhookAnswer.text(405, "POST only")
    try:
        body = await _body(receive)
    except _HungUp:
        return None
    if body is None:
        return WebhookAnswer.text(413, "too large")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return await deliver(headers, body)


class _HungUp(Exception):
    """The caller has left in the middle of a body."""


async def _lifespan(receive: Receive, send: Send, close: Callable[[], Awaitable[None]]) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await close()
            return await send({"type": "lifespan.shutdown.complete"})
        await send({"type": "lifespan.startup.complete"})


async def _body(receive: Receive) -> bytes | None:
    """None for what is larger than any delivery."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(body)
