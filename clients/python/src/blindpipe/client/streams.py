"""Streams: agents' messages while they are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ..core.session import Session
from ..e2ee import E2eeError, Principal, ids
from ..e2ee.envelope import STATUS_NUMBER, Delta
from ..transport.socket import Frame
from .events import CheckpointEvent, ClientEvent, DeltaEvent, StatusEvent, StreamCancelled

MAX_KNOWN_STREAMS: Final = 1_000
"""The agents of a person have a few each."""
SYNC_SECONDS: Final = 2.0
"""The wait for the pieces before the first one that came. Then it is shown without them."""

_Name = tuple[Principal, str]


class StreamReader:
    """Shows each piece once and in order. A stream that was joined in its middle is asked for.

    Nothing of a stream counts once its message is there, or after five minutes.
    """

    def __init__(
        self,
        session: Callable[[], Session],
        tell: Callable[[str, str | None, str | None], None],
        send: Callable[[Frame], object],
    ) -> None:
        self._session = session
        self._tell = tell
        self._send = send
        # The number that a stream's next piece has at least, the newest stream last.
        self._next_piece: dict[_Name, int] = {}
        # When a stream was asked for that was joined in its middle.
        self._asked_at: dict[_Name, float] = {}

    async def read(self, frame: Frame) -> list[ClientEvent]:
        """The events of a frame; none for what is not shown."""
        who = frame.get("sender")
        if who is None:
            return []
        sender = ids.principal(who["type"], who["id"])
        name = sender, frame["stream_id"]
        conversation_id, stream_id = frame["conversation_id"], frame["stream_id"]
        if frame["type"] == "stream.cancel":
            return [StreamCancelled(conversation_id, stream_id, frame.get("reason"), sender)]
        if self._session().is_remembered(conversation_id, sender, stream_id):
            return []
        match frame["type"]:
            case "stream.begin" if frame.get("generation"):
                # Its agent has lost its node: what was shown may have a hole.
                self._send({"type": "stream.sync", "stream_id": stream_id})
            case "stream.delta":
                return await self._read_delta(frame, name)
            case "stream.checkpoint":
                return await self._read_checkpoint(frame, name)
            case "stream.status":
                content = await self._open(frame, STATUS_NUMBER, sender)
                text = content.get("text")
                if content.get("type") == "status" and isinstance(text, str):
                    return [StatusEvent(conversation_id, stream_id, text, sender)]
        return []

    async def _read_delta(self, frame: Frame, name: _Name) -> list[ClientEvent]:
        sender, stream_id = name
        n, next = int(frame["n"]), self._next_piece.get(name)
        if next is not None and n < next:
            return []
        append = (await self._open(frame, n, sender)).get("append")
        if not isinstance(append, str):
            return []
        if next is None and n > 0 and self._waits_for_the_past(name):
            return []
        self._note(name, n + 1)
        return [DeltaEvent(frame["conversation_id"], stream_id, n, append, sender)]

    async def _read_checkpoint(self, frame: Frame, name: _Name) -> list[ClientEvent]:
        sender, stream_id = name
        n = int(frame["n"])
        if n + 1 < self._next_piece.get(name, 0):
            return []
        text = (await self._open(frame, n, sender)).get("checkpoint")
        if not isinstance(text, str):
            return []
        self._note(name, n + 1)
        return [CheckpointEvent(frame["conversation_id"], stream_id, n, text, sender)]

    def _waits_for_the_past(self, name: _Name) -> bool:
        """Asks once for a stream whose begin nobody here has seen."""
        now = time.monotonic()
        asked_at = self._asked_at.get(name)
        if asked_at is None:
            self._asked_at[name] = now
            _keep_newest(self._asked_at)
            self._send({"type": "stream.sync", "stream_id": name[1]})
            return True
        return now < asked_at + SYNC_SECONDS

    def _note(self, name: _Name, next: int) -> None:
        self._asked_at.pop(name, None)
        self._next_piece.pop(name, None)
        self._next_piece[name] = next
        _keep_newest(self._next_piece)

    async def _open(self, frame: Frame, n: int, sender: Principal) -> dict[str, Any]:
        """The content, or nothing where it does not open."""
        conversation_id, data = frame["conversation_id"], frame.get("data")
        try:
            if not isinstance(data, str):
                raise E2eeError("clear")
            place = Delta(frame["stream_id"], n)
            shown = await self._session().open_text(conversation_id, data, place, sender)
        except E2eeError as error:
            self._tell(error.reason, None, conversation_id)
            return {}
        return shown.opened.json if shown.opened else {}


def _keep_newest(streams: dict[_Name, Any]) -> None:
    if len(streams) > MAX_KNOWN_STREAMS:
        del streams[next(iter(streams))]
