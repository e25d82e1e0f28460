"""The stores in which a client keeps the keys of others.

Why: ADR 74.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict, runtime_checkable

from ..core.session import Handled
from ..e2ee import E2eeError, Principal
from ..e2ee._texts import Texts
from ..e2ee.room import MAX_MESSAGE_AGE_MS, EpochMarks, StoredMarks
from ..e2ee.trust import StoredPins
from ..transport.clock import now_ms
from .log import Log, append, lines_of, replace_file


class StoredTrust(TypedDict):
    """Entries that a client keeps. They hold public keys and numbers only."""

    pins: StoredPins
    marks: Mapping[str, StoredMarks]


class PinStore(Protocol):
    """A developer's own store."""

    async def load(self) -> StoredTrust | None:
        """All entries that were saved, each as it was saved last; None at the first start."""

    async def save(self, trust: StoredTrust) -> None:
        """Keeps the entries that have changed, durably. All others stay as they are.

        An entry of `pins["principals"]` or of `marks` takes the place of the earlier one of its
        name. Events are acknowledged after that.
        """


@runtime_checkable
class HandledStore(Protocol):
    """A pin store that keeps which messages were handled too.

    With another one, a message of the last 31 days may be handled once more after a restart.
    """

    async def load_handled(self) -> list[Handled]:
        """The messages that were handled within 31 days, oldest first."""

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds messages, durably."""


_MIN_ADDED_LINES: Final = 10_000
"""Lines are added before those that are too old are looked for, at least."""


class StoredEpochMarks(Mapping[str, EpochMarks]):
    """The marks of a store, which are read when a conversation is used."""

    def __init__(self, stored: Mapping[str, StoredMarks]) -> None:
        self._stored = stored

    def __getitem__(self, id: str) -> EpochMarks:
        return EpochMarks.stored(self._stored[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class HandledFile:
    """A line for each message that was handled within 31 days."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept_lines = self._added_lines = 0

    def load(self) -> list[Handled]:
        """Reads the file, and leaves out of it what is too old to come again."""
        since, found, lines = now_ms() - MAX_MESSAGE_AGE_MS, list[Handled](), 0
        try:
            with self.path.open(encoding="ascii", errors="replace") as file:
                for line in file:
                    lines += 1
                    each = _handled_of(line)
                    if each is not None and each.at >= since:
                        found.append(each)
        except FileNotFoundError:
            return []
        if len(found) < lines:
            replace_file(self.path, (_line_of(each).encode() for each in found))
        self._kept_lines, self._added_lines = len(found), 0
        return found

    def add(self, handled: list[Handled]) -> None:
        """Adds lines, durably."""
        append(self.path, "".join(map(_line_of, handled)).encode())
        self._added_lines += len(handled)
        # The file grows to about twice of what 31 days need.
        if self._added_lines > max(_MIN_ADDED_LINES, self._kept_lines):
            self.load()


def handled_beside(path: Path) -> HandledFile:
    """The file with `.handled` behind the name."""
    return HandledFile(path.with_name(f"{path.name}.handled"))


class FilePins:
    """A log of entries, to which each change is added; the TypeScript client reads the same.

    A second file, with `.handled` behind the name, has a line for each message that was handled
    within 31 days. A pair of files is for a single process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._log = Log(self._path)
        self._handled = handled_beside(self._path)

    async def load_handled(self) -> list[Handled]:
        """Reads the second file, and leaves out of it what is too old to come again."""
        return await asyncio.to_thread(self._handled.load)

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds lines to the second file."""
        await asyncio.to_thread(self._handled.add, handled)

    async def load(self) -> StoredTrust | None:
        """Reads the file; None if there is none."""
        return await asyncio.to_thread(self._load)

    def _load(self) -> StoredTrust | None:
        try:
            with self._path.open("rb") as file:
                is_document = file.read(1) == b"{"
            return self._convert() if is_document else trust_of(self._log.load())
        except FileNotFoundError:
            return None

    def _convert(self) -> StoredTrust:
        """An earlier version wrote a single document."""
        trust: StoredTrust = json.loads(self._path.read_text("utf-8"))
        replace_file(self._path, lines_of(entries_of(trust)))
        return trust

    async def save(self, trust: StoredTrust) -> None:
        """Adds the entries that have changed, with one write and one sync."""
        await asyncio.to_thread(self._log.add, entries_of(trust))


def entries_of(trust: StoredTrust) -> Iterator[tuple[str, str, Any]]:
    """The entries of a log."""
    for section, entries in (("pins", trust["pins"]["principals"]), ("marks", trust["marks"])):
        for name, entry in entries.items():
            yield section, name, entry


def trust_of(sections: Mapping[str, dict[str, str]]) -> StoredTrust:
    """The pins and marks of a log. A text is parsed when it is asked for."""
    pins, marks = (Texts(sections.get(each, {})) for each in ("pins", "marks"))
    return {"pins": {"principals": pins}, "marks": marks}


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
