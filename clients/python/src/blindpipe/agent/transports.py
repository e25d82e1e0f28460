"""The ways by which events come: a socket and long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar, cast

from ..api_errors import CursorExpired
from ..core.types import Event
from ..errors import BlindpipeError
from ..hooks import HookCaller
from ..transport.clock import full_jitter
from ..transport.http import FIRST_RETRY_MS, MAX_RETRY_MS, Call, Http
from ..transport.socket import Frame, Socket, SocketOptions
from .inbox import Inbox
from .options import AgentOptions
from .parts import AgentParts

_T = TypeVar("_T")

POLL_WAIT_SECONDS: Final = 25
MAX_POLL_EVENTS: Final = 1_000
# A page with fewer events has all that there were. One with more may have ended at its 4 MB.
SHORT_PAGE_EVENTS: Final = 100
SETTLE_SECONDS: Final = 10.0
"""A poll waits so long for the handlers of the one before it. Then it looks for other events."""


class Resyncs:
    """The places to begin at after cursors that are of no use any more, one after the other.

    After the last acknowledgement, with the oldest event, and then with the newest.
    """

    def __init__(self) -> None:
        self.count = 0
        """Since an event came."""

    def next(self, has_resumed: bool, oldest: str, head: str) -> str | None:
        """The cursor to begin after; None for the last acknowledgement."""
        self.count += 1
        if self.count == 1 and has_resumed:
            return None
        return oldest if self.count <= 2 else head

    @property
    def is_at_head(self) -> bool:
        """Whether the last place was the newest event: no place is left to try."""
        return self.count > 2


class SocketReader:
    """A socket that feeds an inbox, and leaves a backlog on the server while the inbox is full."""

    def __init__(
        self,
        options: AgentOptions,
        hooks: HookCaller,
        inbox: Inbox,
        http: Http,
        standby: bool,
        group: str | None = None,
    ) -> None:
        self._options = options
        self._hooks = hooks
        self._inbox = inbox
        self._http = http
        self._standby = standby
        # The group whose conversations this process shares.
        self._group = group
        # The rest of this connection's events comes again with the next one.
        self._is_dropped = False
        self._has_resumed = False
        self._resyncs = Resyncs()
        self.socket = Socket(
            SocketOptions(
                http,
                hooks,
                auth=self._auth,
                renew=self._renew,
                on_frame=self._take,
                on_ready=self._begin,
                on_lost=self._lost,
                holders=self._holders,
            )
        )

    async def _auth(self) -> Frame:
        await self._inbox.room()
        options, received = self._options, self._inbox.received
        if self._group is not None:
            share = {"mode": "shared", "group": self._group}
            return {"type": "auth", "agent_id": options.agent_id, "token": options.token, **share}
        resume = {"resume": received} if received and not self._standby else {}
        self._has_resumed = bool(resume)
        return {"type": "auth", "agent_id": options.agent_id, "token": options.token, **resume}

    def _lost(self, was_silent: bool) -> None:
        if self._group is not None:
            self._inbox.lost(was_silent)

    async def _renew(self) -> bool:
        return False

    async def _holders(self) -> Sequence[str]:
        agent = await self._http.data(Call("GET", f"/agents/{self._options.agent_id}"))
        return [each["connection_id"] for each in agent.get("connections") or ()]

    def _begin(self, frame: Frame) -> None:
        self._is_dropped = False
        self._inbox.replayed_to = int((frame.get("replay") or {}).get("to") or 0)
        # Acks that the last connection did not take go to this one.
        self._inbox.flush_ack()

    def _take(self, frame: Frame, size: int) -> None:
        if self._is_dropped:
            return
        if frame["type"] == "event":
            self._resyncs.count = 0
            if not self._inbox.take(cast(Event, frame), size, self._standby):
                self._drop()
        elif frame["type"] == "resync_required":
            self._resync(frame["oldest"], frame["head"])
        elif frame["type"] == "caught_up":
            # The last place was of use, though it held no event.
            self._resyncs.count = 0

    def _resync(self, oldest: str, head: str) -> None:
        """This connection goes on at the head. The next one begins at what was not handled."""
        self._inbox.resync(self._resyncs.next(self._has_resumed, oldest, head), head)
        self._hooks.call("resync", oldest=oldest, head=head)
        if not self._standby and not self._resyncs.is_at_head:
            self._drop()

    def _drop(self) -> None:
        self._is_dropped = True
        self.socket.drop()

    def activate(self) -> None:
        """From the last acknowledgement on, events are handled here."""
        if self._standby:
            self._standby = False
            self._inbox.received = None
            self._drop()


async def read_by_poll(
    parts: AgentParts, inbox: Inbox, hooks: HookCaller, stopping: asyncio.Event
) -> None:
    """Long polls until the agent stops. The cursor passed is the one that is acknowledged."""
    path = f"/agents/{parts.agent_id}/messages/poll"
    cursor: str | None = None
    failures = 0
    resyncs = Resyncs()
    # The cursors of events that come again, since an earlier one is still being handled.
    taken: set[str] = set()
    # Until a page is short, what comes was there before this run.
    looks_back = True
    while not stopping.is_set():
        wait = 0 if looks_back else POLL_WAIT_SECONDS
        query = {"cursor": cursor, "wait": wait, "limit": MAX_POLL_EVENTS}
        try:
            page = await unless_stopped(stopping, parts.http.call(Call("GET", path, query)))
        except CursorExpired as error:
            oldest, head = str(error.params["oldest"]), str(error.params["head"])
            cursor = resyncs.next(bool(cursor), oldest, head)
            inbox.resync(cursor, head)
            taken.clear()
            hooks.call("resync", oldest=oldest, head=head)
            if resyncs.is_at_head:
                # A server that refuses this place too is not asked without a pause.
                failures = await _pause(failures, stopping)
            continue
        except BlindpipeError as error:
            if not error.retryable:
                raise
            failures = await _pause(failures, stopping)
            continue
        if page is None:
            break
        failures = resyncs.count = 0
        if looks_back and page.data:
            inbox.replayed_to = page.data[-1]["seq"]
        looks_back = looks_back and len(page.data) >= SHORT_PAGE_EVENTS
        for event in page.data:
            # A page is small, and the next one is asked for when this one is handled.
            if event["cursor"] not in taken:
                taken.add(event["cursor"])
                inbox.take(event, 0, False)
        is_settled = await inbox.settled(SETTLE_SECONDS)
        handled, is_kept = await inbox.ackable()
        if not is_kept:
            # The same page comes again, and nothing is acknowledged, until the store is mended.
            failures = await _pause(failures, stopping)
            continue
        cursor = handled or cursor or (page.next_cursor if is_settled else None)
        if is_settled:
            taken.clear()
    await inbox.finish()
    handled, _ = await inbox.ackable()
    if handled:
        await _ack_by_rest(parts, handled)


async def _pause(failures: int, stopping: asyncio.Event) -> int:
    """Waits longer after each failure, and answers how many there are now."""
    wait_ms = full_jitter(failures, FIRST_RETRY_MS, MAX_RETRY_MS)
    await unless_stopped(stopping, asyncio.sleep(wait_ms / 1000))
    return failures + 1


async def unless_stopped(stopping: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T | None:
    """The outcome of `work`; None if the agent stops before it is there."""
    working = asyncio.create_task(work)
    stops = asyncio.create_task(stopping.wait())
    both: tuple[asyncio.Task[Any], ...] = (working, stops)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in both:
            task.cancel()


async def _ack_by_rest(parts: AgentParts, cursor: str) -> None:
    body = {"cursor": cursor}
    path = f"/agents/{parts.agent_id}/ack"
    await parts.http.data(Call("POST", path, body=body, repeatable=True))
