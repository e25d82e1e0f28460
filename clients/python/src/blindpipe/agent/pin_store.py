"""The stores in which an agent keeps the keys of others."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Protocol, TypedDict, runtime_checkable

from ..core.session import Handled
from ..e2ee import E2eeError, Principal
from ..e2ee.room import MAX_MESSAGE_AGE_MS, StoredMarks
from ..e2ee.trust import StoredPins
from ..transport.clock import now_ms


class StoredTrust(TypedDict):
    """All that an agent keeps. It holds public keys and numbers only."""

    pins: StoredPins
    marks: dict[str, StoredMarks]


class PinStore(Protocol):
    """A developer's own store."""

    async def load(self) -> StoredTrust | None:
        """The trust that was saved last; None at the first start."""

    async def save(self, trust: StoredTrust) -> None:
        """Replaces what was saved before."""


@runtime_checkable
class HandledStore(Protocol):
    """A pin store that keeps which messages were handled too.

    With another one, a message of the last 31 days may be handled once more after a restart.
    """

    async def load_handled(self) -> list[Handled]:
        """The messages that were handled within 31 days, oldest first."""

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds messages, durably."""


class FilePins:
    """A JSON file, replaced as a whole; the TypeScript client reads the same.

    A second file, with `.handled` behind the name, has a line for each message that was handled
    within 31 days.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._handled = self._path.with_name(f"{self._path.name}.handled")

    async def load_handled(self) -> list[Handled]:
        """Reads the second file, and leaves out of it what is too old to come again."""
        return await asyncio.to_thread(self._load_handled)

    def _load_handled(self) -> list[Handled]:
        try:
            lines = self._handled.read_text("ascii", "replace").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        since = now_ms() - MAX_MESSAGE_AGE_MS
        found = [each for each in map(_handled_of, lines) if each is not None and each.at >= since]
        if len(found) < len(lines):
            _replace(self._handled, "".join(map(_line_of, found)))
        return found

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds lines to the second file."""
        await asyncio.to_thread(self._add_handled, "".join(map(_line_of, handled)))

    def _add_handled(self, lines: str) -> None:
        is_new = not self._handled.exists()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self._handled, flags, 0o600), "a", encoding="ascii") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_folder(self._handled.parent)

    async def load(self) -> StoredTrust | None:
        """Reads the file; None if there is none."""
        return await asyncio.to_thread(self._load)

    def _load(self) -> StoredTrust | None:
        try:
            trust: StoredTrust = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        return trust

    async def save(self, trust: StoredTrust) -> None:
        """Writes beside the file, and renames."""
        await asyncio.to_thread(self._save, json.dumps(trust))

    def _save(self, text: str) -> None:
        _replace(self._path, text)


def _line_of(handled: Handled) -> str:
    """A torn line, and one that begins behind it, are not read: each ends with a mark of its own."""
    sender, id = handled.sender.to_bytes().hex(), handled.client_message_id.hex()
    return f"{handled.at} {handled.conversation_id} {sender} {id} .\n"


def _handled_of(line: str) -> Handled | None:
    try:
        at, conversation_id, sender, id, end = line.split(" ")
        if end != ".\n":
            return None
        who = Principal.from_bytes(bytes.fromhex(sender))
        return Handled(int(at), conversation_id, who, bytes.fromhex(id))
    except (ValueError, E2eeError):
        return None


def _replace(path: Path, text: str) -> None:
    """Writes beside the file, and renames."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """A renamed file is durable once its folder is. Windows has no such call."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
