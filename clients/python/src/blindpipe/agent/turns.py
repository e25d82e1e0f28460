"""The handlers that run: stopped by people, and told what arrives meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ..core.opened import OpenedMessage, Sender
from ..core.types import Event, JsonObject, Message
from ..e2ee import ids

BusyPolicy = Literal["queue", "interrupt", "drop"]

MESSAGE: Final = "message.created"
STOP: Final = "turn.stop"


@dataclass(frozen=True, slots=True)
class SteerMessage:
    """A message that arrived while a handler ran, and that the handler has taken."""

    message: Message
    opened: OpenedMessage

    @property
    def payload(self) -> JsonObject:
        """The opened content."""
        return self.opened.content

    @property
    def text(self) -> str:
        """The text of a text message, else an empty one."""
        text = self.payload.get("text")
        return text if self.payload.get("type") == "text" and isinstance(text, str) else ""

    @property
    def sender(self) -> Sender:
        """The sender, as far as it is proven."""
        return self.opened.sender


@dataclass(slots=True)
class Turn:
    """One run of the handlers of an event."""

    event: Event
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a person, or a newer message, has stopped it."""
    arrived: list[Event] = field(default_factory=list)
    """Messages of the conversation that came meanwhile."""
    taken: list[SteerMessage] = field(default_factory=list)
    """Those of them that the handler has taken."""
    taken_events: list[Event] = field(default_factory=list)
    task: asyncio.Task[object] | None = None

    def stop(self) -> None:
        """Cancels what runs, once."""
        if not self.stopped.is_set():
            self.stopped.set()
            if self.task is not None:
                self.task.cancel()

    def was_cancelled(self) -> bool:
        """Whether a cancellation is that of the stop. Then it counts no more."""
        if self.task is None or not self.stopped.is_set():
            return False
        task, self.task = self.task, None
        return task.uncancel() == 0


@dataclass(frozen=True, slots=True)
class _Stop:
    seq: int
    in_reply_to: bytes | None

    def concerns(self, event: Event) -> bool:
        """Whether an event is one of those that were asked to stop."""
        if event["event"] != MESSAGE or event["seq"] >= self.seq:
            return False
        message_id = event["data"].get("message_id")
        return self.in_reply_to is None or _id(message_id) == self.in_reply_to


def _id(text: object) -> bytes | None:
    return ids.parse(text) if isinstance(text, str) else None


class Turns:
    """The turns of all conversations."""

    def __init__(self, policy: BusyPolicy) -> None:
        self._policy = policy
        self._by_conversation: dict[str, Turn] = {}
        self._stops: dict[str, _Stop] = {}
        # Events that are not handled any more: others have handled them, or nobody is to.
        self._done: set[str] = set()

    def arrive(self, event: Event) -> None:
        """Looks at an event before its turn: a stop is heard while handlers run."""
        conversation = event.get("conversation_id")
        if not conversation:
            return
        turn = self._by_conversation.get(conversation)
        if event["event"] == STOP:
            stop = _Stop(event["seq"], _id(event["data"].get("in_reply_to")))
            self._stops[conversation] = stop
            if turn is not None and stop.concerns(turn.event):
                turn.stop()
        elif turn is not None and event["event"] == MESSAGE and not event["data"].get("refs"):
            self._arrive_busy(turn, event)

    def _arrive_busy(self, turn: Turn, event: Event) -> None:
        match self._policy:
            case "queue":
                turn.arrived.append(event)
            case "interrupt":
                turn.stop()
            case "drop":
                self._done.add(event["event_id"])

    def begin(self, event: Event) -> Turn | None:
        """The turn of an event; None if it is not handled any more."""
        conversation = event.get("conversation_id") or ""
        stop = self._stops.get(conversation)
        if stop is not None and stop.seq <= event["seq"]:
            del self._stops[conversation]
        is_stopped = stop is not None and stop.concerns(event)
        if is_stopped or event["event_id"] in self._done:
            self._done.discard(event["event_id"])
            return None
        turn, before = Turn(event), self._by_conversation.get(conversation)
        if before is not None and before.event["event_id"] == event["event_id"]:
            # It failed before: what it took then is there again.
            turn.arrived = [*before.taken_events, *before.arrived]
        if conversation and event["event"] == MESSAGE:
            self._by_conversation[conversation] = turn
        turn.task = asyncio.current_task()
        return turn

    def end(self, turn: Turn) -> Sequence[SteerMessage]:
        """The turn was handled, and so were the messages that it took."""
        conversation = turn.event.get("conversation_id") or ""
        if self._by_conversation.get(conversation) is turn:
            del self._by_conversation[conversation]
        self._done.update(event["event_id"] for event in turn.taken_events)
        return turn.taken
