"""A folder that several processes of an agent share, also with those in Rust.

`pins.log` holds what is known of keys, and `conversations/<id>.log` what is known of a conversation.
A log is locked by `flock` while it is read or written. Its first line names it; a log that is
written anew has another id. Each further line says which process has added what.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from ..core.session import Handled
from ..e2ee import Principal
from ..e2ee.pins import StoredPrincipal
from ..e2ee.room import MAX_MESSAGE_AGE_MS, StoredMarks
from ..transport.clock import now_ms
from .pin_store import StoredTrust
from .shared_store import News, StoreChanged

_T = TypeVar("_T")
_Line = dict[str, Any]

FORMAT: Final = 1
LOCK_TIMEOUT_SECONDS: Final = 2.0
"""The longest wait for another process that writes."""
LOCK_PAUSE_SECONDS: Final = 0.002
SPARE_LINES: Final = 64
"""A log with so many lines beyond those that still say something is written anew at a start."""

_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(slots=True)
class _Place:
    """How far a log was read."""

    id: str = ""
    offset: int = 0
    owner: str | None = None
    """The process that has the conversation."""


class _Log:
    """A log that no other process has, until it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = _locked(path)
        try:
            _mend(self.file)
            if not self.file.seek(0, os.SEEK_END):
                self.file.write(_bytes_of(_first_line()))
                os.fsync(self.file.fileno())
                _sync_folder(path.parent)
            self.file.seek(0)
            first = json.loads(self.file.readline())
            if first["format"] != FORMAT:
                raise OSError("a log of another format")
            self.id, self.begin = first["id"], self.file.tell()
        except BaseException:
            self.file.close()
            raise

    def read(self, place: _Place) -> list[_Line]:
        """The lines since `place`, which moves to the end.

        Of a log that was written anew, these are all.
        """
        if place.id != self.id:
            place.id, place.offset = self.id, self.begin
        self.file.seek(place.offset)
        found = self.file.read()
        place.offset += len(found)
        lines: list[_Line] = []
        for text in found.splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
        for line in lines:
            if line.get("enter"):
                place.owner = line["by"]
        return lines

    def append(self, line: _Line, *, durably: bool = True) -> None:
        before = self.file.seek(0, os.SEEK_END)
        try:
            self.file.write(_bytes_of(line))
            if durably:
                os.fdatasync(self.file.fileno())
        except BaseException:
            # The next line does not stand behind a torn one.
            self.file.truncate(before)
            raise

    def replace(self, lines: list[_Line]) -> _Place:
        """Writes the log anew, as the last thing that is done with it; answers the place at its end."""
        first = _first_line()
        written = b"".join(_bytes_of(line) for line in [first, *lines])
        new = self._path.with_name(f"{self._path.name}.new")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        _sync_folder(self._path.parent)
        owners = [line["by"] for line in lines if line.get("enter")]
        return _Place(first["id"], len(written), owners[-1] if owners else None)


def _first_line() -> _Line:
    return {"format": FORMAT, "id": uuid.uuid4().hex}


def _bytes_of(line: _Line) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _opened(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    return os.fdopen(os.open(path, flags, 0o600), "rb+", buffering=0)


def _locked(path: Path) -> BinaryIO:
    import fcntl  # not on every system

    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        file = _opened(path)
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOCK_PAUSE_SECONDS)
            # Another process may have replaced it meanwhile.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _mend(file: BinaryIO) -> None:
    """A process that was killed may have left a torn line."""
    length = file.seek(0, os.SEEK_END)
    if length == 0:
        return
    file.seek(length - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@dataclass(slots=True)
class _Found:
    pins: dict[str, StoredPrincipal] = field(default_factory=dict)
    marks: dict[str, StoredMarks] = field(default_factory=dict)
    handled: list[Handled] = field(default_factory=list)


class SharedFolder:
    """A folder on a local disk, for the processes of one machine, in Python and in Rust.

    It must not be on a network file system, whose locks do not hold. Each group has a folder of its
    own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = Path(path)
        self._process = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._pins = _Place()
        self._conversations: dict[str, _Place] = {}
        # Those in which a save found what others have saved.
        self._unread: set[str] = set()
        self._loaded: list[Handled] = []

    async def load(self) -> StoredTrust | None:
        """Reads all entries; None if there are none."""
        return await self._run(self._load)

    def _load(self) -> StoredTrust | None:
        found = _Found()
        self._read_pins(found)
        self._shorten_pins()
        for path in (self._folder / "conversations").glob("*.log"):
            self._read(path.stem, found)
            self._shorten(path.stem)
        self._loaded = sorted(found.handled, key=lambda each: each.at)
        if not found.pins and not found.marks:
            return None
        return {"pins": {"principals": found.pins}, "marks": found.marks}

    async def load_handled(self) -> list[Handled]:
        """The handled messages of the load, but for those that are too old to come again."""
        loaded, self._loaded = self._loaded, []
        return [each for each in loaded if each.at >= now_ms() - MAX_MESSAGE_AGE_MS]

    async def save(self, trust: StoredTrust) -> None:
        """Saves the entries of each log in one step. Raises `StoreChanged` at the first that has
        changed."""
        await self._run(lambda: self._save(trust))

    def _save(self, trust: StoredTrust) -> None:
        pins = dict(trust["pins"]["principals"])
        if pins:
            with self._open_pins() as log:
                for line in self._of_others(log.read(replace(self._pins))):
                    if pins.keys() & line.get("pins", {}).keys():
                        raise StoreChanged
                log.append({"by": self._process, "pins": pins})
        for id, marks in trust["marks"].items():
            with self._open(id) as (log, place):
                if any("marks" in line for line in self._of_others(log.read(replace(place)))):
                    self._unread.add(id)
                    raise StoreChanged
                log.append({"by": self._process, "marks": marks})

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds messages to the logs of their conversations."""
        await self._run(lambda: self._add_handled(handled))

    def _add_handled(self, handled: list[Handled]) -> None:
        stored: dict[str, list[tuple[int, str, str]]] = {}
        for each in handled:
            name = each.sender.to_bytes().hex(), each.client_message_id.hex()
            stored.setdefault(each.conversation_id, []).append((each.at, *name))
        for id, entries in stored.items():
            with self._open(id) as (log, _):
                log.append({"by": self._process, "handled": entries})

    async def news(self, conversation_id: str | None) -> News:
        """Reads what others have saved about keys, and about this conversation."""
        return await self._run(lambda: self._whole_news(conversation_id))

    def _whole_news(self, conversation_id: str | None) -> News:
        ids = self._unread | ({conversation_id} if conversation_id is not None else set())
        before = {id: replace(self._conversations.get(id, _Place())) for id in ids}
        pins, unread = replace(self._pins), set(self._unread)
        try:
            return self._news(conversation_id)
        except BaseException:
            # Lines that were read and not told are read again.
            self._pins, self._unread = pins, unread
            self._conversations |= before
            raise

    def _news(self, conversation_id: str | None) -> News:
        found = _Found()
        self._read_pins(found)
        while self._unread:
            self._read(next(iter(self._unread)), found)
        came_back = conversation_id is not None and self._read(conversation_id, found, enter=True)
        return News(found.pins, found.marks, found.handled, came_back)

    def _read_pins(self, found: _Found) -> None:
        with self._open_pins() as log:
            for line in self._of_others(log.read(self._pins)):
                found.pins.update(line.get("pins", {}))

    def _read(self, id: str, found: _Found, *, enter: bool = False) -> bool:
        """True if another process had the conversation, which this one has now."""
        with self._open(id) as (log, place):
            for line in self._of_others(log.read(place)):
                if "marks" in line:
                    found.marks[id] = line["marks"]
                for at, sender, name in line.get("handled", ()):
                    who = Principal.from_bytes(bytes.fromhex(sender))
                    found.handled.append(Handled(at, id, who, bytes.fromhex(name)))
            self._unread.discard(id)
            if not enter or place.owner == self._process:
                return False
            log.append({"by": self._process, "enter": True}, durably=False)
            place.owner = self._process
            return True

    def _shorten_pins(self) -> None:
        with self._open_pins() as log:
            lines = log.read(_Place())
            if len(lines) > SPARE_LINES:
                pins: dict[str, StoredPrincipal] = {}
                for line in lines:
                    pins |= line.get("pins", {})
                self._pins = log.replace([{"by": self._process, "pins": pins}])

    def _shorten(self, id: str) -> None:
        with self._open(id) as (log, _):
            lines = log.read(before := _Place())
            if len(lines) <= SPARE_LINES:
                return
            kept: _Line = {"by": self._process}
            handled: list[tuple[int, str, str]] = []
            for line in lines:
                handled += line.get("handled", ())
                if "marks" in line:
                    kept["marks"] = line["marks"]
            oldest = now_ms() - MAX_MESSAGE_AGE_MS
            kept["handled"] = [each for each in handled if each[0] >= oldest]
            owner = before.owner
            owners = [{"by": owner, "enter": True}] if owner else []
            self._conversations[id] = log.replace([kept, *owners])

    def _of_others(self, lines: list[_Line]) -> Iterator[_Line]:
        return (line for line in lines if line["by"] != self._process)

    @contextlib.contextmanager
    def _open_pins(self) -> Iterator[_Log]:
        (self._folder / "conversations").mkdir(mode=0o700, parents=True, exist_ok=True)
        log = _Log(self._folder / "pins.log")
        with log.file:
            yield log

    @contextlib.contextmanager
    def _open(self, id: str) -> Iterator[tuple[_Log, _Place]]:
        # The name comes from the server, and must not lead out of the folder.
        if not _ID.fullmatch(id):
            raise ValueError("no id of a conversation")
        folder = self._folder / "conversations"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = _Log(folder / f"{id}.log")
        with log.file:
            yield log, self._conversations.setdefault(id, _Place())

    async def _run(self, work: Callable[[], _T]) -> _T:
        def alone() -> _T:
            # A cancelled task leaves its thread behind, so threads take turns.
            with self._lock:
                return work()

        return await asyncio.to_thread(alone)
