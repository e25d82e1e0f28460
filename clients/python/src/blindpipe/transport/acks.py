"""Acknowledgements: few of them, since each says all that came before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

ACK_INTERVAL_SECONDS: Final = 0.2


class Keeper(Protocol):
    """A store of what events have taught."""

    @property
    def waiting(self) -> bool:
        """Whether anything is not in the store yet."""

    async def save(self) -> bool:
        """Stores all that was learned before this call; false if it could not. It never raises."""


class Acks:
    """Tells the server the newest cursor, at most every 200 ms.

    `send` answers false while it cannot; then the cursor waits. The server forgets an event once it
    is acknowledged, so its lessons are with the `keeper` before that.
    """

    def __init__(self, send: Callable[[str], bool], keeper: Keeper | None = None) -> None:
        self._send = send
        self._keeper = keeper
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.pending: str | None = None
        """Handled, and not acknowledged yet."""

    def note(self, cursor: str) -> None:
        """All up to this cursor is handled."""
        self.pending = cursor
        self._wait()

    def _wait(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ACK_INTERVAL_SECONDS, self.flush)

    def forget(self) -> None:
        """Drops the pending ack: its cursor is not valid any more."""
        self.pending = None
        self._keeping = None

    def flush(self) -> None:
        """Tells the server now what it may forget."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.pending is None or self._keeping is not None:
            return
        if self._keeper is not None and self._keeper.waiting:
            self._keeping = asyncio.create_task(self._keep(self._keeper, self.pending))
        elif self._send(self.pending):
            self.pending = None

    async def _keep(self, keeper: Keeper, cursor: str) -> None:
        is_kept = await keeper.save()
        if self._keeping is not asyncio.current_task():
            return
        self._keeping = None
        if not is_kept:
            # Nothing is acknowledged until the store is mended.
            return self._wait()
        is_sent = self._send(cursor)
        if self.pending != cursor:
            self._wait()
        elif is_sent:
            self.pending = None

    async def settle(self) -> None:
        """Tells the server what it may forget, and returns once it is told."""
        await self._kept()
        self.flush()
        await self._kept()

    async def _kept(self) -> None:
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
