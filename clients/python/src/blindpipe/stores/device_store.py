"""The store of a person's device.

Why: ADR 74.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict, TypeVar

from ..core.session import Handled
from ..e2ee.consent import StoredConsents
from ..e2ee.room import MAX_MESSAGE_AGE_MS
from ..errors import UsageError
from ..transport.clock import now_ms
from .log import Log, replace_file
from .pin_store import StoredTrust, entries_of, handled_beside, trust_of

_T = TypeVar("_T")


class StoreOwner(NamedTuple):
    """The person and the device that a store is of."""

    user_id: str
    device_id: str


class DeviceSession(TypedDict):
    """A sign-in that a later run goes on with."""

    user_id: str
    device_id: str
    refresh_token: str


class StoredKeys(TypedDict):
    """Private keys in base64."""

    x25519: str
    ed25519: str
    earlier: list[tuple[str, str]]
    """The X25519 keys of devices before it, by their ids."""


class DeviceState(TypedDict):
    """A sign-in, the keys of its device, and choices. Keep it as you keep a password."""

    session: DeviceSession
    keys: StoredKeys | None
    """None before the device has keys."""
    clear_chosen: NotRequired[list[str]]
    """The conversations in which the person chose to write in clear: 1,000 at most."""


class DeviceStore(Protocol):
    """A developer's own store for a person's device. It is for a single process.

    It is a `HandledStore` and a `ConsentStore` too. Their records, pins and marks are public
    keys, ids and numbers; `DeviceState` is secret.
    """

    async def load_device(self) -> DeviceState | None:
        """The state that was saved last; None at the first start."""

    async def save_device(self, device: DeviceState) -> None:
        """Takes the place of what was saved before, durably."""

    async def load(self, owner: StoreOwner) -> StoredTrust | None:
        """All pins and marks, each as it was saved last; None at the first start.

        It is called before consents and handled messages are asked for. Raises `UsageError` if the
        entries are of another person or device.
        """

    async def save(self, trust: StoredTrust) -> None:
        """Keeps the entries that have changed, durably. All others stay as they are."""

    async def load_consents(self) -> StoredConsents | None:
        """All records of consent, each as it was added last."""

    async def add_consents(self, consents: StoredConsents) -> None:
        """Keeps the records that have changed, durably: only then a tool runs."""

    async def load_handled(self) -> list[Handled]:
        """The messages that were shown within 31 days, oldest first."""

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds messages, durably."""


class FileStore:
    """Files of mode 0600, for a single process.

    The one at `path` has the sign-in and the private keys, and is written anew. The one with
    `.learned` behind the name is a log of pins, marks and consents, to which each change is added.
    The one with `.handled` has a line for each message that was shown within 31 days.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._learned = self._path.with_name(f"{self._path.name}.learned")
        self._log = Log(self._learned, _is_needed)
        self._handled = handled_beside(self._path)
        self._consents: StoredConsents | None = None
        # A cancelled task leaves its thread behind, so threads take turns.
        self._lock = threading.Lock()

    async def _run(self, work: Callable[..., _T], *given: Any) -> _T:
        def alone() -> _T:
            with self._lock:
                return work(*given)

        return await asyncio.to_thread(alone)

    async def load_device(self) -> DeviceState | None:
        """Reads the file at `path`; None if there is none."""
        return await self._run(self._load_device)

    def _load_device(self) -> DeviceState | None:
        try:
            device: DeviceState = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            # The error has the file's text, which is secret.
            raise UsageError("the file of the store is damaged") from None
        return device

    async def save_device(self, device: DeviceState) -> None:
        """Writes beside the file, and renames."""
        await self._run(replace_file, self._path, [json.dumps(device).encode()])

    async def load(self, owner: StoreOwner) -> StoredTrust | None:
        """Reads the log, and leaves out of it what is not needed any more."""
        return await self._run(self._load, owner)

    def _load(self, owner: StoreOwner) -> StoredTrust | None:
        try:
            sections = self._log.load()
        except FileNotFoundError:
            sections = {}
        name = f"{owner.user_id}/{owner.device_id}"
        before = set(sections.get("owner", ()))
        if before - {name}:
            raise UsageError("this store is of another person or another device")
        if not before:
            self._log.add([("owner", name, True)])
            return None
        self._consents = {
            "begun": _parsed(sections.get("begun", {})),
            "remembered": _parsed(sections.get("remembered", {})),
        }
        return trust_of(sections)

    async def save(self, trust: StoredTrust) -> None:
        """Adds the entries that have changed, with one write and one sync."""
        await self._run(self._log.add, entries_of(trust))

    async def load_consents(self) -> StoredConsents | None:
        """The records that `load` has read."""
        return self._consents

    async def add_consents(self, consents: StoredConsents) -> None:
        """Adds the records that have changed, with one write and one sync."""
        begun = [("begun", *each) for each in consents["begun"].items()]
        remembered = [("remembered", *each) for each in consents["remembered"].items()]
        await self._run(self._log.add, [*begun, *remembered])

    async def load_handled(self) -> list[Handled]:
        """Reads the lines, and leaves out of the file what is too old to come again."""
        return await self._run(self._handled.load)

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds lines."""
        await self._run(self._handled.add, handled)

    async def remove(self) -> None:
        """Removes all files, such as at a sign-out."""
        await self._run(self._remove)

    def _remove(self) -> None:
        for path in (self._path, self._learned, self._handled.path):
            path.unlink(missing_ok=True)


def _parsed(texts: dict[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in texts.items()}


def _is_needed(section: str, text: str) -> bool:
    """A request that began 31 days ago is too old to come again; an approval may be taken back."""
    if section == "begun":
        return text == "null" or int(text) >= now_ms() - MAX_MESSAGE_AGE_MS
    return section != "remembered" or text != "null"
