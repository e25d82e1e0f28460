"""Keeps calls of one budget in order while it is used up."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import insort
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import BlindpipeError
from ..hooks import HookCaller

_T = TypeVar("_T")

_MAX_PRUDENT_WAIT_SECONDS = 1
"""A window that is longer may be shared with others; there the refusal itself says how long."""
_BUDGET = re.compile(r'"([^"]*)";r=(\d+);t=(\d+)')


@dataclass(frozen=True, slots=True)
class Limited:
    """A refusal by the limiter: the call waits and is made again."""

    error: BlindpipeError
    wait_ms: float
    scope: str


@dataclass(slots=True, order=True)
class _Waiting:
    ticket: int
    turn: asyncio.Future[None] = field(compare=False)


class _Lane:
    """Calls of one route, which are charged to the same budgets."""

    def __init__(self) -> None:
        self.not_before = 0.0
        self._next_ticket = 0
        # In the order in which the calls were made.
        self._waiting: list[_Waiting] = []
        # Calls that are under way. A later one waits for what becomes of them.
        self._under_way: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def take_ticket(self) -> int:
        self._next_ticket += 1
        return self._next_ticket

    def enter(self, ticket: int) -> bool:
        """True if the call may go at once, beside others."""
        if self._waiting or self.not_before > time.monotonic():
            return False
        self._under_way.add(ticket)
        return True

    async def turn(self, ticket: int) -> None:
        """Returns when it is this ticket's turn. Its call must end with `done`."""
        waiting = _Waiting(ticket, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiting)
        self._under_way.discard(ticket)
        self._pump()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self.done(ticket)
            raise

    def done(self, ticket: int) -> None:
        self._under_way.discard(ticket)
        self._pump()

    def _pump(self) -> None:
        if self._under_way or self._timer or not self._waiting:
            return
        wait = self.not_before - time.monotonic()
        if wait > 0:
            self._timer = asyncio.get_running_loop().call_later(wait, self._expired)
            return
        waiting = self._waiting.pop(0)
        self._under_way.add(waiting.ticket)
        if not waiting.turn.done():
            waiting.turn.set_result(None)

    def _expired(self) -> None:
        self._timer = None
        self._pump()


class Pacer:
    """The lanes of one client."""

    def __init__(self, hooks: HookCaller) -> None:
        self._hooks = hooks
        self._lanes: dict[str, _Lane] = {}

    async def run(
        self, name: str, deadline: float, call: Callable[[], Awaitable[_T | Limited]]
    ) -> _T:
        """Makes a call in its lane.

        While the lane is held up, calls go one by one in the order in which they were made. Raises
        the refusal of a call that would wait beyond `deadline`, a time of `time.monotonic`.
        """
        lane = self._lanes.setdefault(name, _Lane())
        ticket = lane.take_ticket()
        entered = lane.enter(ticket)
        while True:
            if not entered:
                await lane.turn(ticket)
            entered, waits = False, False
            try:
                outcome = await call()
                if not isinstance(outcome, Limited):
                    return outcome
                if time.monotonic() + outcome.wait_ms / 1000 > deadline:
                    raise outcome.error
                self._hold(lane, outcome.wait_ms, outcome.scope)
                waits = True
            finally:
                if not waits:
                    lane.done(ticket)

    def _hold(self, lane: _Lane, wait_ms: float, scope: str) -> None:
        lane.not_before = max(lane.not_before, time.monotonic() + wait_ms / 1000)
        self._hooks.call("rate_limited", scope=scope, wait_ms=round(wait_ms))

    def observe(self, name: str, header: str | None) -> None:
        """Slows the lane down before the server refuses: the budget's last call was just used."""
        for scope, left, seconds in _BUDGET.findall(header or ""):
            if left == "0" and int(seconds) <= _MAX_PRUDENT_WAIT_SECONDS:
                self._hold(self._lanes.setdefault(name, _Lane()), int(seconds) * 1000, scope)
