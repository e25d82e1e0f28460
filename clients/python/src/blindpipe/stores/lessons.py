"""The lessons of events: keys of others, epochs and times, kept where the developer said."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from ..core.session import Handled, Session
from ..e2ee.trust import Trust
from ..hooks import HookCaller
from .pin_store import HandledStore, StoredTrust
from .shared_store import SharedStore, StoreChanged

SAVE_DELAY_SECONDS: Final = 0.5
"""Many things are learned together, such as the keys of a group."""


class TrustStore(Protocol):
    """The calls that stores of agents and of people share."""

    async def save(self, trust: StoredTrust) -> None:
        """Keeps the entries that have changed, durably."""


class Lessons:
    """Keeps pins and marks, one save after the other."""

    def __init__(
        self, store: TrustStore | None, trust: Trust, hooks: HookCaller, logger: logging.Logger
    ) -> None:
        self._store = store
        # Asked once: to look through a store's methods at each event takes a tenth of its time.
        self._shared = store if isinstance(store, SharedStore) else None
        self._handled_store = store if isinstance(store, HandledStore) else None
        self._trust = trust
        self._hooks = hooks
        self._logger = logger
        self._lock = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None
        self._has_changed = False
        self._handled: list[Handled] = []
        self.session: Session | None = None

    @property
    def waiting(self) -> bool:
        """Whether anything that was learned is not in the store yet."""
        has_more = self._has_changed or bool(self._handled) or self._lock.locked()
        return self._store is not None and has_more

    def handled(self, message: Handled) -> None:
        """A message was handled. It is stored before it is acknowledged."""
        if self._handled_store is not None:
            self._handled.append(message)

    async def resume(self, session: Session) -> None:
        """Takes the session whose lessons these are, and tells it what was handled before."""
        self.session = session
        if self._handled_store is not None:
            session.resume_handled(await self._handled_store.load_handled())

    async def enter(self, conversation_id: str | None) -> bool:
        """Takes over what other processes have stored, before something is done in a conversation.

        False if it could not be read.
        """
        if self._shared is None or self.session is None:
            return True
        async with self._lock:
            return await self._take_news(self._shared, self.session, conversation_id)

    async def _take_news(
        self, store: SharedStore, session: Session, conversation_id: str | None
    ) -> bool:
        try:
            news = await store.news(conversation_id)
        except Exception:
            self._logger.exception("the shared store could not be read")
            self._hooks.call("store_failed")
            return False
        changed = self._trust.take_over(news.pins)
        session.take_over(news.marks, news.handled)
        for who in changed:
            session.reconsider(who)
        if news.came_back and conversation_id is not None:
            # Members and keys may have changed while another process had it.
            session.forget(conversation_id)
        return True

    def soon(self) -> None:
        """Something was learned."""
        self._has_changed = True
        if self._store is not None and (self._later is None or self._later.done()):
            self._later = asyncio.create_task(self._save_later())

    async def _save_later(self) -> None:
        await asyncio.sleep(SAVE_DELAY_SECONDS)
        await self.save()

    async def save(self) -> bool:
        """Stores all that was learned before this call. A failure is logged, and false."""
        if self._store is None or self.session is None:
            return True
        async with self._lock:
            is_kept = await self._save_handled()
            if self._has_changed:
                is_kept &= await self._save_trust(self._store, self.session)
            return is_kept

    async def _save_handled(self) -> bool:
        adding, self._handled = self._handled, []
        if not adding or self._handled_store is None:
            return True
        try:
            await self._handled_store.add_handled(adding)
        except BaseException as error:
            self._handled = adding + self._handled
            if not isinstance(error, Exception):
                raise
            return self._failed("the handled messages could not be stored", error)
        return True

    async def _save_trust(self, store: TrustStore, session: Session) -> bool:
        shared = self._shared
        if shared is not None and not await self._take_news(shared, session, None):
            return False
        self._has_changed = False
        whose, pins = self._trust.take_changed()
        marks = session.take_changed()
        if not whose and not marks:
            return True
        try:
            await store.save({"pins": pins, "marks": marks})
        except BaseException as error:
            self._has_changed = True
            self._trust.not_kept(whose)
            session.not_kept(marks)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, StoreChanged):
                return await self._save_trust(store, session)
            return self._failed("the pins could not be stored", error)
        return True

    def _failed(self, text: str, error: Exception) -> bool:
        # The store's own words may quote what it was given.
        self._logger.error("%s: %s", text, type(error).__name__)
        self._hooks.call("store_failed")
        return False
