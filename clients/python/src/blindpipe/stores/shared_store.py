"""The store that several processes of an agent share."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from ..core.session import Handled
from ..e2ee import Principal
from ..e2ee._texts import Texts
from ..e2ee.pins import StoredPrincipal
from ..e2ee.room import MAX_MESSAGE_AGE_MS, StoredMarks
from ..transport.clock import now_ms
from .pin_store import HandledStore, PinStore, StoredTrust

_T = TypeVar("_T")

BUSY_TIMEOUT_SECONDS: Final = 10.0
"""The longest wait for another process that writes."""


class StoreChanged(Exception):
    """Another process has saved one of the entries since the last news. Nothing was saved."""


@dataclass(frozen=True, slots=True)
class News:
    """Entries that other processes have saved since the last news."""

    pins: Mapping[str, StoredPrincipal] = field(default_factory=dict)
    marks: Mapping[str, StoredMarks] = field(default_factory=dict)
    handled: list[Handled] = field(default_factory=list)
    came_back: bool = False
    """Another process had the conversation since this one had it last."""


@runtime_checkable
class SharedStore(PinStore, HandledStore, Protocol):
    """A store for several processes of an agent. Each process has an instance of its own.

    `save` raises `StoreChanged` if another process has saved one of these entries since the last
    `news`, or since `load`.
    """

    async def news(self, conversation_id: str | None) -> News:
        """Reads the news, in one step with noting that this process has the conversation.

        Without a conversation nothing is noted, and `came_back` is false.
        """


class SharedPins:
    """A SQLite database for the processes of one machine.

    The file must be on a local disk: locks of network file systems do not hold.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._process = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen_entries = self._seen_handled = 0

    async def load(self) -> StoredTrust | None:
        """Reads all entries; None if there are none."""
        return await self._write(self._load)

    def _load(self, db: sqlite3.Connection) -> StoredTrust | None:
        found: dict[str, dict[str, str]] = {"pins": {}, "marks": {}}
        for section, name, entry, version in db.execute(
            "select section, name, entry, version from entry"
        ):
            found[section][name] = entry
            self._seen_entries = max(self._seen_entries, version)
        if not self._seen_entries:
            return None
        return {"pins": {"principals": Texts(found["pins"])}, "marks": Texts(found["marks"])}

    async def save(self, trust: StoredTrust) -> None:
        """Saves the entries in one transaction."""
        await self._write(lambda db: self._save(db, trust))

    def _save(self, db: sqlite3.Connection, trust: StoredTrust) -> None:
        entries = [
            (section, name, json.dumps(entry, separators=(",", ":")))
            for section, each in (("pins", trust["pins"]["principals"]), ("marks", trust["marks"]))
            for name, entry in each.items()
        ]
        for section, name, _ in entries:
            changed = db.execute(
                "select 1 from entry"
                " where section = ? and name = ? and version > ? and process <> ?",
                (section, name, self._seen_entries, self._process),
            )
            if changed.fetchone():
                raise StoreChanged
        (version,) = db.execute("select coalesce(max(version), 0) + 1 from entry").fetchone()
        db.executemany(
            "insert into entry (section, name, entry, version, process) values (?, ?, ?, ?, ?)"
            " on conflict (section, name) do update set"
            " entry = excluded.entry, version = excluded.version, process = excluded.process",
            [(*entry, version, self._process) for entry in entries],
        )

    async def load_handled(self) -> list[Handled]:
        """Reads the handled messages, and deletes those that are too old to come again."""
        return await self._write(self._load_handled)

    def _load_handled(self, db: sqlite3.Connection) -> list[Handled]:
        db.execute("delete from handled where at < ?", (now_ms() - MAX_MESSAGE_AGE_MS,))
        return self._new_handled(db, "")

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds messages in one transaction."""
        await self._write(lambda db: self._add_handled(db, handled))

    def _add_handled(self, db: sqlite3.Connection, handled: Iterable[Handled]) -> None:
        db.executemany(
            "insert into handled (at, conversation_id, sender, client_message_id, process)"
            " values (?, ?, ?, ?, ?)",
            [
                (
                    each.at,
                    each.conversation_id,
                    each.sender.to_bytes(),
                    each.client_message_id,
                    self._process,
                )
                for each in handled
            ],
        )

    def _new_handled(self, db: sqlite3.Connection, but_of: str) -> list[Handled]:
        found = []
        for id, at, conversation_id, sender, name in db.execute(
            "select id, at, conversation_id, sender, client_message_id from handled"
            " where id > ? and process <> ? order by id",
            (self._seen_handled, but_of),
        ):
            self._seen_handled = id
            found.append(Handled(at, conversation_id, Principal.from_bytes(sender), name))
        return found

    async def news(self, conversation_id: str | None) -> News:
        """Reads what others have saved."""
        return await self._write(lambda db: self._news(db, conversation_id))

    def _news(self, db: sqlite3.Connection, conversation_id: str | None) -> News:
        found: dict[str, dict[str, str]] = {"pins": {}, "marks": {}}
        for section, name, entry, version in db.execute(
            "select section, name, entry, version from entry"
            " where version > ? and process <> ? order by version",
            (self._seen_entries, self._process),
        ):
            found[section][name] = entry
            self._seen_entries = version
        came_back = conversation_id is not None and self._enter(db, conversation_id)
        handled = self._new_handled(db, self._process)
        return News(Texts(found["pins"]), Texts(found["marks"]), handled, came_back)

    def _enter(self, db: sqlite3.Connection, conversation_id: str) -> bool:
        owner = db.execute(
            "select process from owner where conversation_id = ?", (conversation_id,)
        ).fetchone()
        if owner == (self._process,):
            return False
        db.execute(
            "insert into owner (conversation_id, process) values (?, ?)"
            " on conflict (conversation_id) do update set process = excluded.process",
            (conversation_id, self._process),
        )
        return True

    async def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return await asyncio.to_thread(self._transaction, work)

    def _transaction(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        # A cancelled task leaves its thread behind, so threads take turns.
        with self._lock:
            if self._connection is None:
                self._connection = _opened(self._path)
            db, seen = self._connection, (self._seen_entries, self._seen_handled)
            db.execute("begin immediate")
            try:
                outcome = work(db)
                db.execute("commit")
            except BaseException:
                db.rollback()
                self._seen_entries, self._seen_handled = seen
                raise
            return outcome


def _opened(path: Path) -> sqlite3.Connection:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    os.close(os.open(path, flags, 0o600))
    db = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    # An event is acknowledged after its save, so a save must outlive a power cut.
    db.execute("pragma synchronous = full")
    db.executescript(
        """
        begin immediate;
        create table if not exists entry (
            section text not null, name text not null, entry text not null,
            version integer not null, process text not null,
            primary key (section, name)
        ) without rowid;
        create index if not exists entry_version on entry (version);
        create table if not exists handled (
            id integer primary key autoincrement, at integer not null,
            conversation_id text not null, sender blob not null,
            client_message_id blob not null, process text not null
        );
        create table if not exists owner (
            conversation_id text primary key, process text not null
        ) without rowid;
        commit;
        """
    )
    return db
