"""The frames of a person's socket, opened and in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from ..core.payload import message_of
from ..core.session import Session
from ..core.types import Event, Message, ToolCall
from ..e2ee import E2eeError, ids
from ..hooks import HookCaller
from ..transport.socket import Frame
from .conversation import Conversation, ReceivedMessage
from .events import (
    CaughtUp,
    ClientEvent,
    MessageEvent,
    OtherEvent,
    ToolRequestEvent,
    TypingEvent,
)
from .streams import StreamReader
from .tool_requests import ConsentKeeper, NotMember, open_tool_request


class EventReader:
    """Makes events of frames.

    `session` is that of this moment: a device may get its keys later. `conversation` answers None
    before it has them.
    """

    def __init__(
        self,
        session: Callable[[], Session],
        hooks: HookCaller,
        logger: logging.Logger,
        consents: ConsentKeeper,
        conversation: Callable[[str], Conversation | None],
        send: Callable[[Frame], object],
    ) -> None:
        self._session = session
        self._hooks = hooks
        self._logger = logger
        self._consents = consents
        self._conversation = conversation
        self._streams = StreamReader(session, self._tell, send)

    async def read(self, frame: Frame) -> list[ClientEvent]:
        """The events of a frame; none for what is not shown."""
        match frame["type"]:
            case "event":
                return await self._read_event(cast(Event, frame))
            case kind if kind.startswith("stream."):
                return await self._streams.read(frame)
            case "typing":
                who = frame["sender"]
                sender = ids.principal(who["type"], who["id"])
                return [TypingEvent(frame["conversation_id"], sender, frame["state"])]
            case "caught_up":
                return [CaughtUp()]
        return []

    async def admit(self, frame: Frame) -> None:
        """Takes note of what an event ends, before any later one is read."""
        if frame["type"] != "event":
            return
        event = cast(Event, frame)
        try:
            self._session().observe(event)
        except Exception as error:
            text = "an event could not be looked into: %s"
            self._logger.warning(text, type(error).__name__)
        await self._consents.observe(event)

    async def _read_event(self, event: Event) -> list[ClientEvent]:
        await self._session().learn(event)
        if event["event"] == "message.created":
            return await self._read_message(event)
        if event["event"] == "artifact_request":
            return await self._read_tool_request(event)
        return [OtherEvent(event)]

    async def _read_message(self, event: Event) -> list[ClientEvent]:
        message = cast(Message, event["data"])
        conversation = self._conversation(message["conversation_id"])
        if conversation is None:
            return [OtherEvent(event)]
        try:
            received = await conversation.open(message_of(event), live=True)
        except E2eeError as error:
            received = ReceivedMessage(message, None, error)
        if received.fault is not None:
            self._undecryptable(event, received.fault)
        if received.opened is not None and received.opened.is_replay:
            return []
        return [MessageEvent(event, conversation, received)]

    async def _read_tool_request(self, event: Event) -> list[ClientEvent]:
        try:
            call = cast(ToolCall, event["data"])
            conversation = self._conversation(call["conversation_id"])
            if conversation is None:
                return [OtherEvent(event)]
            request = await open_tool_request(
                call, self._session(), self._consents, conversation.prepare
            )
        except E2eeError as error:
            self._undecryptable(event, error)
            return []
        except NotMember:
            self._tell("not_member", event["event_id"], event.get("conversation_id"))
            return []
        return [ToolRequestEvent(event, request)]

    def _undecryptable(self, event: Event, fault: E2eeError) -> None:
        self._tell(fault.reason, event["event_id"], event.get("conversation_id"))

    def _tell(self, reason: str, event_id: str | None, conversation_id: str | None) -> None:
        told = {"event_id": event_id, "conversation_id": conversation_id}
        self._hooks.call("undecryptable", reason=reason, **told)
