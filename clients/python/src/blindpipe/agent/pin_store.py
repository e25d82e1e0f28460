"""The stores in which an agent keeps the keys of others."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Protocol, TypedDict

from ..e2ee.trust import StoredPins


class StoredMarks(TypedDict):
    """The highest epoch and time of a conversation."""

    epoch: int
    time: int


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


class FilePins:
    """A JSON file, replaced as a whole; the TypeScript client reads the same."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

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
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        beside.unlink(missing_ok=True)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        _sync_folder(self._path.parent)


def _sync_folder(folder: Path) -> None:
    """A renamed file is durable once its folder is. Windows has no such call."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
