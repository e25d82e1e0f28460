/**
 * A store in Postgres, for the processes of an agent on any number of machines.
 *
 * Each step is a single statement, so a pooler may stand in between. A row has the number of its
 * changes: a save names the one that it knows, and changes nothing else. Rows also have the
 * transaction that changed them. News are all rows of transactions that had not ended when this
 * process read last, so a commit that comes late is not missed.
 */
import type { Handled } from "../core/session.js";
import { fromHex, hex, idBytes, newUlid, ulid } from "../e2ee/bytes.js";
import { namedPrincipal, principalName } from "../e2ee/keys.js";
import { type EpochMarks, MAX_MESSAGE_AGE_MS } from "../e2ee/room.js";
import { Texts } from "../e2ee/texts.js";
import type { StoredPrincipal } from "../e2ee/trust.js";
import type { LoadedTrust, StoredTrust } from "./pin-store.js";
import { type News, type SharedStore, StoreChanged } from "./shared-store.js";

/** Asks a database. A `Pool` and a `Client` of the package `pg` are such. */
export interface Queryable {
  query(statement: string, parameters: unknown[]): Promise<{ readonly rows: unknown[] }>;
}

/**
 * The tables of these stores, in the schema that the connection uses. All names of stores may share
 * them, and processes in Python too. The statements may run again at every start, but not in two
 * processes at once.
 */
export const POSTGRES_TABLES: readonly string[] = [
  `create table if not exists blindpipe_entry (
    store text, section text, name text, entry jsonb not null, changes bigint not null,
    by_process text not null, changed_by xid8 not null default pg_current_xact_id(),
    primary key (store, section, name))`,
  `create table if not exists blindpipe_handled (
    store text, conversation text, sender text, message text, at bigint not null,
    by_process text not null, changed_by xid8 not null default pg_current_xact_id(),
    primary key (store, conversation, sender, message))`,
  `create index if not exists blindpipe_handled_at on blindpipe_handled (store, at)`,
  `create table if not exists blindpipe_owner (
    store text, conversation text, by_process text not null, primary key (store, conversation))`,
];

const LOAD = `select section, name, entry::text as text, changes,
    pg_snapshot_xmin(pg_current_snapshot())::text as read_to
  from blindpipe_entry where store = $1`;

const FORGET = `delete from blindpipe_handled where store = $1 and at < $2`;

const HANDLED = `select at, conversation, sender, message from blindpipe_handled
  where store = $1 and at >= $2 order by at`;

// An entry that this process does not know must not be there. A division by zero takes all back.
const SAVE = `with given as (
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
  select 1 / ((select count(*) from saved) = (select count(*) from given))::int as all_saved`;
const DIVISION_BY_ZERO = "22012";

const ADD_HANDLED = `insert into blindpipe_handled
    (store, by_process, conversation, sender, message, at)
  select $1, $2, * from unnest($3::text[], $4::text[], $5::text[], $6::bigint[])
  order by 3, 4, 5 on conflict do nothing`;

const ENTER = `insert into blindpipe_owner as o (store, conversation, by_process)
  values ($1, $3, $2)
  on conflict (store, conversation) do update set by_process = excluded.by_process
    where o.by_process <> excluded.by_process
  returning 1`;

// Sections: of an entry, of a handled message, and how far this is read.
const NEWS = `select section, name, entry::text as text, changes from blindpipe_entry
  where store = $1 and by_process <> $2
    and (section = 'pins' and changed_by >= $4::text::xid8
      or section = 'marks' and name = $3 and changed_by >= $5::text::xid8)
  union all
  select 'handled', sender, message, at from blindpipe_handled
  where store = $1 and by_process <> $2 and conversation = $3 and changed_by >= $5::text::xid8
  union all
  select 'read_to', null, pg_snapshot_xmin(pg_current_snapshot())::text, null`;

interface EntryRow {
  readonly section: "pins" | "marks";
  readonly name: string;
  readonly text: string;
  readonly changes: string;
}
interface LoadedRow extends EntryRow {
  readonly read_to: string;
}
interface HandledRow {
  readonly at: string;
  readonly conversation: string;
  readonly sender: string;
  readonly message: string;
}
type EntryTexts = Record<"pins" | "marks", Map<string, string>>;
/** A handled message has its sender, id and time in the fields of an entry. */
type NewsRow = EntryRow | (Omit<EntryRow, "section"> & { readonly section: "handled" | "read_to" });

/**
 * A {@link SharedStore} in a Postgres of yours, version 13 or newer. Each process makes an object of
 * its own.
 *
 * @param db - A `Pool` or a `Client` of the package `pg`, or what has the same `query`.
 * @param name - The name of the store. Each group of an agent has a store of its own.
 */
export function postgresStore(db: Queryable, name: string): SharedStore {
  return new PostgresStore(db, name);
}

class PostgresStore implements SharedStore {
  readonly #db: Queryable;
  readonly #name: string;
  readonly #process = newUlid();
  /** The changes of each entry that this process knows, by section and name. */
  readonly #changes = new Map<string, string>();
  /** The first transaction that may be unread in all entries, as of the load. */
  #loadedTo = "0";
  /** The same of keys, and of each conversation that was read since. */
  #keysTo = "0";
  readonly #conversationsTo = new Map<string, string>();
  /** Conversations whose saving met a change of another process. */
  readonly #unread = new Set<string>();
  /** Conversations that came from another process, which `news` has not told yet. */
  readonly #entered = new Set<string>();
  /** A save failed, and perhaps Postgres has kept it. Own rows are read like those of others. */
  #inDoubt = false;

  constructor(db: Queryable, name: string) {
    this.#db = db;
    this.#name = name;
  }

  async #ask<Row>(statement: string, ...parameters: unknown[]): Promise<Row[]> {
    const { rows } = await this.#db.query(statement, [this.#name, ...parameters]);
    return rows as Row[];
  }

  async load(): Promise<LoadedTrust | null> {
    await this.#ask(FORGET, Date.now() - MAX_MESSAGE_AGE_MS);
    const rows = await this.#ask<LoadedRow>(LOAD);
    if (rows.length === 0) return null;
    this.#loadedTo = this.#keysTo = rows[0]!.read_to;
    const texts = { pins: new Map<string, string>(), marks: new Map<string, string>() };
    for (const row of rows) this.#take(row, texts);
    return {
      pins: { principals: new Texts<StoredPrincipal>(texts.pins) },
      marks: new Texts<EpochMarks>(texts.marks),
    };
  }

  /** An entry that is known already is read twice at times. */
  #take({ section, name, text, changes }: EntryRow, texts: EntryTexts): void {
    if (BigInt(changes) <= BigInt(this.#known(section, name))) return;
    this.#changes.set(`${section} ${name}`, changes);
    texts[section].set(name, text);
  }

  #known(section: string, name: string): string {
    return this.#changes.get(`${section} ${name}`) ?? "0";
  }

  async loadHandled(): Promise<Handled[]> {
    const rows = await this.#ask<HandledRow>(HANDLED, Date.now() - MAX_MESSAGE_AGE_MS);
    return rows.map(handledOf);
  }

  async save(trust: StoredTrust): Promise<void> {
    const sections = { pins: trust.pins.principals, marks: trust.marks };
    const all = Object.entries(sections).flatMap(([section, entries]) =>
      Object.entries(entries).map(([name, entry]) => {
        return { section, name, text: JSON.stringify(entry), changes: this.#known(section, name) };
      }),
    );
    if (all.length === 0) return;
    const columns = (["section", "name", "text", "changes"] as const).map((key) =>
      all.map((each) => each[key]),
    );
    try {
      await this.#ask(SAVE, this.#process, ...columns);
    } catch (error) {
      for (const { section, name } of all) if (section === "marks") this.#unread.add(name);
      if ((error as { code?: string }).code !== DIVISION_BY_ZERO) {
        this.#inDoubt = true;
        throw error;
      }
      throw new StoreChanged();
    }
    for (const { section, name, changes } of all) {
      this.#changes.set(`${section} ${name}`, String(BigInt(changes) + 1n));
    }
  }

  async addHandled(handled: readonly Handled[]): Promise<void> {
    const columns = [
      handled.map((each) => each.conversationId),
      handled.map((each) => principalName(each.sender)),
      handled.map((each) => hex(idBytes(each.clientMessageId))),
      handled.map((each) => each.at),
    ];
    await this.#ask(ADD_HANDLED, this.#process, ...columns);
  }

  async news(conversationId: string | null): Promise<News> {
    if (conversationId !== null) {
      const entered = await this.#ask(ENTER, this.#process, conversationId);
      if (entered.length > 0) this.#entered.add(conversationId);
    }
    // What others have saved before this process entered is read after it.
    const conversations = new Set([...this.#unread, conversationId]);
    const read: [string | null, NewsRow[]][] = [];
    for (const id of conversations) {
      const from = this.#conversationsTo.get(id ?? "") ?? this.#loadedTo;
      const by = this.#inDoubt ? "" : this.#process;
      read.push([id, await this.#ask<NewsRow>(NEWS, by, id, this.#keysTo, from)]);
    }
    // Nothing can fail from here on, so no news is taken and not told.
    this.#inDoubt = false;
    const texts = { pins: new Map<string, string>(), marks: new Map<string, string>() };
    const handled = read.flatMap(([id, rows]) => this.#takeAll(id, rows, texts));
    return {
      pins: parsed<StoredPrincipal>(texts.pins),
      marks: parsed<EpochMarks>(texts.marks),
      handled,
      cameBack: conversationId !== null && this.#entered.delete(conversationId),
    };
  }

  /** Takes the entries, and answers the handled messages. */
  #takeAll(
    conversation: string | null,
    rows: readonly NewsRow[],
    texts: EntryTexts,
  ): Handled[] {
    const handled: Handled[] = [];
    for (const row of rows) {
      if (row.section === "read_to") {
        this.#keysTo = row.text;
        if (conversation !== null) this.#conversationsTo.set(conversation, row.text);
      } else if (row.section === "handled") {
        const { name: sender, text: message, changes: at } = row;
        handled.push(handledOf({ at, conversation: conversation!, sender, message }));
      } else {
        this.#take(row as EntryRow, texts);
      }
    }
    this.#unread.delete(conversation ?? "");
    return handled;
  }
}

function handledOf({ at, conversation, sender, message }: HandledRow): Handled {
  return {
    at: Number(at),
    conversationId: conversation,
    sender: namedPrincipal(sender),
    clientMessageId: ulid(fromHex(message)),
  };
}

function parsed<T>(texts: ReadonlyMap<string, string>): Record<string, T> {
  return Object.fromEntries([...texts].map(([name, text]) => [name, JSON.parse(text) as T]));
}
