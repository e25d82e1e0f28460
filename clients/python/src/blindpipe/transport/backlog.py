"""A bound on what waits in memory: the rest of a backlog stays on the server."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_PENDING_EVENTS: Final = 2_000
RESUME_BELOW_EVENTS: Final = 200
MAX_PENDING_BYTES: Final = 32 * 1024 * 1024
RESUME_BELOW_BYTES: Final = 4 * 1024 * 1024


class Backlog:
    """Counts frames that came and are not handled, with their sizes, each under a name."""

    def __init__(self) -> None:
        self._sizes: dict[str | int, int] = {}
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def add(self, name: str | int, size: int) -> bool:
        """Counts a frame of `size` bytes; false if it is the last that fits."""
        self._bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        if len(self._sizes) >= MAX_PENDING_EVENTS or self._bytes >= MAX_PENDING_BYTES:
            self._has_room.clear()
        return self._has_room.is_set()

    def remove(self, name: str | int) -> None:
        """A frame waits no more."""
        self._bytes -= self._sizes.pop(name, 0)
        if len(self._sizes) <= RESUME_BELOW_EVENTS and self._bytes <= RESUME_BELOW_BYTES:
            self._has_room.set()

    def clear(self) -> None:
        """None of the frames waits any more."""
        self._sizes.clear()
        self._bytes = 0
        self._has_room.set()

    def end(self) -> None:
        """Nobody takes events any more, so nobody waits for room."""
        self._has_room.set()

    async def room(self) -> None:
        """Returns when few enough events wait."""
        await self._has_room.wait()
