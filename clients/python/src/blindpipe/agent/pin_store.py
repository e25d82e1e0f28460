"""The stores in which an agent keeps the keys of others.

Why: ADR 74.
"""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, TypedDict, runtime_checkable

from ..core.session import Handled
from ..e2ee import E2eeError, Principal
from ..e2ee._texts import Texts
from ..e2ee.room import MAX_MESSAGE_AGE_MS, StoredMarks
from ..e2ee.trust import StoredPins
from ..transport.clock import now_ms


class StoredTrust(TypedDict):
    """Entries that an agent keeps. They hold public keys and numbers only."""

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


_FREE_BYTES: Final = 1 << 20
"""A log grows by so much, and to twice its entries, before it is written anew."""
_MIN_ADDED_LINES: Final = 10_000
"""Lines are added before those that are too old are looked for, at least."""


class FilePins:
    """A log of entries, to which each change is added; the TypeScript client reads the same.

    A line is the CRC-32 of its rest in hex, a section, a name, and an entry as JSON. The last line
    of a name counts. A second file, with `.handled` behind the name, has a line for each message
    that was handled within 31 days. A pair of files is for a single process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._handled = self._path.with_name(f"{self._path.name}.handled")
        self._max_bytes = _FREE_BYTES
        self._kept_lines = self._added_lines = 0

    async def load_handled(self) -> list[Handled]:
        """Reads the second file, and leaves out of it what is too old to come again."""
        return await asyncio.to_thread(self._load_handled)

    def _load_handled(self) -> list[Handled]:
        since, found, lines = now_ms() - MAX_MESSAGE_AGE_MS, list[Handled](), 0
        try:
            with self._handled.open(encoding="ascii", errors="replace") as file:
                for line in file:
                    lines += 1
                    each = _handled_of(line)
                    if each is not None and each.at >= since:
                        found.append(each)
        except FileNotFoundError:
            return []
        if len(found) < lines:
            _replace(self._handled, (_line_of(each).encode() for each in found))
        self._kept_lines, self._added_lines = len(found), 0
        return found

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds lines to the second file."""
        await asyncio.to_thread(self._add_handled, handled)

    def _add_handled(self, handled: list[Handled]) -> None:
        _append(self._handled, "".join(map(_line_of, handled)).encode())
        self._added_lines += len(handled)
        # The file grows to about twice of what 31 days need.
        if self._added_lines > max(_MIN_ADDED_LINES, self._kept_lines):
            self._load_handled()

    async def load(self) -> StoredTrust | None:
        """Reads the file; None if there is none."""
        return await asyncio.to_thread(self._load)

    def _load(self) -> StoredTrust | None:
        sections: dict[str, dict[str, str]] = {"pins": {}, "marks": {}}
        try:
            _cut_torn_line(self._path)
            with self._path.open("rb") as file:
                if file.read(1) == b"{":
                    return self._convert()
                file.seek(0)
                for line in file:
                    section, name, text = _entry_of(line)
                    sections.get(section, {})[name] = text
        except FileNotFoundError:
            return None
        self._compact_above(_FREE_BYTES + 2 * _size_of(sections))
        return {
            "pins": {"principals": Texts(sections["pins"])},
            "marks": Texts(sections["marks"]),
        }

    def _convert(self) -> StoredTrust:
        """An earlier version wrote a single document."""
        trust: StoredTrust = json.loads(self._path.read_text("utf-8"))
        _replace(self._path, _lines_of(trust))
        return trust

    async def save(self, trust: StoredTrust) -> None:
        """Adds the entries that have changed, with one write and one sync."""
        await asyncio.to_thread(self._save, trust)

    def _save(self, trust: StoredTrust) -> None:
        size = _append(self._path, b"".join(_lines_of(trust)))
        if size > self._max_bytes:
            self._compact_above(0)

    def _compact_above(self, max_bytes: int) -> None:
        """Writes a log anew that has grown above a size: the last line of each name."""
        if self._path.stat().st_size > max_bytes:
            last: dict[bytes, int] = {}
            for at, line in _lines_at(self._path):
                last[b" ".join(line.split(b" ", 3)[1:3])] = at
            places = set(last.values())
            _replace(self._path, (line for at, line in _lines_at(self._path) if at in places))
            max_bytes = _FREE_BYTES + 2 * self._path.stat().st_size
        self._max_bytes = max_bytes


def _lines_of(trust: StoredTrust) -> Iterator[bytes]:
    for section, entries in (("pins", trust["pins"]["principals"]), ("marks", trust["marks"])):
        for name, entry in entries.items():
            rest = f"{section} {name} {json.dumps(entry, separators=(',', ':'))}".encode()
            yield b"%08x %s\n" % (zlib.crc32(rest), rest)


def _lines_at(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a log, each with its place."""
    at = 0
    with path.open("rb") as file:
        for line in file:
            if _entry_of(line)[0]:
                yield at, line
            at += len(line)


def _entry_of(line: bytes) -> tuple[str, str, str]:
    """Section, name and text; nothing for a line that is not as it was written."""
    crc, _, rest = line.rstrip(b"\n").partition(b" ")
    parts = rest.split(b" ", 2)
    if len(parts) < 3 or crc != b"%08x" % zlib.crc32(rest):
        return "", "", ""
    return parts[0].decode(), parts[1].decode(), parts[2].decode()


def _size_of(sections: Mapping[str, Mapping[str, str]]) -> int:
    return sum(len(text) + 64 for texts in sections.values() for text in texts.values())


def _cut_torn_line(path: Path) -> None:
    """A crash may have cut the last line, which nobody has acknowledged."""
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            end = start + newline + 1 if newline >= 0 else start
            if newline >= 0:
                break
        file.seek(0)
        if end < size and file.read(1) != b"{":
            file.truncate(end)


def _append(path: Path, lines: bytes) -> int:
    """Adds lines, durably; the size of the file since. A write that fails leaves none of them."""
    is_new = not path.exists()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, 0o600), "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise
    if is_new:
        _sync_folder(path.parent)
    return before + len(lines)


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


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Writes beside the file, and renames."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.writelines(lines)
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
