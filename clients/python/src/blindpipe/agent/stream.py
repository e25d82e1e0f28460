"""A message that is shown while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ..core.session import Session
from ..core.types import JsonObject, Sent
from ..e2ee import E2eeError
from ..e2ee.envelope import STATUS_NUMBER, Delta
from ..errors import BlindpipeError, KeyUnavailable
from ..transport.socket import Frame, Socket
from .outbox import Draft, Outbox

MAX_DELTAS_PER_SECOND: Final = 15
"""Fewer than the server's 20 a second, so that a burst is never refused."""
MAX_DELTA_CHARACTERS: Final = 2_500
"""Sealed and in base64 a delta stays below 16 KB."""
MAX_CHECKPOINT_CHARACTERS: Final = 40_000
"""Sealed and in base64 a checkpoint stays below 256 KB. Of a longer text, the end is shown."""
MAX_STATUS_CHARACTERS: Final = 250
"""Sealed and in base64 a status stays below 2 KB."""
DELTAS_BETWEEN_CHECKPOINTS: Final = 100
"""The server keeps 256."""
SIGN_SECONDS: Final = 20.0
"""The server ends a stream after 60 seconds without a sign."""
CHECKPOINT_SECONDS: Final = 120.0
"""Readers take nothing of a stream that is older than five minutes."""
BEGIN_SECONDS: Final = 2.0
"""The wait before a stream begins again, and as much longer each time."""
NEWS_SECONDS: Final = 1.0
"""Time between two looks whether the connection is another one."""
END_TIMEOUT_SECONDS: Final = 10.0
LOST_CODES: Final = ("NOT_FOUND", "VALIDATION_ERROR", "RATE_LIMITED", "SERVICE_UNAVAILABLE")
"""The refusals after which a stream begins again. After any other, only its end is sent."""


class MessageStream:
    """Writes are joined; the message at the end replaces everything that was shown.

    It goes on over other connections and nodes. As `async with`, it ends with the block, and is
    cancelled if the block raises.
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
        self._status: str | None = None
        self._has_new_status = False
        self._n = 0
        self._generation = -1
        # The connection that the last frame went over, and whether the server has refused one.
        self._connection = 0
        self._is_lost = False
        self._begun_at = 0.0
        self._sign_at = 0.0
        # The number of deltas at the last checkpoint.
        self._checkpoint_n = 0
        self._checkpoint_at = 0.0
        self._is_ended = False
        self._news = asyncio.Event()
        self._showing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The ULID of the message that ends this stream."""
        return self._draft({}).client_message_id

    @property
    def text(self) -> str:
        """All that was written."""
        return "".join(self._parts)

    @property
    def is_ended(self) -> bool:
        """Whether it has ended, or was cancelled."""
        return self._is_ended

    @property
    def _is_open(self) -> bool:
        return self._generation >= 0

    def write(self, part: str) -> None:
        """Adds text. Never waits and never fails: what is shown meanwhile may be lost."""
        if self._is_ended:
            return
        self._parts.append(part)
        self._pending += part
        self._show()

    def status(self, text: str) -> None:
        """Says what the agent does meanwhile, such as a search. The next text ends it."""
        if self._is_ended:
            return
        self._status, self._has_new_status = text[:MAX_STATUS_CHARACTERS], True
        self._show()

    def _show(self) -> None:
        self._news.set()
        if self._socket is not None and self._showing is None:
            self._socket.watch(self.id, self._hear)
            self._showing = asyncio.create_task(self._show_all(self._socket))

    def _hear(self, frame: Frame) -> None:
        """A refusal, or an end that this stream has not said."""
        if frame["type"] == "stream.cancel":
            is_mine, is_over = True, frame.get("reason") != "idle"
        else:
            is_mine = frame.get("ref") == self._reference
            is_over = frame["error"]["code"] not in LOST_CODES
        if is_mine:
            self._is_lost = True
            if is_over and self._showing is not None:
                self._showing.cancel()

    @property
    def _reference(self) -> str:
        """Tells refusals of this generation from those of an earlier one."""
        return f"{self.id}:{self._generation}"

    async def _show_all(self, socket: Socket) -> None:
        while not self._is_ended:
            self._news.clear()
            try:
                has_said = socket.is_ready and await self._say_next(socket)
            except (BlindpipeError, E2eeError, KeyUnavailable):
                # The end carries everything, so a lost delta costs nothing but the show.
                has_said = False
            if has_said:
                await asyncio.sleep(1 / MAX_DELTAS_PER_SECOND)
                continue
            try:
                await asyncio.wait_for(self._news.wait(), NEWS_SECONDS)
            except TimeoutError:
                pass

    async def _say_next(self, socket: Socket) -> bool:
        """Says what is due. False if nothing is."""
        now = asyncio.get_running_loop().time()
        if self._is_lost or not self._is_open:
            wait = BEGIN_SECONDS * (self._generation + 1) if self._is_open else 0
            if now < self._begun_at + wait:
                return False
            self._begun_at = now
            await self._begin(socket)
            # A begin is no delta, so the first one follows at once.
            if self._n > 0:
                return True
        if socket.connection != self._connection:
            # The last frames may be lost with the other connection.
            self._connection = socket.connection
            return await self._sign(socket, self._n > 0)
        if self._pending:
            if self._n - self._checkpoint_n >= DELTAS_BETWEEN_CHECKPOINTS:
                return await self._sign(socket, True)
            piece = self._pending[:MAX_DELTA_CHARACTERS]
            self._pending = self._pending[MAX_DELTA_CHARACTERS:]
            n, self._n, self._status = self._n, self._n + 1, None
            await self._say(socket, "stream.delta", {"append": piece}, n)
            return True
        if self._has_new_status and self._status is not None:
            return await self._say_status(socket, self._status)
        if now >= self._sign_at + SIGN_SECONDS:
            is_old = now >= self._checkpoint_at + CHECKPOINT_SECONDS
            return await self._sign(socket, self._n > 0 and (is_old or self._n > self._checkpoint_n))
        return False

    async def _begin(self, socket: Socket) -> None:
        """Begins, or begins again with the next generation where the text stands."""
        draft = self._draft({})
        self._generation, self._is_lost = self._generation + 1, False
        self._connection = socket.connection
        begin: Frame = {"conversation_id": draft.conversation_id, "generation": self._generation}
        self._send(socket, "stream.begin", begin | _in_reply_to(draft))
        if self._n > 0:
            await self._sign(socket, True)
        self._has_new_status = self._status is not None

    async def _sign(self, socket: Socket, is_checkpoint: bool) -> bool:
        if not is_checkpoint:
            self._send(socket, "stream.keepalive", {})
            return True
        # The status is none of the text, and a piece that waits is not shown yet.
        shown = self.text[: len(self.text) - len(self._pending)]
        if len(shown) > MAX_CHECKPOINT_CHARACTERS:
            shown = "…" + shown[-MAX_CHECKPOINT_CHARACTERS:]
        self._checkpoint_n, self._checkpoint_at = self._n, asyncio.get_running_loop().time()
        await self._say(socket, "stream.checkpoint", {"checkpoint": shown}, self._n - 1)
        return True

    async def _say_status(self, socket: Socket, text: str) -> bool:
        self._has_new_status = False
        await self._say(socket, "stream.status", {"type": "status", "text": text}, STATUS_NUMBER)
        return True

    async def _say(self, socket: Socket, type: str, content: JsonObject, n: int) -> None:
        draft = self._draft({})
        data: JsonObject | str = content
        if not await self._outbox.goes_clear(draft):
            epoch = draft.answered.opened.epoch if draft.answered else None
            place = Delta(draft.client_message_id, n)
            session, conversation = self._session, draft.conversation_id
            data = await session.seal_text(conversation, place, content, answering=epoch)
        if not self._is_ended:
            number: Frame = {} if type == "stream.status" else {"n": n}
            self._send(socket, type, number | {"data": data})

    def _send(self, socket: Socket, type: str, fields: Frame) -> None:
        self._sign_at = asyncio.get_running_loop().time()
        socket.send({"type": type, "ref": self._reference, "stream_id": self.id} | fields)

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
        if self._showing is not None:
            self._showing.cancel()
        if self._socket is not None:
            self._socket.watch(self.id, None)

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
