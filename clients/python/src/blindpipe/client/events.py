"""The events that a person's client yields."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.types import Event
from ..e2ee import Principal
from .conversation import Conversation, ReceivedMessage
from .tool_requests import ToolRequest


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """A message came."""

    event: Event = field(repr=False)
    conversation: Conversation
    received: ReceivedMessage

    @property
    def text(self) -> str | None:
        """The text of a message that opened."""
        return self.received.text


@dataclass(frozen=True, slots=True)
class ToolRequestEvent:
    """An agent asks this device to run a tool."""

    event: Event = field(repr=False)
    request: ToolRequest


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """Any other event of the catalogue."""

    event: Event = field(repr=False)

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        return self.event["event"]


@dataclass(frozen=True, slots=True)
class DeltaEvent:
    """A piece of a message that an agent is writing. It is shown and never acted on."""

    conversation_id: str
    stream_id: str
    n: int
    append: str = field(repr=False)
    sender: Principal


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """All that an agent has written so far, up to piece `n`. It replaces the pieces before."""

    conversation_id: str
    stream_id: str
    n: int
    text: str = field(repr=False)
    sender: Principal


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """The activity of an agent that writes nothing, such as a search. The next piece ends it."""

    conversation_id: str
    stream_id: str
    text: str = field(repr=False)
    sender: Principal


@dataclass(frozen=True, slots=True)
class StreamCancelled:
    """A stream ended without a message. `reason` is the server's or the agent's."""

    conversation_id: str
    stream_id: str
    reason: str | None
    sender: Principal


@dataclass(frozen=True, slots=True)
class TypingEvent:
    """Somebody writes, or stopped."""

    conversation_id: str
    sender: Principal
    state: str


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All that was in the inbox before this connection has come."""


ClientEvent = (
    MessageEvent
    | ToolRequestEvent
    | OtherEvent
    | DeltaEvent
    | CheckpointEvent
    | StatusEvent
    | StreamCancelled
    | TypingEvent
    | CaughtUp
)
