/**
 * The state that outlives a reload, in IndexedDB: the device's keys, which no script can read, and what it has learned of others.
 * No message is here: `cache.ts` keeps those that the person wants to be kept.
 */
import type { DeviceKeys, Handled, Store, StoredConsents, StoredTrust } from "@blindpipe/client";

const VALUES = "values";
/** Rows of what the device has learned, by person, section and name. */
const ENTRIES = "entries";
/** The messages that were shown, by person, time and message. */
const HANDLED = "handled";
const HANDLED_MS = 31 * 24 * 3_600_000;

type Section = "pins" | "marks" | "begun" | "remembered";

function open(name: string, stores: readonly string[]): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => stores.forEach((store) => request.result.createObjectStore(store));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error as Error);
  });
}

let database: Promise<IDBDatabase> | null = null;
/** It is beside the other one, whose version a tab of before may hold. */
let learned: Promise<IDBDatabase> | null = null;

async function store(mode: IDBTransactionMode): Promise<IDBObjectStore> {
  database ??= open("blindpipe", [VALUES]);
  return (await database).transaction(VALUES, mode).objectStore(VALUES);
}

async function transaction(mode: IDBTransactionMode): Promise<IDBTransaction> {
  const stores = [ENTRIES, HANDLED];
  learned ??= open("blindpipe-learned", stores);
  return (await learned).transaction(stores, mode, { durability: "strict" });
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error as Error);
  });
}

function done(work: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    work.oncomplete = () => resolve();
    work.onabort = () => reject(work.error as Error);
  });
}

async function read<T>(name: string): Promise<T | null> {
  return ((await settled((await store("readonly")).get(name))) as T | undefined) ?? null;
}

async function write(name: string, value: unknown): Promise<void> {
  await settled((await store("readwrite")).put(value, name));
}

/** Null if nobody has signed in here before. */
export const knownDeviceId = (): Promise<string | null> => read<string>("device_id");

/** A device id belongs to this browser, and outlives a logout. */
export async function deviceId(make: () => string): Promise<string> {
  const kept = await knownDeviceId();
  if (kept) return kept;
  const made = make();
  await write("device_id", made);
  return made;
}

export const readKeys = (userId: string): Promise<DeviceKeys | null> => read(`keys:${userId}`);

export const writeKeys = (userId: string, keys: DeviceKeys): Promise<void> => write(`keys:${userId}`, keys);

/** All rows that begin with these parts. */
const below = (...parts: (string | number)[]): IDBKeyRange => IDBKeyRange.bound(parts, [...parts, []]);

/** Rises with each sign-out, which no store of before outlives. */
let signOuts = 0;

/** An earlier version wrote everything anew for each change. */
interface EarlierRows {
  readonly pins: StoredTrust["pins"] | null;
  readonly marks: ReadonlyMap<string, StoredTrust["marks"][string]>;
}

/** A device's knowledge of others. A row is written for each change. */
export function learnedStore(): Store {
  const era = signOuts;
  let person = "";
  const change = async (run: (work: IDBTransaction) => void): Promise<void> => {
    if (era !== signOuts) return;
    const work = await transaction("readwrite");
    run(work);
    await done(work);
  };
  const putAll = (work: IDBTransaction, section: Section, rows: Readonly<Record<string, unknown>>): void => {
    const entries = work.objectStore(ENTRIES);
    for (const [name, row] of Object.entries(rows)) {
      const key = [person, section, name];
      if (row === null) entries.delete(key);
      else entries.put(row, key);
    }
  };
  const rowsOf = async <T>(section: Section): Promise<Record<string, T>> => {
    const entries = (await transaction("readonly")).objectStore(ENTRIES);
    const range = below(person, section);
    const [keys, rows] = await Promise.all([settled(entries.getAllKeys(range)), settled(entries.getAll(range))]);
    return Object.fromEntries(keys.map((key, at) => [(key as string[])[2]!, rows[at] as T]));
  };
  return {
    async load({ userId }) {
      person = userId;
      const earlier = await read<EarlierRows>(`learned:${userId}`);
      if (earlier) {
        await change((work) => {
          putAll(work, "pins", earlier.pins?.principals ?? {});
          putAll(work, "marks", Object.fromEntries(earlier.marks));
        });
        const values = await store("readwrite");
        await Promise.all(["learned", "consents"].map((name) => settled(values.delete(`${name}:${userId}`))));
      }
      const [principals, marks] = await Promise.all([
        rowsOf<StoredTrust["pins"]["principals"][string]>("pins"),
        rowsOf<StoredTrust["marks"][string]>("marks"),
      ]);
      return { pins: { principals }, marks };
    },
    save: ({ pins, marks }) =>
      change((work) => {
        putAll(work, "pins", pins.principals);
        putAll(work, "marks", marks);
      }),
    async loadConsents() {
      const [begun, remembered] = await Promise.all([
        rowsOf<number>("begun"),
        rowsOf<NonNullable<StoredConsents["remembered"][string]>>("remembered"),
      ]);
      const old = Object.keys(begun).filter((name) => begun[name]! < Date.now() - HANDLED_MS);
      if (old.length > 0)
        await change((work) => putAll(work, "begun", Object.fromEntries(old.map((name) => [name, null]))));
      return { begun, remembered };
    },
    addConsents: ({ begun, remembered }) =>
      change((work) => {
        putAll(work, "begun", begun);
        putAll(work, "remembered", remembered);
      }),
    async loadHandled() {
      const rows = (await transaction("readonly")).objectStore(HANDLED);
      const since = IDBKeyRange.bound([person, Date.now() - HANDLED_MS], [person, []]);
      return settled(rows.getAll(since)) as Promise<Handled[]>;
    },
    addHandled: (handled) =>
      change((work) => {
        const rows = work.objectStore(HANDLED);
        for (const one of handled) rows.put(one, [person, one.at, one.conversationId, one.sender.id, one.clientMessageId]);
        // Older ones do not come again.
        rows.delete(IDBKeyRange.bound([person], [person, Date.now() - HANDLED_MS]));
      }),
  };
}

/** For one who reads what the page has learned, and learns nothing. */
export function readOnlyStore(): Store {
  const nothing = (): Promise<void> => Promise.resolve();
  return { ...learnedStore(), save: nothing, addConsents: nothing, addHandled: nothing };
}

/** What notifications show beside that something waits. */
export interface NotificationWords {
  /** They are this person's, and nobody else's. */
  readonly userId: string;
  /** Whether there are buttons to approve and deny. */
  readonly canDecide: boolean;
}

const WORDS_NAME = "notification_words";

/** Null if the person wants no words. */
export const readNotificationWords = (): Promise<NotificationWords | null> => read(WORDS_NAME);

export const writeNotificationWords = (words: NotificationWords | null): Promise<void> => write(WORDS_NAME, words);

/** A logout leaves no key behind. The device's name stays. */
export async function forget(userId: string): Promise<void> {
  signOuts += 1;
  await settled((await store("readwrite")).delete(`keys:${userId}`));
  const work = await transaction("readwrite");
  for (const rows of [ENTRIES, HANDLED]) work.objectStore(rows).delete(below(userId));
  await done(work);
}
