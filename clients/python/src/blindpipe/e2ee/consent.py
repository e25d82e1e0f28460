"""Consent: what a device may execute, by its own records, and what an agent believes of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypedDict

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
    """The records of one device as a store keeps them, all or those that have changed.

    Earlier versions kept `begun` as a list of names, with their times in `begun_at`, and `approved`,
    which silenced all tools of a scope. Nothing reads `approved`.
    """

    begun: Mapping[str, int | None]
    """Unix milliseconds; None where an earlier version kept no time."""
    remembered: Mapping[str, StoredApproval | None]
    """None if it was taken back."""


def _begun_name(agent: Principal, request_id: str) -> str:
    return f"{agent.to_bytes().hex()}:{request_id}"


def _approval_name(conversation: bytes, agent: Principal, what: str) -> str:
    return f"{conversation.hex()}:{agent.to_bytes().hex()}:{what}"


def _is_of(name: str, conversation: str, agent: Principal) -> bool:
    here, of, _ = name.split(":", 2)
    return conversation in ("", here) and of == agent.to_bytes().hex()


def _stored_begun(stored: StoredConsents) -> dict[str, int | None]:
    begun: Any = stored["begun"]
    if isinstance(begun, Mapping):
        return dict(begun)
    times: Any = stored.get("begun_at", ())
    # An earlier version adds names without times, so the times fit no longer.
    return dict(zip(begun, times if len(times) == len(begun) else [None] * len(begun), strict=True))


@dataclass(slots=True)
class Consents:
    """The records of one device. A request that began is kept for 31 days."""

    tools: Mapping[str, Tool]
    _begun: dict[str, int | None] = field(default_factory=dict)
    """Unix milliseconds; None until the next `begin` where an earlier version kept no time."""
    _remembered: dict[str, StoredApproval] = field(default_factory=dict)
    _changed_begun: set[str] = field(default_factory=set)
    _changed_remembered: set[str] = field(default_factory=set)

    @classmethod
    def stored(cls, tools: Mapping[str, Tool], stored: StoredConsents | None) -> Consents:
        """The records that an earlier run kept; None at the first run."""
        if stored is None:
            return cls(tools)
        remembered = {name: kept for name, kept in stored["remembered"].items() if kept}
        return cls(tools, _stored_begun(stored), remembered)

    def store(self) -> StoredConsents:
        """All that is to be kept."""
        return {"begun": dict(self._begun), "remembered": dict(self._remembered)}

    @property
    def has_changed(self) -> bool:
        """Whether `take_changed` gives anything."""
        return bool(self._changed_begun or self._changed_remembered)

    def take_changed(self) -> StoredConsents:
        """The records that have changed since the last question."""
        begun, self._changed_begun = self._changed_begun, set()
        remembered, self._changed_remembered = self._changed_remembered, set()
        return {
            "begun": {name: self._begun[name] for name in begun if name in self._begun},
            "remembered": {name: self._remembered.get(name) for name in remembered},
        }

    def not_kept(self, changed: StoredConsents) -> None:
        """A store did not keep what `take_changed` gave."""
        self._changed_begun.update(changed["begun"])
        self._changed_remembered.update(changed["remembered"])

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
        left = kept["until"] - now if kept and kept["scope"] == request.scope else 0
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
        self._remembered[name] = {"scope": known.scope, "until": until}
        self._changed_remembered.add(name)
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
            if scope in (None, kept["scope"]) and _is_of(name, here, agent)
        ]
        for name in gone:
            del self._remembered[name]
        self._changed_remembered.update(gone)
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
        self._changed_begun.update(of for of, at in self._begun.items() if at is None)
        self._begun = {of: at for of, at in times.items() if at >= oldest}
        self._begun[name] = now
        self._changed_begun.add(name)
        return True


@dataclass(frozen=True, slots=True)
class Asked:
    """An agent's request: it believes consent to exactly this."""

    user: bytes
    digest: bytes

    @classmethod
    def of(cls, conversation: bytes, agent: bytes, request: Request, content: bytes) -> Asked:
        """The question of a request that an agent has sealed, with the bytes of its content."""
        return cls(request.asked, request.digest(conversation, agent, content))

    def prove(self, room: Room, trust: Trust, incoming: Incoming, now: int) -> Shown:
        """Whether a response proves consent to this request; raises `Refused`: never consent.

        The place's digest is ignored; it is this one's.
        """
        if not isinstance(incoming.place, Response) or incoming.sender != Principal.user(self.user):
            raise Refused("unknown_sender_key")
        place = replace(incoming.place, digest=self.digest)
        return room.open(trust, replace(incoming, place=place), now)
