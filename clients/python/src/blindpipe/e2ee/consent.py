"""Consent: what a device may execute, by its own records, and what an agent believes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

from .envelope import Request, Response
from .keys import Principal
from .room import Incoming, Refused, Room, Shown
from .trust import Trust

_MEDIUM_WINDOW_MS = 24 * 60 * 60_000

Decision = Literal["execute", "ask", "unable", "repeated"]
"""Execute unasked; show the arguments and ask; not this person's or device's; began before."""


class Sensitivity(enum.IntEnum):
    """How much harm a tool can do."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the device's own table."""

    scope: str
    sensitivity: Sensitivity


class StoredConsents(TypedDict):
    """The records of one device as a store keeps them; the TypeScript client has the same."""

    begun: list[str]
    approved: dict[str, int]


def _begun_name(agent: Principal, request_id: str) -> str:
    return f"{agent.to_bytes().hex()}:{request_id}"


def _approval_name(conversation: bytes, agent: Principal, scope: str) -> str:
    return f"{conversation.hex()}:{agent.to_bytes().hex()}:{scope}"


@dataclass(slots=True)
class Consents:
    """The records of one device, kept for ever."""

    tools: Mapping[str, Tool]
    _begun: dict[str, None] = field(default_factory=dict)
    _approved: dict[str, int] = field(default_factory=dict)

    @classmethod
    def stored(cls, tools: Mapping[str, Tool], stored: StoredConsents | None) -> Consents:
        """The records that an earlier run kept; None at the first run."""
        if stored is None:
            return cls(tools)
        return cls(tools, dict.fromkeys(stored["begun"]), dict(stored["approved"]))

    def store(self) -> StoredConsents:
        """All that is to be kept."""
        return {"begun": list(self._begun), "approved": dict(self._approved)}

    def decide(
        self,
        me: Principal,
        conversation: bytes,
        agent: Principal,
        request: Request,
        manifest: Sensitivity | None,
        now: int,
    ) -> Decision:
        """Decides about a request that opened. `manifest` may raise the sensitivity only."""
        if _begun_name(agent, request.request_id) in self._begun:
            return "repeated"
        tool = self.tools.get(request.tool)
        if tool is None or tool.scope != request.scope or me != Principal.user(request.asked):
            return "unable"
        approval = _approval_name(conversation, agent, request.scope)
        last = self._approved.get(approval)
        if last is None:
            return "ask"
        sensitivity = max(tool.sensitivity, manifest or Sensitivity.LOW)
        recent = sensitivity == Sensitivity.MEDIUM and now - last < _MEDIUM_WINDOW_MS
        if sensitivity == Sensitivity.LOW or recent:
            self._approved[approval] = max(now, last)
            return "execute"
        return "ask"

    def approve(self, conversation: bytes, agent: Principal, scope: str, now: int) -> None:
        """The person approved an agent here, by a prompt or a grant."""
        self._approved[_approval_name(conversation, agent, scope)] = now

    def withdraw(self, conversation: bytes, agent: Principal, scope: str) -> None:
        """The person took an approval back."""
        self._approved.pop(_approval_name(conversation, agent, scope), None)

    def begin(self, agent: Principal, request_id: str) -> bool:
        """To be stored durably *before* the device executes. False if it began before."""
        name = _begun_name(agent, request_id)
        if name in self._begun:
            return False
        self._begun[name] = None
        return True


@dataclass(frozen=True, slots=True)
class Asked:
    """An agent's request: it believes consent to exactly this."""

    user: bytes
    digest: bytes

    @classmethod
    def of(cls, conversation: bytes, agent: bytes, request: Request, content: bytes) -> Asked:
        return cls(request.asked, request.digest(conversation, agent, content))

    def prove(self, room: Room, trust: Trust, incoming: Incoming, now: int) -> Shown:
        """Whether a response proves consent to this request; raises `Refused`: never consent.

        The place's digest is ignored; it is this one's.
        """
        if not isinstance(incoming.place, Response) or incoming.sender != Principal.user(self.user):
            raise Refused("unknown_sender_key")
        place = replace(incoming.place, digest=self.digest)
        return room.open(trust, replace(incoming, place=place), now)
