"""Tool calls on this device: shown, decided, executed once, signed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..core.payload import envelope_of
from ..core.session import Session
from ..core.types import JsonObject, ToolCall, milliseconds
from ..e2ee import Principal, ids
from ..e2ee.consent import Consents, Decision, Sensitivity, StoredConsents, Tool
from ..e2ee.envelope import Request, Response
from ..e2ee.room import Incoming
from ..transport.clock import now_ms
from ..transport.http import Call

_SENSITIVITIES: Final = {each.name.lower(): each for each in Sensitivity}


class ConsentStore(Protocol):
    """A place where a device keeps its records of consent."""

    async def load(self) -> StoredConsents | None:
        """The records that were saved last; None at the first start."""

    async def save(self, consents: StoredConsents) -> None:
        """Returns once they are kept durably: only then a tool runs."""


class ConsentKeeper:
    """The device's records, and the store behind them."""

    def __init__(self, tools: Mapping[str, Tool], store: ConsentStore | None) -> None:
        self._tools = tools
        self._store = store
        self._consents: Consents | None = None
        self._lock = asyncio.Lock()

    async def load(self) -> Consents:
        """The records; they are read once."""
        async with self._lock:
            if self._consents is None:
                stored = await self._store.load() if self._store else None
                self._consents = Consents.stored(self._tools, stored)
            return self._consents

    async def save(self) -> None:
        """Saves follow each other, so that an older state replaces no newer one."""
        async with self._lock:
            if self._store is not None and self._consents is not None:
                await self._store.save(self._consents.store())


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that opened: where, by whom, and the name of all that it says."""

    conversation: bytes
    agent: Principal
    request: Request
    digest: bytes


class ToolRequest:
    """An agent's wish to run a tool here. Show the arguments, never the prompt alone."""

    def __init__(
        self,
        call: ToolCall,
        content: JsonObject,
        asked: _Asked,
        session: Session,
        keeper: ConsentKeeper,
    ) -> None:
        arguments, prompt = content.get("arguments"), content.get("prompt")
        self.call = call
        self.arguments: JsonObject = arguments if isinstance(arguments, dict) else {}
        """The decrypted arguments."""
        self.prompt: str | None = prompt if isinstance(prompt, str) else None
        self._asked = asked
        self._session = session
        self._keeper = keeper

    async def decide(self) -> Decision:
        """Decides by this device's own table of tools and its own records.

        The server's word can only raise the sensitivity.
        """
        asked, consents = self._asked, await self._keeper.load()
        decision = consents.decide(
            self._session.options.me,
            asked.conversation,
            asked.agent,
            asked.request,
            _SENSITIVITIES.get(self.call["sensitivity"], Sensitivity.HIGH),
            now_ms(),
        )
        if decision == "execute":
            # The window of a medium tool slides with its use.
            await self._keeper.save()
        return decision

    async def approve(self) -> None:
        """The person agrees: this agent may use the scope here, by the rules of its sensitivity."""
        asked, consents = self._asked, await self._keeper.load()
        consents.approve(asked.conversation, asked.agent, asked.request.scope, now_ms())
        await self._keeper.save()

    async def _begin(self) -> bool:
        """Noted durably before anything runs. False if it began before."""
        consents = await self._keeper.load()
        is_new = consents.begin(self._asked.agent, self._asked.request.request_id)
        if is_new:
            await self._keeper.save()
        return is_new

    async def execute(self, run: Callable[[JsonObject], Any]) -> None:
        """Runs the tool once, and answers with its result in this device's name."""
        if not await self._begin():
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
        if await self._begin():
            await self._respond("denied", reason, {})

    async def _respond(self, status: str, reason: str | None, content: JsonObject) -> None:
        request_id = self.call["request_id"]
        place = Response(self._asked.digest, request_id, status, reason)
        payload = await self._session.seal_payload(self.call["conversation_id"], place, content)
        body = {"status": status, "payload": payload} | ({"reason": reason} if reason else {})
        path = f"/artifact-requests/{request_id}/response"
        await self._session.options.http.data(Call("POST", path, body=body, repeatable=True))


async def open_tool_request(
    call: ToolCall, session: Session, keeper: ConsentKeeper
) -> ToolRequest:
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
    conversation = entry.room.conversation
    digest = place.digest(conversation, agent.id, shown.opened.content)
    asked = _Asked(conversation, agent, place, digest)
    return ToolRequest(call, shown.opened.json, asked, session, keeper)
