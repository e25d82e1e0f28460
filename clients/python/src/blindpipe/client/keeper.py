"""The knowledge of a person's device: of this run, and of earlier runs out of its store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import cast

from ..core.session import Handled
from ..e2ee.trust import Trust
from ..errors import UsageError
from ..hooks import HookCaller
from ..stores.device_store import (
    DeviceSession,
    DeviceState,
    DeviceStore,
    StoredKeys,
    StoreOwner,
)
from ..stores.lessons import Lessons
from ..stores.pin_store import StoredTrust
from .account import StoredSession
from .clear import ClearChoices
from .devices import DeviceKeys
from .tool_requests import ConsentKeeper


class Keeper:
    """Keeps the sign-in, the keys, and the lessons of events before these are acknowledged."""

    def __init__(
        self,
        store: DeviceStore | None,
        consents: ConsentKeeper,
        hooks: HookCaller,
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._consents = consents
        self._hooks = hooks
        self._logger = logger
        self._stored: DeviceState | None = None
        self.session: StoredSession | None = None
        """The newest sign-in."""
        self._keys: StoredKeys | None = None
        # The store is known to be this person's.
        self._is_own = False
        # The store does not keep the newest sign-in and keys yet.
        self._is_device_due = False
        self.clear = ClearChoices(self._save_choice)
        """The conversations in which the person chose to write in clear."""
        self._saving = asyncio.Lock()
        # The messages of the event that is shown.
        self._shown: list[Handled] = []
        self.lessons: Lessons | None = None
        """The lessons, once it is known whose they are."""

    async def stored_session(self) -> StoredSession | None:
        """The sign-in of an earlier run."""
        if self._store is not None:
            self._stored = await self._store.load_device()
        if self._stored is not None:
            self.session = StoredSession(**self._stored["session"])
        return self.session

    async def load(self, owner: StoreOwner) -> StoredTrust | None:
        """All that this person has learned on this device.

        Raises `UsageError` if the store is of another one, and whatever a store raises that fails.
        """
        if self._store is None:
            return None
        before = self._stored and self._stored["session"]
        if before and (before["user_id"], before["device_id"]) != owner:
            raise UsageError("this store is of another person or another device")
        learned = await self._store.load(owner)
        self._is_own = True
        if self._stored is not None:
            self._keys = self._stored["keys"]
            self.clear.take(self._stored.get("clear_chosen", ()))
        return learned

    @property
    def keys(self) -> DeviceKeys | None:
        """The keys of an earlier run, or those that the device holds since."""
        return DeviceKeys.stored(self._keys) if self._keys else None

    def learns(self, trust: Trust) -> Lessons:
        """The lessons about these keys."""
        self.lessons = Lessons(self._store, trust, self._hooks, self._logger)
        return self.lessons

    def soon(self) -> None:
        """Something was learned."""
        if self.lessons is not None:
            self.lessons.soon()

    async def keep_session(self, session: StoredSession) -> None:
        """Keeps a sign-in, once it is known that the store is this person's.

        A sign-in that is not kept goes on until the end of the program.
        """
        self.session, self._is_device_due = session, self._store is not None
        if self._is_own:
            await self._try_save_device()

    def note_keys(self, keys: DeviceKeys) -> None:
        """The device holds these keys."""
        stored = keys.store()
        if self._store is not None and self._keys != stored:
            self._keys, self._is_device_due = stored, True

    async def save_device(self) -> None:
        """Keeps sign-in and keys. Raises whatever the store raises."""
        async with self._saving:
            if self._store is None or self.session is None or not self._is_device_due:
                return
            self._is_device_due = False
            try:
                session = cast(DeviceSession, asdict(self.session))
                device: DeviceState = {"session": session, "keys": self._keys}
                if chosen := self.clear.store():
                    device["clear_chosen"] = chosen
                await self._store.save_device(device)
            except BaseException:
                self._is_device_due = True
                raise

    async def _save_choice(self) -> None:
        self._is_device_due = self._store is not None
        await self.save_device()

    async def _try_save_device(self) -> bool:
        try:
            await self.save_device()
        except Exception as error:
            self._logger.error("the sign-in could not be stored: %s", type(error).__name__)
            self._hooks.call("store_failed")
            return False
        return True

    def showing(self, message: Handled) -> None:
        """An event is shown that brings this message."""
        self._shown.append(message)

    def shown(self) -> None:
        """The event was shown, so its messages are not shown again."""
        if self.lessons is not None:
            for message in self._shown:
                self.lessons.handled(message)
        self._shown.clear()

    @property
    def waiting(self) -> bool:
        """Whether anything is not in the store yet."""
        is_learning = self.lessons is not None and self.lessons.waiting
        return self._is_device_due or is_learning or self._consents.waiting

    async def save(self) -> bool:
        """Stores all that there is to keep; false if some could not be kept. It never raises."""
        is_kept = await self._try_save_device()
        is_kept &= await self._consents.try_save()
        if self.lessons is not None:
            is_kept &= await self.lessons.save()
        return is_kept
