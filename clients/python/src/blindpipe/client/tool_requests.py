"""Tool calls on this device: shown, decided, executed once, signed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from ..core.payload import envelope_of
from ..core.session import Session
from ..core.types import Event, Grant, JsonObject, ToolCall, milliseconds
from ..e2ee import Principal, ids
from ..e2ee.consent import (
    MAX_REMEMBERED_DAYS,
    Consents,
    Decision,
    Run,
    Sensitivity,
    StoredConsents,
    Tool,
)
from ..e2ee.envelope import Request, Response
from ..e2ee.room import Incoming
from ..api_errors import AlreadyDecided
from ..errors import NotApproved, UsageError
from ..hooks import HookCaller
from ..transport.clock import now_ms
from ..transport.http import Call

_SENSITIVITIES: Final = {each.name.lower(): each for each in Sensitivity}
_ENDS: Final = ("relation.revoked", "grant.revoked", "member.removed")
"""The events after which an agent may do less."""

Prepare = Callable[[], Awaitable[None]]
"""Makes a fresh secret if one is due before an answer is sealed."""


class NotMember(Exception):
    """An agent that is no member here asks for something."""


class ConsentStore(Protocol):
    """A place where a device keeps its records of consent."""

    async def load_consents(self) -> StoredConsents | None:
        """All records, each as it was added last; None at the first start."""

    async def add_consents(self, consents: StoredConsents) -> None:
        """Keeps the records that have changed, durably: only then a tool runs.

        Each takes the place of the earlier one of its name; None takes an approval away. All others
        stay as they are. A request that began more than 31 days before may be forgotten.
        """


class ConsentKeeper:
    """The device's records, and the store behind them."""

    def __init__(
        self, tools: Mapping[str, Tool], store: ConsentStore | None, hooks: HookCaller
    ) -> None:
        self.tools = tools
        self._store = store
        self._hooks = hooks
        self._consents: Consents | None = None
        self._lock = asyncio.Lock()

    async def load(self) -> Consents:
        """The records; they are read once."""
        async with self._lock:
            if self._consents is None:
                stored = await self._store.load_consents() if self._store else None
                self._consents = Consents.stored(self.tools, stored)
            return self._consents

    async def withdraw(
        self, agent: Principal, scope: str | None = None, conversation: bytes | None = None
    ) -> None:
        """Takes remembered approvals back."""
        (await self.load()).withdraw(agent, scope, conversation)
        await self.save()

    async def observe(self, event: Event) -> None:
        """An agent that may do no more here is asked about again if it comes back.

        What a store does not keep now is kept by the next save.
        """
        if event["event"] not in _ENDS:
            return
        data, consents = event["data"], await self.load()
        match event["event"]:
            case "relation.revoked":
                consents.withdraw(ids.principal("agent", data["agent_id"]))
            case "grant.revoked":
                _withdraw_grant(consents, cast(Grant, data))
            case "member.removed" if data["member"]["principal_type"] == "agent":
                gone = ids.principal("agent", data["member"]["principal_id"])
                consents.withdraw(gone, conversation=ids.parse(data["conversation_id"]))
        await self.try_save()

    async def revoked(self, grant: Grant) -> None:
        """The person took a grant back, so nothing that it allowed goes on unasked."""
        _withdraw_grant(await self.load(), grant)
        await self.save()

    @property
    def waiting(self) -> bool:
        """Whether the store has not kept everything yet."""
        has_changed = self._consents is not None and self._consents.has_changed
        return self._store is not None and has_changed

    async def try_save(self) -> bool:
        """As `save`; false where that raises."""
        try:
            await self.save()
        except Exception:
            return False
        return True

    async def save(self) -> None:
        """Adds what has changed. Saves follow each other: no older record replaces a newer one."""
        async with self._lock:
            if self._store is None or self._consents is None or not self._consents.has_changed:
                return
            changed = self._consents.take_changed()
            try:
                await self._store.add_consents(changed)
            except BaseException as error:
                self._consents.not_kept(changed)
                if isinstance(error, Exception):
                    self._hooks.call("store_failed")
                raise


def _withdraw_grant(consents: Consents, grant: Grant) -> None:
    agent = ids.principal("agent", grant["agent_id"])
    for scope in grant["scopes"]:
        consents.withdraw(agent, scope, ids.parse(grant["conversation_id"]))


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
        prepare: Prepare,
    ) -> None:
        arguments, prompt = content.get("arguments"), content.get("prompt")
        self.call = call
        self.arguments: JsonObject = arguments if isinstance(arguments, dict) else {}
        """The decrypted arguments."""
        self.prompt: str | None = prompt if isinstance(prompt, str) else None
        self._asked = asked
        self._session = session
        self._keeper = keeper
        self._prepare = prepare
        self._is_approved = False

    @property
    def _sensitivity(self) -> Sensitivity:
        """The server's word; it can only raise the harm."""
        return _SENSITIVITIES.get(self.call["sensitivity"], Sensitivity.HIGH)

    @property
    def _is_for_me(self) -> bool:
        """Whether this person is asked, and no other device of theirs."""
        request, options = self._asked.request, self._session.options
        is_mine = options.me == Principal.user(request.asked)
        return is_mine and request.device_id in (None, options.device_id)

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
            self._sensitivity,
            now_ms(),
        )
        entry = await self._session.load(self.call["conversation_id"])
        is_allowed = self._is_for_me and entry.room.is_member(asked.agent)
        if decision != "repeated" and not is_allowed:
            return "unable"
        return decision

    async def approve(self) -> None:
        """The person agrees to this request, once: the next `execute` uses it up."""
        self._is_approved = True

    async def remember(self, days: int = MAX_REMEMBERED_DAYS) -> None:
        """The person agrees to this tool of this agent here for some days, without being asked.

        Raises `UsageError` for a tool of high sensitivity, and for more than 30 days.
        """
        if not 1 <= days <= MAX_REMEMBERED_DAYS:
            raise UsageError(f"an approval is remembered for 1 to {MAX_REMEMBERED_DAYS} days")
        asked, consents = self._asked, await self._keeper.load()
        tool = consents.tools.get(asked.request.tool)
        if tool is None or tool.scope != asked.request.scope or not self._is_for_me:
            raise UsageError("this device does not have the tool")
        if max(tool.sensitivity, self._sensitivity) == Sensitivity.HIGH:
            raise UsageError("a tool of high sensitivity always asks")
        consents.remember(
            asked.conversation, asked.agent, asked.request.tool, now_ms(), days
        )
        await self._keeper.save()

    async def _begin(self) -> bool:
        """Noted durably before anything runs. False if it began before."""
        # Nothing runs whose answer could not be sealed.
        await self._prepare()
        consents = await self._keeper.load()
        is_new = consents.begin(self._asked.agent, self._asked.request.request_id, now_ms())
        if is_new:
            await self._keeper.save()
        return is_new

    async def execute(self, run: Run | None = None) -> None:
        """Runs the tool once, and answers with its result in this device's name.

        It runs what `decide()` lets run unasked, and what `approve()` allowed; else it raises
        `NotApproved`. `run` gets the tool's name and the arguments; without it, the `run` of the
        tool in the device's table does. A request that names no device runs on the first one that
        claims it; on the others nothing runs. A tool that the device does not know is answered as
        failed, `unknown_tool`.
        """
        decision = await self.decide()
        if decision == "repeated" or await self._answer_unknown():
            return
        if decision != "execute" and not (decision == "ask" and self._is_approved):
            raise NotApproved(decision)
        name = self._asked.request.tool
        runs = run or self._keeper.tools[name].run
        if runs is None:
            raise UsageError(f"the tool {name} has nothing that runs it")
        if not await self._claim():
            return
        self._is_approved = False
        if not await self._begin():
            return
        try:
            result = runs(name, self.arguments)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            await self._respond("failed", "tool_failed", {"message": str(error)})
        else:
            await self._respond("executed", None, {"result": result})

    async def _claim(self) -> bool:
        """Keeps a request that names no device for this one. False if another device has it."""
        if self._asked.request.device_id is not None:
            return True
        # Another device may be able to answer where this one cannot.
        await self._prepare()
        path = f"/artifact-requests/{self.call['request_id']}/claim"
        body = {"agent_id": self.call["agent_id"]}
        try:
            await self._session.options.http.data(Call("POST", path, body=body, repeatable=True))
        except AlreadyDecided:
            return False
        return True

    async def answer_unknown(self) -> None:
        """Answers `failed`, `unknown_tool` if the device does not know the tool.

        A request to all devices of a person is left to the others, if there are any: the first
        answer counts, and one of them may know the tool.
        """
        if self._is_unknown and (
            self._asked.request.device_id is not None or not await self._has_other_devices()
        ):
            await self._answer_unknown()

    @property
    def _is_unknown(self) -> bool:
        return self._is_for_me and self._asked.request.tool not in self._keeper.tools

    async def _answer_unknown(self) -> bool:
        """False if the device knows the tool."""
        if not self._is_unknown:
            return False
        if await self._begin():
            await self._respond("failed", "unknown_tool", {})
        return True

    async def _has_other_devices(self) -> bool:
        options = self._session.options
        async for device in options.http.pages("/users/me/devices"):
            if device["has_keys"] and device["device_id"] != options.device_id:
                return True
        return False

    async def deny(self, reason: str = "user_denied") -> None:
        """Answers that the person does not want it."""
        if await self._begin():
            await self._respond("denied", reason, {})

    async def _respond(self, status: str, reason: str | None, content: JsonObject) -> None:
        request_id = self.call["request_id"]
        place = Response(self._asked.digest, request_id, status, reason)
        # Somebody may have left while the tool ran.
        await self._prepare()
        payload = await self._session.seal_payload(self.call["conversation_id"], place, content)
        body = {"agent_id": self.call["agent_id"], "status": status, "payload": payload}
        body |= {"reason": reason} if reason else {}
        path = f"/artifact-requests/{request_id}/response"
        await self._session.options.http.data(Call("POST", path, body=body, repeatable=True))


async def open_tool_request(
    call: ToolCall, session: Session, keeper: ConsentKeeper, prepare: Prepare
) -> ToolRequest:
    """Opens a request. Raises `E2eeError` and `NotMember` for what no device executes."""
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
    if not entry.room.is_member(agent):
        raise NotMember
    conversation = entry.room.conversation
    digest = place.digest(conversation, agent.id, shown.opened.content)
    asked = _Asked(conversation, agent, place, digest)
    return ToolRequest(call, shown.opened.json, asked, session, keeper, prepare)
