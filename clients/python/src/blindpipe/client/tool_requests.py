"""Tool calls on this device: shown, decided, executed once, signed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from ..core.payload import envelope_of
from ..core.session import Session
from ..core.types import JsonObject, ToolCall, milliseconds
from ..e2ee import ids
from ..e2ee.envelope import Request, Response
from ..e2ee.room import Incoming
from ..transport.http import Call


class BegunStore(Protocol):
    """Remembers durably which requests this device has begun."""

    async def begin(self, request_id: str) -> bool:
        """False if it was begun before; true once the note is kept."""


class MemoryBegun:
    """Forgets with the program: good for tests only."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    async def begin(self, request_id: str) -> bool:
        """False if it was begun before."""
        if request_id in self._begun:
            return False
        self._begun.add(request_id)
        return True


class ToolRequest:
    """An agent's wish to run a tool here. Show the arguments, never the prompt alone."""

    def __init__(
        self,
        call: ToolCall,
        content: JsonObject,
        digest: bytes,
        session: Session,
        begun: BegunStore,
    ) -> None:
        arguments, prompt = content.get("arguments"), content.get("prompt")
        self.call = call
        self.arguments: JsonObject = arguments if isinstance(arguments, dict) else {}
        """The decrypted arguments."""
        self.prompt: str | None = prompt if isinstance(prompt, str) else None
        self._digest = digest
        self._session = session
        self._begun = begun

    async def execute(self, run: Callable[[JsonObject], Any]) -> None:
        """Runs the tool once, and answers with its result in this device's name."""
        if not await self._begun.begin(self.call["request_id"]):
            return
        try:
            result = run(self.arguments)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            await self._respond("failed", "tool_failed", {"message": str(error)})
        else:
            await self._respond("executed", None, {"result": result})

    async def deny(self, reason: str = "user_denied") -> None:
        """Answers that the person does not want it."""
        if await self._begun.begin(self.call["request_id"]):
            await self._respond("denied", reason, {})

    async def _respond(self, status: str, reason: str | None, content: JsonObject) -> None:
        request_id = self.call["request_id"]
        place = Response(self._digest, request_id, status, reason)
        payload = await self._session.seal_payload(self.call["conversation_id"], place, content)
        body = {"status": status, "payload": payload} | ({"reason": reason} if reason else {})
        path = f"/artifact-requests/{request_id}/response"
        await self._session.options.http.data(Call("POST", path, body=body, repeatable=True))


async def open_tool_request(call: ToolCall, session: Session, begun: BegunStore) -> ToolRequest:
    """Opens a request. Raises `E2eeError` for what no device executes."""
    place = Request(
        ids.parse(call["user_id"]),
        call["request_id"],
        call["tool"],
        call["scope"],
        call.get("device_id"),
    )
    agent = ids.principal("agent", call["agent_id"])
    created_at = milliseconds(call["created_at"])
    incoming = Incoming(agent, place, envelope_of(call["payload"]), created_at)
    shown, entry = await session.open(call["conversation_id"], incoming)
    assert shown.opened is not None
    digest = place.digest(entry.room.conversation, agent.id, shown.opened.content)
    return ToolRequest(call, shown.opened.json, digest, session, begun)
