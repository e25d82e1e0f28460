"""Frames in lines: one of a line is read at a time, and several lines at once."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.key_events import line_of
from ..transport.socket import Frame
from .events import ClientEvent


@dataclass(slots=True, order=True)
class Slot:
    """A frame, by its place among all frames."""

    number: int
    frame: Frame = field(compare=False)
    line: str = field(compare=False)
    reading: asyncio.Future[Sequence[ClientEvent]] | None = field(default=None, compare=False)
    rest: asyncio.Future[None] | None = field(default=None, compare=False)
    """The work that is left after it was shown."""
    is_done: bool = field(default=False, compare=False)

    @property
    def events(self) -> Sequence[ClientEvent]:
        """The events of a frame that was read. Raises whatever its read has raised."""
        assert self.reading is not None
        return self.reading.result()

    @property
    def work(self) -> asyncio.Future[Any] | None:
        """The work on it now."""
        return self.rest or self.reading

    @property
    def is_last(self) -> bool:
        """Whether it says that all before it has come, so that it waits for all of it."""
        return bool(self.frame["type"] == "caught_up")


class Lines:
    """The frames that were admitted, and are not done."""

    def __init__(self) -> None:
        self._slots = deque[Slot]()
        self._lines: dict[str, deque[Slot]] = {}
        # The first of each line that nobody reads, the oldest on top.
        self._startable: list[Slot] = []
        self._reading: list[Slot] = []

    @property
    def is_empty(self) -> bool:
        """Whether all are done."""
        return not self._slots

    @property
    def reads(self) -> int:
        """Frames whose read has begun, and that are not done."""
        return len(self._reading)

    def add(self, number: int, frame: Frame) -> None:
        """Puts a frame at the end of its line."""
        slot = Slot(number, frame, line_of(frame))
        self._slots.append(slot)
        if slot.is_last:
            return
        line = self._lines.setdefault(slot.line, deque())
        line.append(slot)
        if len(line) == 1:
            heapq.heappush(self._startable, slot)

    def startable(self) -> Slot | None:
        """The oldest frame whose read may begin. It leaves with `begin`."""
        first = self._slots[0] if self._slots else None
        if first is not None and first.is_last and first.reading is None:
            return first
        return self._startable[0] if self._startable else None

    def begin(self, slot: Slot, reading: asyncio.Future[Sequence[ClientEvent]]) -> None:
        """The frame that `startable` has answered is read from now on."""
        slot.reading = reading
        self._reading.append(slot)
        if not slot.is_last:
            heapq.heappop(self._startable)

    def ended(self) -> Slot | None:
        """The oldest frame that was read and is not shown, or whose rest is done."""
        return min((slot for slot in self._reading if slot.work and slot.work.done()), default=None)

    def done(self, slot: Slot) -> str | None:
        """Nothing is left to do. Answers the cursor up to which that is so, if it is new."""
        self._reading.remove(slot)
        if not slot.is_last:
            self._leave(slot)
        # The cursor alone is held until all before it are done.
        slot.is_done, slot.reading, slot.rest = True, None, None
        slot.frame = {name: slot.frame.get(name) for name in ("type", "cursor")}
        cursor = None
        while self._slots and self._slots[0].is_done:
            frame = self._slots.popleft().frame
            cursor = frame["cursor"] if frame["type"] == "event" else cursor
        return cursor

    def _leave(self, slot: Slot) -> None:
        line = self._lines[slot.line]
        line.popleft()
        if line:
            heapq.heappush(self._startable, line[0])
        else:
            del self._lines[slot.line]

    def under_way(self) -> list[asyncio.Future[Any]]:
        """All that is done with frames now."""
        return [slot.work for slot in self._reading if slot.work is not None]
