"""The frames of a person's socket: bounded in memory, acknowledged once they are handled."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from ..hooks import HookCaller
from ..transport.acks import Acks, Keeper
from ..transport.backlog import Backlog
from ..transport.socket import Frame, Socket, SocketOptions
from .account import Account
from .events import ClientEvent
from .lines import Lines, Slot

MAX_READS: Final = 64
"""Frames that are read at once. More than one is read while a read waits for the service."""

Read = Callable[[Frame], Awaitable[Sequence[ClientEvent]]]
Shown = Callable[[Sequence[ClientEvent]], Awaitable[None] | None]


class Feed:
    """A socket that reconnects.

    Frames are read one after the other. While the read of one waits for the service, those of other
    lines are read. An event is acknowledged once it and all before it were shown.
    """

    def __init__(
        self,
        account: Account,
        hooks: HookCaller,
        keeper: Keeper,
        missed_events: Callable[[], None],
        holders: Callable[[], Awaitable[Sequence[str]]],
        admit: Callable[[Frame], Awaitable[object]],
        read: Read,
        shown: Shown,
    ) -> None:
        """`admit` takes note of each frame in the order of arrival, and `read` makes its events.

        `shown` is told of the events after that. Its line waits for what it answers.
        """
        self._account = account
        self._hooks = hooks
        self._missed_events = missed_events
        self._admit = admit
        self._read = read
        self._shown = shown
        self._arrived = deque[tuple[int, Frame]]()
        self._lines = Lines()
        # Set when a frame has come, a read has ended, or the socket has.
        self._news = asyncio.Event()
        # Numbers the frames; deltas and typing have no cursor, and wait in memory as events do.
        self._numbers = itertools.count()
        self._backlog = Backlog()
        self._acks = Acks(self._send_ack, keeper)
        self._received: str | None = None
        # The rest of this connection's events comes again with the next one.
        self._is_dropped = False
        self._socket = Socket(
            SocketOptions(
                account.http,
                hooks,
                auth=self._auth,
                renew=account.renew,
                on_frame=self._take,
                on_ready=self._begin,
                holders=holders,
            )
        )

    async def _auth(self) -> Frame:
        await self._backlog.room()
        resume = {"resume": self._received} if self._received else {}
        return {"type": "auth", "access_token": await self._account.token(), **resume}

    def _send_ack(self, cursor: str) -> bool:
        return self._socket.send({"type": "ack", "cursor": cursor})

    def _begin(self, _frame: Frame) -> None:
        self._is_dropped = False
        # An ack that the last connection did not take goes to this one.
        self._acks.flush()

    def _take(self, frame: Frame, size: int) -> None:
        if self._is_dropped:
            return
        if frame["type"] == "event":
            self._received = frame["cursor"]
        elif frame["type"] == "resync_required":
            self._received = frame["head"]
            self._missed_events()
            self._hooks.call("resync", oldest=frame["oldest"], head=frame["head"])
        number = next(self._numbers)
        self._arrived.append((number, frame))
        self._news.set()
        if not self._backlog.add(number, size):
            self._is_dropped = True
            self._socket.drop()

    def send(self, frame: Frame) -> bool:
        """Writes a frame; false while there is no connection."""
        return self._socket.send(frame)

    async def events(self, first: Frame) -> AsyncGenerator[Sequence[ClientEvent], None]:
        """The events of each frame, with `first` before all that come.

        Raises `Closed` where the server forbids another connection.
        """
        self._arrived.append((next(self._numbers), first))
        run = asyncio.create_task(self._socket.run())
        run.add_done_callback(lambda _run: self._news.set())
        try:
            while (slot := await self._next(run)) is not None:
                yield slot.events
                rest = self._shown(slot.events)
                if rest is None:
                    self._finish(slot)
                else:
                    slot.rest = asyncio.ensure_future(rest)
                    slot.rest.add_done_callback(lambda _rest: self._news.set())
            run.result()
        finally:
            under_way = self._lines.under_way()
            for work in under_way:
                work.cancel()
            try:
                # Nobody is left for their exceptions.
                await asyncio.gather(*under_way, return_exceptions=True)
                await self._acks.settle()
            finally:
                # A store that still fails is tried no more.
                self._acks.forget()
                self._socket.close()
                self._backlog.end()
                await asyncio.wait([run])

    async def _next(self, run: asyncio.Task[None]) -> Slot | None:
        """The next frame that was read; None after the last one."""
        while True:
            self._news.clear()
            if (ended := self._lines.ended()) is not None:
                if ended.rest is None:
                    return ended
                ended.rest.result()
                self._finish(ended)
                continue
            if (slot := self._lines.startable()) is not None:
                await self._start(slot)
            elif self._arrived and self._lines.reads < MAX_READS:
                number, frame = self._arrived.popleft()
                await self._admit(frame)
                self._lines.add(number, frame)
            elif run.done() and not self._arrived and self._lines.is_empty:
                return None
            else:
                await self._news.wait()

    def _finish(self, slot: Slot) -> None:
        self._backlog.remove(slot.number)
        cursor = self._lines.done(slot)
        if cursor is not None:
            self._acks.note(cursor)

    async def _start(self, slot: Slot) -> None:
        reading = asyncio.ensure_future(self._read(slot.frame))
        self._lines.begin(slot, reading)
        reading.add_done_callback(lambda _reading: self._news.set())
        # A read that needs not wait for the service has ended after this.
        await asyncio.sleep(0)
