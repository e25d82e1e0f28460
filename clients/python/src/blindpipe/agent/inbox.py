"""The agent's inbox: events taken in by their order, handled, retried, acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..core.session import Session
from ..core.types import Event
from ..errors import BlindpipeError
from ..hooks import HookCaller
from ..stores.lessons import Lessons
from ..transport.acks import Acks
from ..transport.backlog import Backlog
from ..transport.clock import full_jitter
from .dispatcher import Dispatcher
from .options import AgentOptions
from .parts import AgentParts
from .processor import Processor

STOP_GRACE_SECONDS: Final = 25.0
FIRST_OUTAGE_WAIT_MS: Final = 1_000
MAX_OUTAGE_WAIT_MS: Final = 30_000
SLOW_HANDLER_SECONDS: Final = 300.0
"""A handler that runs for so long is named in the log."""


KEEP_SECONDS: Final = 8.0
"""The server gives a lost connection's conversations to another process after 10 s."""


@dataclass(frozen=True, slots=True)
class InboxParts:
    """The parts that an inbox works with."""

    options: AgentOptions
    processor: Processor
    hooks: HookCaller
    logger: logging.Logger
    parts: AgentParts
    lessons: Lessons
    stopping: asyncio.Event
    """Set when no more events are taken."""
    on_failure: Callable[[BaseException], None]
    """The agent stops for a handler's error, as its developer chose."""
    send_ack: Callable[[str], bool]
    """Tells the server a cursor; false while it cannot."""
    is_shared: bool = False
    """Other processes have a share of the conversations."""


class Inbox:
    """Takes events, and says what may be acknowledged."""

    def __init__(self, setup: InboxParts) -> None:
        self._setup = setup
        concurrency = setup.options.concurrency
        self._acks = Acks(setup.send_ack, setup.lessons)
        self._dispatcher = Dispatcher(concurrency, self._handle, self._progressed)
        # The reads of a standby, which handles nothing.
        self._learning: set[asyncio.Task[None]] = set()
        self._backlog = Backlog()
        # The events whose handlers run, by their numbers, and when these began: the oldest first.
        self._begun: dict[int, tuple[float, Event]] = {}
        self._numbers = itertools.count()
        self._slow: asyncio.TimerHandle | None = None
        # Shared connections that have ended.
        self._losses = 0
        # The history that cursors belong to; the server's database may go back to another one.
        self._epoch: str | None = None
        self.received: str | None = None
        """The cursor of the last event taken in."""
        self.replayed_to = 0
        """Numbers up to this one were in the inbox before this connection."""

    async def ackable(self) -> tuple[str | None, bool]:
        """The cursor to acknowledge now, and whether the lessons of its events are kept."""
        cursor = self._acks.pending
        is_kept = await self._setup.lessons.save()
        return (cursor if is_kept else None), is_kept

    async def room(self) -> None:
        """Returns when few enough events wait, or the agent stops."""
        both = self._backlog.room(), self._setup.stopping.wait()
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in both]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def take(self, event: Event, size: int, standby: bool) -> bool:
        """Takes an event of `size` bytes in; false if it is the last one for now.

        A standby only learns from it.
        """
        if self._setup.stopping.is_set():
            return True
        if not standby:
            self.received = event["cursor"]
            self._epoch = _epoch_of(event["cursor"])
        if event["event"] == "artifact_response":
            self._setup.parts.tool_calls.deliver(event["data"])
        if not standby:
            self._setup.processor.arrive(event)
        has_room = self._backlog.add(event["cursor"], size)
        observe(self._setup.parts.session, event, self._setup.logger)
        if standby:
            learning = asyncio.create_task(self._learn_only(event))
            self._learning.add(learning)
            learning.add_done_callback(self._learning.discard)
        else:
            self._dispatcher.push(event)
        return has_room

    def resync(self, begin: str | None, head: str) -> None:
        """Earlier cursors mean nothing any more.

        Reading begins after the last acknowledgement; after `begin` if there is one.
        """
        self.received = begin
        self._epoch = _epoch_of(head)
        self._acks.forget()
        self._setup.parts.session.missed_events()

    def lost(self, was_silent: bool) -> None:
        """The connection has ended, and with it this process's share of the conversations.

        Events that wait come again. Handlers may go on until another process may have their
        conversations.
        """
        self._acks.forget()
        self._backlog.clear()
        self._losses += 1
        running = self._dispatcher.give_up()
        delay = 0.0 if was_silent else KEEP_SECONDS
        asyncio.get_running_loop().call_later(delay, _cancel_all, running)

    def _progressed(self, cursor: str) -> None:
        # An acknowledgement of another history would say nothing, or too much.
        if _epoch_of(cursor) == self._epoch:
            self._acks.note(cursor)

    async def _learn_only(self, event: Event) -> None:
        await learn(self._setup.parts.session, event, self._setup.logger)
        self._backlog.remove(event["cursor"])

    async def _handle(self, event: Event) -> None:
        while not await self._setup.lessons.enter(event.get("conversation_id")):
            # It is not known whether another process has handled it.
            if await self._stops_within(FIRST_OUTAGE_WAIT_MS / 1000):
                raise asyncio.CancelledError
        losses, number = self._losses, next(self._numbers)
        await learn(self._setup.parts.session, event, self._setup.logger)
        self._begun[number] = time.monotonic(), event
        if self._slow is None:
            self._tell_slow_later(SLOW_HANDLER_SECONDS)
        try:
            await self._try(event)
        finally:
            self._begun.pop(number, None)
        if losses != self._losses:
            # No ack follows. Another process is given the event soon, and looks into the store.
            await self._setup.lessons.save()
        self._backlog.remove(event["cursor"])

    def _tell_slow_later(self, seconds: float) -> None:
        # A timer for each event would cost more than to read one.
        self._slow = asyncio.get_running_loop().call_later(seconds, self._tell_slow)

    def _tell_slow(self) -> None:
        """Their conversations wait for them, and so do the acknowledgements of all."""
        self._slow, now = None, time.monotonic()
        for number, (begun, event) in list(self._begun.items()):
            left = begun + SLOW_HANDLER_SECONDS - now
            if left > 0:
                return self._tell_slow_later(left)
            del self._begun[number]
            text = "the handlers of an event (%s, %s) have run for %s s"
            name, id = event["event"], event["event_id"]
            self._setup.logger.warning(text, name, id, round(SLOW_HANDLER_SECONDS))

    async def _try(self, event: Event) -> None:
        """Runs the handlers of an event until they succeed, or the last try has failed."""
        setup = self._setup
        attempt = outages = 0
        while True:
            try:
                replayed = setup.is_shared or event["seq"] <= self.replayed_to
                return await setup.processor.process(event, setup.parts, replayed)
            except BaseException as error:
                if setup.stopping.is_set() or is_the_end(error):
                    raise
                if isinstance(error, BlindpipeError) and error.retryable:
                    # The service's own outage uses up no tries.
                    delay, outages = _outage_wait(error, outages), outages + 1
                elif attempt >= len(setup.options.retry_delays):
                    return self._dead_letter(event, error)
                else:
                    delay, attempt = setup.options.retry_delays[attempt], attempt + 1
            route, tries = f"handler of {event['event']}", attempt + outages
            setup.hooks.call("retry", attempt=tries, wait_ms=round(delay * 1000), route=route)
            if await self._stops_within(delay):
                raise asyncio.CancelledError

    async def _stops_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._setup.stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _dead_letter(self, event: Event, error: BaseException) -> None:
        setup = self._setup
        id, name = event["event_id"], event["event"]
        setup.hooks.call("dead_letter", event_id=id, event=name, error=error)
        kind = type(error).__name__
        setup.logger.error("the handlers of an event (%s, %s) have failed: %s", name, id, kind)
        if setup.options.on_dead_letter == "stop":
            setup.on_failure(error)
            raise error

    def flush_ack(self) -> None:
        """Tells the server now what it may forget."""
        self._acks.flush()

    async def settled(self, seconds: float) -> bool:
        """Whether all events taken in are handled before the time is over or the agent stops."""
        handled = asyncio.create_task(self._dispatcher.idle())
        stopping = asyncio.create_task(self._setup.stopping.wait())
        try:
            both, first = (handled, stopping), asyncio.FIRST_COMPLETED
            await asyncio.wait(both, timeout=seconds, return_when=first)
            return handled.done()
        finally:
            handled.cancel()
            stopping.cancel()

    async def finish(self) -> None:
        """Begins no further event, and lets handlers end for a while."""
        self._dispatcher.stop()
        try:
            await asyncio.wait_for(self._dispatcher.idle(), STOP_GRACE_SECONDS)
        except TimeoutError:
            self._dispatcher.cancel()
        for learning in self._learning:
            learning.cancel()
        if self._slow is not None:
            self._slow.cancel()
        await self._acks.settle()


def _cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def observe(session: Session, event: Event, logger: logging.Logger) -> None:
    """Notes the keys and members of an event. A fault is logged, and keeps no event back."""
    try:
        session.observe(event)
    except Exception as error:
        _tell_fault(logger, error)


async def learn(session: Session, event: Event, logger: logging.Logger) -> None:
    """Reads what an event asks for.

    A read that failed is made again when something needs what it would have answered.
    """
    try:
        await session.learn(event)
    except Exception as error:
        _tell_fault(logger, error)


def _tell_fault(logger: logging.Logger, error: Exception) -> None:
    logger.warning("an event could not be looked into: %s", type(error).__name__)


def is_the_end(error: BaseException) -> bool:
    """Whether the task itself is to end: a handler may raise a cancellation that is not its own."""
    task = asyncio.current_task()
    is_cancelled = isinstance(error, asyncio.CancelledError) and task and task.cancelling() > 0
    return bool(is_cancelled) or isinstance(error, KeyboardInterrupt | GeneratorExit)


def _outage_wait(error: BlindpipeError, outages: int) -> float:
    """Seconds before a handler runs again that met a service which is away."""
    hinted = float(error.params.get("retry_after_ms") or 0)
    return max(hinted, full_jitter(outages, FIRST_OUTAGE_WAIT_MS, MAX_OUTAGE_WAIT_MS)) / 1000


def _epoch_of(cursor: str) -> str:
    return cursor.rpartition("-")[0]
