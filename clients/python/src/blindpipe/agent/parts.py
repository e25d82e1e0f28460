"""The parts of an agent that a context needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.session import Session
from ..transport.http import Http
from ..transport.socket import Socket
from .approvals import Approvals
from .outbox import Outbox
from .tool_calls import ToolCalls


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The working parts of a started agent."""

    agent_id: str
    http: Http
    session: Session
    outbox: Outbox
    tool_calls: ToolCalls
    approvals: Approvals
    socket: Callable[[], Socket | None]
