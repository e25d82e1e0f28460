"""The lessons of events: keys of others, epochs and times, kept where the developer said."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ..core.session import Session
from ..e2ee.trust import Trust
from .pin_store import PinStore, StoredMarks

SAVE_DELAY_SECONDS: Final = 0.5
"""Many things are learned together, such as the keys of a group."""


class Lessons:
    """Keeps pins and marks, one save after the other."""

    def __init__(self, store: PinStore | None, trust: Trust, logger: logging.Logger) -> None:
        self._store = store
        self._trust = trust
        self._logger = logger
        self._lock = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None
        self._has_changed = False
        self.session: Session | None = None

    @property
    def waiting(self) -> bool:
        """Whether anything that was learned is not in the store yet."""
        return self._store is not None and (self._has_changed or self._lock.locked())

    def soon(self) -> None:
        """Something was learned."""
        self._has_changed = True
        if self._store is not None and (self._later is None or self._later.done()):
            self._later = asyncio.create_task(self._save_later())

    async def _save_later(self) -> None:
        await asyncio.sleep(SAVE_DELAY_SECONDS)
        await self.save()

    async def save(self) -> None:
        """Stores all that was learned before this call. A store's failure is logged."""
        if self._store is None or self.session is None:
            return
        async with self._lock:
            if not self._has_changed:
                return
            self._has_changed = False
            marks: dict[str, StoredMarks] = {
                id: {"epoch": mark.epoch, "time": mark.time}
                for id, mark in self.session.marks().items()
            }
            try:
                await self._store.save({"pins": self._trust.store(), "marks": marks})
            except BaseException as error:
                self._has_changed = True
                if not isinstance(error, Exception):
                    raise
                self._logger.error("the pins could not be stored")
