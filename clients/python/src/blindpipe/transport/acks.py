"""Acknowledgements: few of them, since each says all that came before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

ACK_INTERVAL_SECONDS: Final = 0.2


class Acks:
    """Tells the server the newest cursor, at most every 200 ms.

    `send` answers false while it cannot; then the cursor waits.
    """

    def __init__(self, send: Callable[[str], bool]) -> None:
        self._send = send
        self._timer: asyncio.TimerHandle | None = None
        self.pending: str | None = None
        """Handled, and not acknowledged yet."""

    def note(self, cursor: str) -> None:
        """All up to this cursor is handled."""
        self.pending = cursor
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ACK_INTERVAL_SECONDS, self.flush)

    def forget(self) -> None:
        """Drops the pending ack: its cursor is not valid any more."""
        self.pending = None

    def flush(self) -> None:
        """Tells the server now what it may forget."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.pending is not None and self._send(self.pending):
            self.pending = None
