"""Tool calls: a device executes and signs, or nobody does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..core.payload import envelope_of
from ..core.session import Session
from ..core.types import JsonObject, ToolCallState
from ..e2ee import E2eeError, Principal, ids
from ..e2ee import content as contents
from ..e2ee.envelope import Request, Response
from ..e2ee.room import Incoming
from ..errors import BlindpipeError, KeyUnavailable
from ..transport.clock import now_ms
from ..transport.http import Call, Http

LOOK_INTERVAL_SECONDS: Final = 3.0
"""Events bring answers at once; this look is for answers that come another way."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The end of a tool call."""

    status: Literal["executed", "denied", "failed"]
    reason: str | None
    result: Any
    """The device's result; None unless executed."""
    message: str | None


class ToolCalls:
    """The calls of one agent."""

    def __init__(self, http: Http, agent_id: str, session: Session, allows_clear: bool) -> None:
        self._http = http
        self._agent_id = agent_id
        self._session = session
        self._allows_clear = allows_clear
        self._waiting: dict[str, asyncio.Future[JsonObject]] = {}

    def deliver(self, outcome: JsonObject) -> None:
        """Gives an outcome to the handler that waits for it, before any queue."""
        waiting = self._waiting.get(outcome["request_id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    async def call(
        self, conversation_id: str, place: Request, arguments: JsonObject, prompt: str | None
    ) -> CallResult:
        """Asks, and waits for the answer or the deadline of the service."""
        told = {"arguments": arguments} | ({} if prompt is None else {"prompt": prompt})
        content = contents.encode(told)
        session = self._session
        sealed = not self._allows_clear or await session.is_encrypted(conversation_id)
        if sealed and not session.has_keys:
            raise KeyUnavailable("the conversation is encrypted, and this agent has no key")
        payload: JsonObject = {"type": "tool_call", **json.loads(content)}
        if sealed:
            payload = await session.seal_payload(conversation_id, place, content)
        outcome = await self._outcome(conversation_id, place, payload)
        if not sealed:
            return _result(outcome, outcome.get("payload") or {})
        return await self._judge(conversation_id, place, content, outcome)

    async def _outcome(
        self, conversation_id: str, place: Request, payload: JsonObject
    ) -> JsonObject:
        waiting: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[place.request_id] = waiting

        async def ask() -> JsonObject:
            return dict(await self._ask(conversation_id, place, payload))

        try:
            # A request that was made before answers its present state.
            state = await ask()
            if state["status"] != "pending":
                return state
            return await _first(waiting, ask)
        finally:
            self._waiting.pop(place.request_id, None)

    async def _ask(
        self, conversation_id: str, place: Request, payload: JsonObject
    ) -> ToolCallState:
        body: JsonObject = {
            "request_id": place.request_id,
            "conversation_id": conversation_id,
            "user_id": ids.ulid(place.asked),
            "tool": place.tool,
            "scope": place.scope,
            "payload": payload,
        }
        if place.device_id is not None:
            body["device_id"] = place.device_id
        path = f"/agents/{self._agent_id}/artifact-requests"
        state: ToolCallState = await self._http.data(Call("POST", path, body=body, repeatable=True))
        return state

    async def _judge(
        self, conversation_id: str, place: Request, content: bytes, outcome: JsonObject
    ) -> CallResult:
        """`executed` counts only with an envelope of the person asked, for exactly this request."""
        try:
            answered = await self._open_response(conversation_id, place, content, outcome)
        except E2eeError:
            if outcome["status"] == "executed":
                return CallResult("failed", "unproven", None, None)
            answered = {}
        return _result(outcome, answered)

    async def _open_response(
        self, conversation_id: str, place: Request, content: bytes, outcome: JsonObject
    ) -> JsonObject:
        agent = ids.parse(self._agent_id)
        digest = place.digest(ids.parse(conversation_id), agent, content)
        response = Response(digest, place.request_id, outcome["status"], outcome.get("reason"))
        envelope = envelope_of(outcome.get("payload"))
        user = Principal.user(place.asked)
        incoming = Incoming(user, response, envelope, now_ms())
        shown, _ = await self._session.open(conversation_id, incoming)
        assert shown.opened is not None
        return shown.opened.json


async def _first(
    waiting: asyncio.Future[JsonObject], ask: Callable[[], Awaitable[JsonObject]]
) -> JsonObject:
    """The outcome that an event tells, or that a look finds."""
    while True:
        done, _ = await asyncio.wait([waiting], timeout=LOOK_INTERVAL_SECONDS)
        if done:
            return waiting.result()
        try:
            state = await ask()
        except BlindpipeError as error:
            if error.status == 404:
                raise
            continue
        if state["status"] != "pending":
            return state


def _result(outcome: JsonObject, content: JsonObject) -> CallResult:
    status, message = outcome["status"], content.get("message")
    known: Literal["executed", "denied", "failed"] = "failed"
    if status in ("executed", "denied"):
        known = status
    return CallResult(
        known,
        outcome.get("reason"),
        content.get("result") if known == "executed" else None,
        message if isinstance(message, str) else None,
    )
