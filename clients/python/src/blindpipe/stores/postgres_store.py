"""A store in Postgres, for the processes of an agent on any number of machines.

Each step is a single statement, so a pooler may stand in between. A row has the number of its
changes: a save names the one that it knows, and changes nothing else. Rows also have the
transaction that changed them. News are all rows of transactions that had not ended when this
process read last, so a commit that comes late is not missed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from ..core.session import Handled
from ..e2ee import Principal
from ..e2ee._texts import Texts
from ..e2ee.room import MAX_MESSAGE_AGE_MS
from ..transport.clock import now_ms
from .pin_store import StoredTrust
from .shared_store import News, StoreChanged

_Row = Mapping[str, Any]
_Texts = dict[str, dict[str, str]]

POSTGRES_TABLES: Final = (
    """create table if not exists blindpipe_entry (
    store text, section text, name text, entry jsonb not null, changes bigint not null,
    by_process text not null, changed_by xid8 not null default pg_current_xact_id(),
    primary key (store, section, name))""",
    """create table if not exists blindpipe_handled (
    store text, conversation text, sender text, message text, at bigint not null,
    by_process text not null, changed_by xid8 not null default pg_current_xact_id(),
    primary key (store, conversation, sender, message))""",
    """create index if not exists blindpipe_handled_at on blindpipe_handled (store, at)""",
    """create table if not exists blindpipe_owner (
    store text, conversation text, by_process text not null, primary key (store, conversation))""",
)
"""The tables of these stores, in the schema that the connection uses.

All names of stores may share them, and processes in TypeScript too. The statements may run again
at every start, but not in two processes at once.
"""

_LOAD: Final = """select section, name, entry::text as text, changes,
    pg_snapshot_xmin(pg_current_snapshot())::text as read_to
  from blindpipe_entry where store = $1"""
_FORGET: Final = """delete from blindpipe_handled where store = $1 and at < $2"""
_HANDLED: Final = """select at, conversation, sender, message from blindpipe_handled
  where store = $1 and at >= $2 order by at"""
# An entry that this process does not know must not be there. A division by zero takes all back.
_SAVE: Final = """with given as (
    select * from unnest($3::text[], $4::text[], $5::text[], $6::bigint[])
      as given (section, name, entry, changes)
  ), saved as (
    insert into blindpipe_entry as e (store, section, name, entry, changes, by_process)
    select $1, section, name, entry::jsonb, changes + 1, $2 from given order by section, name
    on conflict (store, section, name) do update
      set entry = excluded.entry, changes = excluded.changes, by_process = excluded.by_process,
        changed_by = pg_current_xact_id()
      where e.changes = excluded.changes - 1
    returning 1
  )
  select 1 / ((select count(*) from saved) = (select count(*) from given))::int as all_saved"""
_DIVISION_BY_ZERO: Final = "22012"
_ADD_HANDLED: Final = """insert into blindpipe_handled
    (store, by_process, conversation, sender, message, at)
  select $1, $2, * from unnest($3::text[], $4::text[], $5::text[], $6::bigint[])
  order by 3, 4, 5 on conflict do nothing"""
_ENTER: Final = """insert into blindpipe_owner as o (store, conversation, by_process)
  values ($1, $3, $2)
  on conflict (store, conversation) do update set by_process = excluded.by_process
    where o.by_process <> excluded.by_process
  returning 1"""
# Sections: of an entry, of a handled message, and how far this is read.
_NEWS: Final = """select section, name, entry::text as text, changes from blindpipe_entry
  where store = $1 and by_process <> $2
    and (section = 'pins' and changed_by >= $4::text::xid8
      or section = 'marks' and name = $3 and changed_by >= $5::text::xid8)
  union all
  select 'handled', sender, message, at from blindpipe_handled
  where store = $1 and by_process <> $2 and conversation = $3 and changed_by >= $5::text::xid8
  union all
  select 'read_to', null, pg_snapshot_xmin(pg_current_snapshot())::text, null"""


class Queryable(Protocol):
    """Asks a database. A `Pool` and a `Connection` of the package `asyncpg` are such."""

    async def fetch(self, query: str, /, *args: Any) -> Sequence[_Row]:
        """The rows of a statement with parameters `$1` and so on, by the names of their columns."""


class PostgresStore:
    """A `SharedStore` in a Postgres of yours, version 13 or newer.

    Each process makes an instance of its own. `db` is a `Pool` or a `Connection` of the package
    `asyncpg`, or has the same `fetch`. Each group of an agent has a store of its own, named `name`.
    """

    def __init__(self, db: Queryable, name: str) -> None:
        self._db = db
        self._name = name
        self._process = uuid.uuid4().hex
        # The changes of each entry that this process knows, by section and name.
        self._changes: dict[tuple[str, str], int] = {}
        # The first transaction that may be unread in all entries, as of the load; the same of keys,
        # and of each conversation that was read since.
        self._loaded_to = self._keys_to = "0"
        self._conversations_to: dict[str, str] = {}
        # Conversations whose saving met a change of another process.
        self._unread: set[str] = set()
        # Conversations that came from another process, which `news` has not told yet.
        self._entered: set[str] = set()
        # A save failed, and perhaps Postgres has kept it. Own rows are read like those of others.
        self._in_doubt = False

    async def _ask(self, statement: str, *parameters: Any) -> Sequence[_Row]:
        return await self._db.fetch(statement, self._name, *parameters)

    async def load(self) -> StoredTrust | None:
        """Reads all entries; None if there are none."""
        await self._ask(_FORGET, now_ms() - MAX_MESSAGE_AGE_MS)
        rows = await self._ask(_LOAD)
        if not rows:
            return None
        self._loaded_to = self._keys_to = rows[0]["read_to"]
        texts: _Texts = {"pins": {}, "marks": {}}
        for row in rows:
            self._take(row, texts)
        return {"pins": {"principals": Texts(texts["pins"])}, "marks": Texts(texts["marks"])}

    def _take(self, row: _Row, texts: _Texts) -> None:
        """An entry that is known already is read twice at times."""
        key = row["section"], row["name"]
        if row["changes"] > self._changes.get(key, 0):
            self._changes[key] = row["changes"]
            texts[row["section"]][row["name"]] = row["text"]

    async def load_handled(self) -> list[Handled]:
        """The handled messages, but for those that are too old to come again."""
        rows = await self._ask(_HANDLED, now_ms() - MAX_MESSAGE_AGE_MS)
        return [
            _handled(row["at"], row["conversation"], row["sender"], row["message"]) for row in rows
        ]

    async def save(self, trust: StoredTrust) -> None:
        """Saves the entries in one step. Raises `StoreChanged` if one of them has changed."""
        entries = [
            ((section, name), json.dumps(entry, separators=(",", ":")))
            for section, each in (("pins", trust["pins"]["principals"]), ("marks", trust["marks"]))
            for name, entry in each.items()
        ]
        if not entries:
            return
        known = {key: self._changes.get(key, 0) for key, _ in entries}
        sections, names = zip(*known)
        texts = [text for _, text in entries]
        try:
            await self._ask(
                _SAVE, self._process, list(sections), list(names), texts, list(known.values())
            )
        except Exception as error:
            self._unread |= {name for section, name in known if section == "marks"}
            if getattr(error, "sqlstate", None) != _DIVISION_BY_ZERO:
                self._in_doubt = True
                raise
            raise StoreChanged from error
        self._changes |= {key: changes + 1 for key, changes in known.items()}

    async def add_handled(self, handled: list[Handled]) -> None:
        """Adds messages in one step."""
        await self._ask(
            _ADD_HANDLED,
            self._process,
            [each.conversation_id for each in handled],
            [each.sender.to_bytes().hex() for each in handled],
            [each.client_message_id.hex() for each in handled],
            [each.at for each in handled],
        )

    async def news(self, conversation_id: str | None) -> News:
        """Reads what others have saved about keys, and about this conversation."""
        if conversation_id is not None and await self._ask(_ENTER, self._process, conversation_id):
            self._entered.add(conversation_id)
        # What others have saved before this process entered is read after it.
        read: list[tuple[str | None, Iterable[_Row]]] = []
        for id in {*self._unread, conversation_id}:
            since = self._conversations_to.get(id or "", self._loaded_to)
            by = "" if self._in_doubt else self._process
            read.append((id, await self._ask(_NEWS, by, id, self._keys_to, since)))
        # Nothing can fail from here on, so no news is taken and not told.
        texts: _Texts = {"pins": {}, "marks": {}}
        handled = [each for id, rows in read for each in self._take_all(id, rows, texts)]
        self._in_doubt = False
        came_back = conversation_id in self._entered
        self._entered.discard(conversation_id or "")
        return News(Texts(texts["pins"]), Texts(texts["marks"]), handled, came_back)

    def _take_all(
        self, conversation: str | None, rows: Iterable[_Row], texts: _Texts
    ) -> list[Handled]:
        """Takes the entries, and answers the handled messages."""
        handled: list[Handled] = []
        for row in rows:
            if row["section"] == "read_to":
                self._keys_to = row["text"]
                if conversation is not None:
                    self._conversations_to[conversation] = row["text"]
            elif row["section"] == "handled":
                # Such a row has the sender, the id and the time in the fields of an entry.
                assert conversation is not None
                handled.append(_handled(row["changes"], conversation, row["name"], row["text"]))
            else:
                self._take(row, texts)
        self._unread.discard(conversation or "")
        return handled


def _handled(at: int, conversation: str, sender: str, message: str) -> Handled:
    return Handled(
        at, conversation, Principal.from_bytes(bytes.fromhex(sender)), bytes.fromhex(message)
    )
