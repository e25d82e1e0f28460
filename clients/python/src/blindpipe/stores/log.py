"""Entries as a log, to which each change is added."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

FREE_BYTES: Final = 1 << 20
"""A log grows by so much, and to twice its entries, before it is written anew."""


class Log:
    """A line is the CRC-32 of its rest in hex, a section, a name, and an entry as JSON.

    The last line of a name counts. `is_needed` is asked, of a section and a text, which entries
    are given and written anew; all without it.
    """

    def __init__(
        self, path: Path, is_needed: Callable[[str, str], bool] | None = None
    ) -> None:
        self._path = path
        self._is_needed = is_needed
        self._max_bytes = FREE_BYTES

    def load(self) -> dict[str, dict[str, str]]:
        """The texts of all entries by section and name. Raises `FileNotFoundError`."""
        sections: dict[str, dict[str, str]] = {}
        _cut_torn_line(self._path)
        with self._path.open("rb") as file:
            for line in file:
                section, name, text = _entry_of(line)
                if section:
                    sections.setdefault(section, {})[unquote(name)] = text
        if self._is_needed is not None:
            for section, texts in sections.items():
                gone = [name for name, text in texts.items() if not self._is_needed(section, text)]
                for name in gone:
                    del texts[name]
        size = sum(len(text) + 64 for texts in sections.values() for text in texts.values())
        self._compact_above(FREE_BYTES + 2 * size)
        return sections

    def add(self, entries: Iterable[tuple[str, str, Any]]) -> None:
        """Adds entries (section, name, JSON) with one write and one sync."""
        size = append(self._path, b"".join(lines_of(entries)))
        if size > self._max_bytes:
            self._compact_above(0)

    def _compact_above(self, max_bytes: int) -> None:
        """Writes a log anew that has grown above a size: the last line of each name."""
        if self._path.stat().st_size > max_bytes:
            last: dict[tuple[str, str], int] = {}
            for at, line in self._lines_at():
                section, name, text = _entry_of(line)
                if self._is_needed is None or self._is_needed(section, text):
                    last[section, name] = at
                else:
                    last.pop((section, name), None)
            places = set(last.values())
            replace_file(self._path, (line for at, line in self._lines_at() if at in places))
            max_bytes = FREE_BYTES + 2 * self._path.stat().st_size
        self._max_bytes = max_bytes

    def _lines_at(self) -> Iterator[tuple[int, bytes]]:
        """The whole lines, each with its place."""
        at = 0
        with self._path.open("rb") as file:
            for line in file:
                if _entry_of(line)[0]:
                    yield at, line
                at += len(line)


def lines_of(entries: Iterable[tuple[str, str, Any]]) -> Iterator[bytes]:
    """The lines of entries. A name that others chose begins no line of its own."""
    for section, name, entry in entries:
        text = json.dumps(entry, separators=(",", ":"))
        rest = f"{section} {quote(name, safe=':')} {text}".encode()
        yield b"%08x %s\n" % (zlib.crc32(rest), rest)


def _entry_of(line: bytes) -> tuple[str, str, str]:
    """Section, name and text; nothing for a line that is not as it was written."""
    crc, _, rest = line.rstrip(b"\n").partition(b" ")
    parts = rest.split(b" ", 2)
    if len(parts) < 3 or crc != b"%08x" % zlib.crc32(rest):
        return "", "", ""
    return parts[0].decode(), parts[1].decode(), parts[2].decode()


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
        if end < size:
            file.truncate(end)


def append(path: Path, lines: bytes) -> int:
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


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
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
