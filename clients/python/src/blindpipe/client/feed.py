"""The frames of a person's socket: bounded in memory, acknowledged once they are handled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from ..hooks import HookCaller
from ..transport.acks import Acks, Keeper
from ..transport.backlog import Backlog
from ..transport.socket import Frame, Socket, SocketOptions
from .account import Account


class Feed:
    """A socket that reconnects. An event is acknowledged after the next frame is asked for."""

    def __init__(
        self,
        account: Account,
        hooks: HookCaller,
        keeper: Keeper,
        missed_events: Callable[[], None],
        holders: Callable[[], Awaitable[Sequence[str]]],
    ) -> None:
        self._account = account
        self._hooks = hooks
        self._missed_events = missed_events
        self._frames: asyncio.Queue[tuple[int, Frame] | None] = asyncio.Queue()
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
        self._frames.put_nowait((number, frame))
        if not self._backlog.add(number, size):
            self._is_dropped = True
            self._socket.drop()

    def send(self, frame: Frame) -> bool:
        """Writes a frame; false while there is no connection."""
        return self._socket.send(frame)

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Frames in their order. Raises `Closed` where the server forbids another connection."""
        run = asyncio.create_task(self._socket.run())
        run.add_done_callback(lambda _run: self._frames.put_nowait(None))
        try:
            while (taken := await self._frames.get()) is not None:
                number, frame = taken
                yield frame
                self._backlog.remove(number)
                if frame["type"] == "event":
                    self._acks.note(frame["cursor"])
            run.result()
        finally:
            try:
                await self._acks.settle()
            finally:
                # A store that still fails is tried no more.
                self._acks.forget()
                self._socket.close()
                self._backlog.end()
                await asyncio.wait([run])
