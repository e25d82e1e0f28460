"""Events in order: one of a line at a time, several lines at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..core.key_events import line_of
from ..core.types import Event


@dataclass(slots=True)
class _Slot:
    cursor: str
    event: Event | None
    """None once it is handled, so that one that never ends holds no others in memory."""
    is_given_up: bool = False
    """It comes again, here or elsewhere."""


class Dispatcher:
    """`handle` returns once an event counts as handled, and raises if it never will here.

    `on_progress` is told the highest cursor below which every event has been handled.
    """

    def __init__(
        self,
        concurrency: int,
        handle: Callable[[Event], Awaitable[None]],
        on_progress: Callable[[str], None],
    ) -> None:
        self._concurrency = concurrency
        self._handle = handle
        self._on_progress = on_progress
        # Events that wait, by their lines.
        self._lines: dict[str, deque[_Slot]] = {}
        # Lines with something to do and nobody on them, in the order of their events.
        self._ready: deque[str] = deque()
        self._slots: deque[_Slot] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Events that were pushed and are not handled."""
        return len(self._slots)

    def push(self, event: Event) -> None:
        """Takes an event into its line."""
        slot = _Slot(event["cursor"], event)
        self._slots.append(slot)
        self._idle.clear()
        name = line_of(event)
        line = self._lines.get(name)
        if line is not None:
            line.append(slot)
            return
        self._lines[name] = deque([slot])
        self._ready.append(name)
        self._fill()

    def _fill(self) -> None:
        while self._ready and not self._is_stopped and len(self._workers) < self._concurrency:
            worker = asyncio.create_task(self._work(self._ready.popleft()))
            self._workers.add(worker)
            worker.add_done_callback(self._ended)

    async def _work(self, name: str) -> None:
        line = self._lines[name]
        while line and not self._is_stopped:
            slot = line[0]
            assert slot.event is not None
            try:
                await self._handle(slot.event)
            except (Exception, SystemExit, asyncio.CancelledError):
                # It is not acknowledged, so it comes again.
                if slot.is_given_up:
                    self._leave(name)
                return
            line.popleft()
            slot.event = None
            self._advance()
        if not line:
            del self._lines[name]

    def _leave(self, name: str) -> None:
        """Drops the first event of a line. Later events go on."""
        line = self._lines[name]
        line.popleft()
        if line:
            self._ready.append(name)
        else:
            del self._lines[name]

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._fill()
        self._tell_idle()

    def _advance(self) -> None:
        cursor = None
        while self._slots and self._slots[0].event is None:
            cursor = self._slots.popleft().cursor
        if cursor is not None:
            self._on_progress(cursor)

    def _tell_idle(self) -> None:
        if not self._workers and (self._is_stopped or not self._slots):
            self._idle.set()

    async def idle(self) -> None:
        """Returns when nothing is under way, and nothing waits unless this was stopped."""
        await self._idle.wait()

    def stop(self) -> None:
        """Begins no further event."""
        self._is_stopped = True
        self._tell_idle()

    def give_up(self) -> list[asyncio.Task[None]]:
        """Forgets what waits, and tells no progress of what runs. Answers the tasks that run."""
        for name in self._ready:
            del self._lines[name]
        self._ready.clear()
        self._slots.clear()
        for line in self._lines.values():
            line[0].is_given_up = True
            while len(line) > 1:
                line.pop()
        return list(self._workers)

    def cancel(self) -> None:
        """Cancels what is under way."""
        for worker in self._workers:
            worker.cancel()
