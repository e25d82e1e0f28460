"""A message that is shown while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ..core.session import Session
from ..core.types import JsonObject, Sent
from ..e2ee import E2eeError
from ..e2ee.envelope import Delta
from ..errors import BlindpipeError, KeyUnavailable
from ..transport.socket import Frame, Socket
from .outbox import Draft, Outbox

MAX_DELTAS_PER_SECOND: Final = 15
"""Fewer than the server's 20 a second, so that a burst is never refused."""
MAX_DELTA_CHARACTERS: Final = 2_500
"""Sealed and in base64 a delta stays below 16 KB."""
END_TIMEOUT_SECONDS: Final = 10.0


class MessageStream:
    """Writes are joined; the message at the end replaces everything that was shown.

    As `async with`, it ends with the block, and is cancelled if the block raises.
    """

    def __init__(
        self,
        draft: Callable[[JsonObject], Draft],
        outbox: Outbox,
        session: Session,
        socket: Socket | None,
    ) -> None:
        self._draft = draft
        self._outbox = outbox
        self._session = session
        # Without a socket, only the end is sent.
        self._socket = socket
        self._parts: list[str] = []
        self._pending = ""
        self._n = 0
        self._is_open = False
        self._is_ended = False
        self._flushing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The ULID of the message that ends this stream."""
        return self._draft({}).client_message_id

    @property
    def text(self) -> str:
        """All that was written."""
        return "".join(self._parts)

    def write(self, part: str) -> None:
        """Adds text. Never waits and never fails: what is shown meanwhile may be lost."""
        if self._is_ended:
            return
        self._parts.append(part)
        self._pending += part
        if self._socket is not None and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        while self._pending and not self._is_ended:
            piece = self._pending[:MAX_DELTA_CHARACTERS]
            self._pending = self._pending[MAX_DELTA_CHARACTERS:]
            try:
                await self._show(piece)
            except (BlindpipeError, E2eeError, KeyUnavailable):
                # The end carries everything, so a lost delta costs nothing but the show.
                return
            await asyncio.sleep(1 / MAX_DELTAS_PER_SECOND)

    async def _show(self, piece: str) -> None:
        socket, draft = self._socket, self._draft({})
        if socket is None or not socket.is_ready:
            return
        n, self._n = self._n, self._n + 1
        data = await self._delta(draft, n, piece)
        if self._is_ended:
            return
        if not self._is_open:
            self._is_open = True
            begin: Frame = {
                "type": "stream.begin",
                "stream_id": draft.client_message_id,
                "conversation_id": draft.conversation_id,
            }
            socket.send(begin | _in_reply_to(draft))
        delta = {"type": "stream.delta", "stream_id": draft.client_message_id, "n": n, "data": data}
        socket.send(delta)

    async def _delta(self, draft: Draft, n: int, piece: str) -> JsonObject | str:
        session, content = self._session, {"append": piece}
        if await self._outbox.goes_clear(draft):
            return content
        answered = draft.answered
        epoch = answered.opened.epoch if answered else None
        place = Delta(draft.client_message_id, n)
        return await session.seal_text(draft.conversation_id, place, content, answering=epoch)

    async def end(self, content: JsonObject | None = None) -> Sent:
        """Sends one durable, signed message: the text written, or another content."""
        self._stop()
        draft = self._draft({"type": "text", "text": self.text} if content is None else content)
        outbox, socket = self._outbox, self._socket
        if not self._is_open or socket is None or not socket.is_ready or outbox.is_old(draft):
            return await outbox.send(draft)
        payload = await outbox.payload(draft)
        frame: Frame = {
            "type": "stream.end",
            "stream_id": draft.client_message_id,
            "conversation_id": draft.conversation_id,
            "payload": payload,
            "client_message_id": draft.client_message_id,
        }
        if draft.to:
            frame["recipients"] = list(draft.to)
        try:
            answer = await socket.request(frame | _in_reply_to(draft), END_TIMEOUT_SECONDS)
        except BlindpipeError:
            # Unknown, refused or lost: the same bytes go by REST, where one id is one message.
            return await outbox.send_payload(draft, payload)
        sent: Sent = answer["data"]
        return sent

    def cancel(self, reason: str | None = None) -> None:
        """Ends without a message."""
        self._stop()
        if self._is_open and self._socket is not None:
            frame: Frame = {"type": "stream.cancel", "stream_id": self.id}
            self._socket.send(frame | ({"reason": reason} if reason else {}))

    def _stop(self) -> None:
        self._is_ended = True
        if self._flushing is not None:
            self._flushing.cancel()

    async def __aenter__(self) -> MessageStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        elif not self._is_ended:
            await self.end()


def _in_reply_to(draft: Draft) -> Frame:
    answered = draft.answered
    return {"in_reply_to": answered.message["message_id"]} if answered else {}
