"""Consent: what a device may execute, by its own records, and what an agent believes of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NotRequired, TypedDict

from .envelope import Request, Response
from .keys import Principal
from .room import MAX_MESSAGE_AGE_MS, Incoming, Refused, Room, Shown
from .trust import Trust

_DAY_MS = 24 * 60 * 60_000
MAX_REMEMBERED_DAYS: Final = 30
"""A person agrees in advance for at most so long."""

Decision = Literal["execute", "ask", "unable", "repeated"]
"""Execute unasked; show the arguments and ask; not this person's or device's; began before."""


class Sensitivity(enum.IntEnum):
    """How much harm a tool can do."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


Run = Callable[[str, dict[str, Any]], Any]
"""Runs a tool: it gets the tool's name and the arguments. A coroutine function serves too."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the device's own table."""

    scope: str
    sensitivity: Sensitivity
    run: Run | None = None
    """Runs where `execute` is given nothing else."""


class StoredApproval(TypedDict):
    """An approval that is remembered; `until` is Unix milliseconds."""

    scope: str
    until: int


class StoredConsents(TypedDict):
    """The records of one device as a store keeps them.

    Earlier versions kept `approved`, which silenced all tools of a scope. Nothing reads it.
    """

    begun: list[str]
    begun_at: NotRequired[list[int]]
    """Unix milliseconds, in the order of `begun`. Earlier versions kept none."""
    remembered: dict[str, StoredApproval]


def _begun_name(agent: Principal, request_id: str) -> str:
    return f"{agent.to_bytes().hex()}:{request_id}"


def _approval_name(conversation: bytes, agent: Principal, what: str) -> str:
    return f"{conversation.hex()}:{agent.to_bytes().hex()}:{what}"


def _is_of(name: str, conversation: str, agent: Principal) -> bool:
    here, of, _ = name.split(":", 2)
    return conversation in ("", here) and of == agent.to_bytes().hex()


@dataclass(slots=True)
class _Approval:
    scope: str
    until: int


@dataclass(slots=True)
class Consents:
    """The records of one device. A request that began is kept for 31 days."""

    tools: Mapping[str, Tool]
    _begun: dict[str, int | None] = field(default_factory=dict)
    """Unix milliseconds; None until the next `begin` where an earlier version kept no time."""
    _remembered: dict[str, _Approval] = field(default_factory=dict)

    @classmethod
    def stored(cls, tools: Mapping[str, Tool], stored: StoredConsents | None) -> Consents:
        """The records that an earlier run kept; None at the first run."""
        if stored is None:
            return cls(tools)
        remembered = {
            name: _Approval(kept["scope"], kept["until"])
            for name, kept in stored.get("remembered", {}).items()
        }
        names, times = stored["begun"], stored.get("begun_at", [])
        # An earlier version adds names without times, so the times fit no longer.
        begun: dict[str, int | None] = dict.fromkeys(names)
        if len(names) == len(times):
            begun.update(zip(names, times, strict=True))
        return cls(tools, begun, remembered)

    def store(self) -> StoredConsents:
        """All that is to be kept."""
        remembered: dict[str, StoredApproval] = {
            name: {"scope": kept.scope, "until": kept.until}
            for name, kept in self._remembered.items()
        }
        stored: StoredConsents = {"begun": list(self._begun), "remembered": remembered}
        times = [at for at in self._begun.values() if at is not None]
        if len(times) == len(self._begun):
            stored["begun_at"] = times
        return stored

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
        sensitivity = max(tool.sensitivity, manifest or Sensitivity.LOW)
        if sensitivity == Sensitivity.HIGH:
            return "ask"
        kept = self._remembered.get(_approval_name(conversation, agent, request.tool))
        # A clock that was set back makes no approval longer.
        left = kept.until - now if kept and kept.scope == request.scope else 0
        return "execute" if 0 < left <= MAX_REMEMBERED_DAYS * _DAY_MS else "ask"

    def remember(
        self, conversation: bytes, agent: Principal, tool: str, now: int, days: int
    ) -> bool:
        """The person agrees to later requests of this agent for this tool here, for some days.

        False for a tool that always asks or is none of this device, and for other than 1 to 30 days.
        """
        known = self.tools.get(tool)
        if known is None or known.sensitivity == Sensitivity.HIGH:
            return False
        if not 1 <= days <= MAX_REMEMBERED_DAYS:
            return False
        until = now + days * _DAY_MS
        name = _approval_name(conversation, agent, tool)
        self._remembered[name] = _Approval(known.scope, until)
        return True

    def withdraw(
        self, agent: Principal, scope: str | None = None, conversation: bytes | None = None
    ) -> bool:
        """Takes approvals of an agent back: of a scope or all, in one conversation or everywhere.

        True if there were any.
        """
        here = "" if conversation is None else conversation.hex()
        gone = [
            name
            for name, kept in self._remembered.items()
            if scope in (None, kept.scope) and _is_of(name, here, agent)
        ]
        for name in gone:
            del self._remembered[name]
        return bool(gone)

    def begin(self, agent: Principal, request_id: str, now: int) -> bool:
        """To be stored durably *before* the device executes. False if it began before.

        `now` is Unix milliseconds. Forgets what began more than 31 days before.
        """
        name = _begun_name(agent, request_id)
        if name in self._begun:
            return False
        # The agent chooses the id, so the time in it says nothing about when the request began.
        oldest = now - MAX_MESSAGE_AGE_MS
        times = {of: now if at is None else at for of, at in self._begun.items()}
        self._begun = {of: at for of, at in times.items() if at >= oldest}
        self._begun[name] = now
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
