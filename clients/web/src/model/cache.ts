/**
 * The encrypted cache of what was read, for times without a connection. It is off until the person turns it on. Each row
 * is under a key that no script can read; the key is kept beside the rows, and goes first when the cache is erased.
 */
import { signal } from "@preact/signals";
import type { StoredSession } from "@blindpipe/client";

const DATABASE = "blindpipe-cache";
const OWNER = "owner";
const ROWS = "rows";
/** The time of writing and the size of each row, so that a look at the bounds reads no row. */
const BOUNDS = "bounds";
/** The row of the list, which is not counted. */
const LIST = "list";

export const MAX_CONVERSATIONS = 100;
const MAX_ROW_BYTES = 512 * 1024;
const MAX_TOTAL_BYTES = 20 * 1024 * 1024;
const MAX_AGE_MS = 30 * 24 * 3_600_000;
/** What comes in bursts is written together. */
const WRITE_AFTER_MS = 400;

/** Whose cache it is, and its key. */
interface Owner {
  /** Another one each time that the cache is turned on. */
  readonly id: string;
  readonly userId: string;
  readonly deviceId: string;
  readonly key: CryptoKey;
}

interface Row {
  /** Unix milliseconds. */
  readonly at: number;
  /** In bytes. */
  readonly size: number;
  readonly iv: Uint8Array<ArrayBuffer>;
  readonly sealed: ArrayBuffer;
}

/** Changes a row. It gets what is kept, and answers what is to be. */
export type Change<T> = (kept: T | null) => T | null;

export const isOn = signal(false);

let owner: Owner | null = null;
let database: Promise<IDBDatabase> | null = null;
let writing: Promise<void> = Promise.resolve();
const waiting = new Map<string, Change<unknown>[]>();
let timer: ReturnType<typeof setTimeout> | null = null;

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(OWNER);
      request.result.createObjectStore(ROWS).createIndex(BOUNDS, ["at", "size"]);
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error as Error);
  });
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

async function transaction(mode: IDBTransactionMode): Promise<IDBTransaction> {
  database ??= open();
  return (await database).transaction([OWNER, ROWS], mode);
}

/** The sign-in that the cache belongs to; null while it is off. */
export async function load(): Promise<StoredSession | null> {
  const kept = (await settled((await transaction("readonly")).objectStore(OWNER).get(OWNER))) as Owner | undefined;
  owner = kept ?? null;
  isOn.value = owner !== null;
  return owner && { userId: owner.userId, deviceId: owner.deviceId, cookie: null };
}

export async function turnOn(userId: string, deviceId: string): Promise<void> {
  await erase();
  const key = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
  const made: Owner = { id: crypto.randomUUID(), userId, deviceId, key };
  const work = await transaction("readwrite");
  work.objectStore(OWNER).put(made, OWNER);
  await done(work);
  owner = made;
  isOn.value = true;
}

/** Turns the cache off. The key and all rows are gone. */
export async function erase(): Promise<void> {
  owner = null;
  isOn.value = false;
  stop();
  const work = await transaction("readwrite");
  work.objectStore(OWNER).clear();
  work.objectStore(ROWS).clear();
  await done(work);
}

/** Another person's cache goes when somebody else signs in. */
export async function eraseUnlessOf(userId: string): Promise<void> {
  const kept = await load();
  if (kept && kept.userId !== userId) await erase();
}

/** What was not written yet stays unwritten. */
export function stop(): void {
  if (timer !== null) clearTimeout(timer);
  timer = null;
  waiting.clear();
}

export const readList = <T>(): Promise<T | null> => read(LIST);
export const writeList = <T>(list: T): void => replace(LIST, () => list);
export const readChat = <T>(id: string): Promise<T | null> => read(`chat:${id}`);
export const writeChat = <T>(id: string, make: () => T): void => replace(`chat:${id}`, make);
export const changeChat = <T>(id: string, to: Change<T>): void => change(`chat:${id}`, to);

/** Forgets the conversations that are not among these. */
export async function keepOnly(ids: readonly string[]): Promise<void> {
  if (!owner) return;
  const wanted = new Set([LIST, ...ids.map((id) => `chat:${id}`)]);
  for (const name of waiting.keys()) if (!wanted.has(name)) waiting.delete(name);
  const rows = (await transaction("readwrite")).objectStore(ROWS);
  for (const name of await settled(rows.getAllKeys())) if (!wanted.has(String(name))) rows.delete(name);
}

async function read<T>(name: string): Promise<T | null> {
  const now = owner;
  if (!now) return null;
  const row = (await settled((await transaction("readonly")).objectStore(ROWS).get(name))) as Row | undefined;
  if (!row || row.at < Date.now() - MAX_AGE_MS) return null;
  try {
    const opened = await crypto.subtle.decrypt(parameters(now, name, row.iv), now.key, row.sealed);
    return JSON.parse(new TextDecoder().decode(opened)) as T;
  } catch {
    // It was of another key, or it is damaged: the service has it all.
    return null;
  }
}

/** A row opens in its place only. */
function parameters({ id, userId }: Owner, name: string, iv: Uint8Array<ArrayBuffer>): AesGcmParams {
  return { name: "AES-GCM", iv, additionalData: new TextEncoder().encode(JSON.stringify([id, userId, name])) };
}

function change<T>(name: string, to: Change<T>): void {
  if (!owner) return;
  waiting.set(name, [...(waiting.get(name) ?? []), (kept) => to(kept as T | null)]);
  timer ??= setTimeout(() => {
    timer = null;
    writing = writing.then(writeAll);
  }, WRITE_AFTER_MS);
}

/** What waits for the same row is not needed any more. */
function replace(name: string, make: () => unknown): void {
  waiting.delete(name);
  change(name, make);
}

async function writeAll(): Promise<void> {
  const all = [...waiting];
  waiting.clear();
  for (const [name, changes] of all) {
    try {
      await writeOne(name, changes);
    } catch (error) {
      // A full disk keeps nothing, and the app works without.
      if (!(error instanceof DOMException)) throw error;
    }
  }
}

async function writeOne(name: string, changes: readonly Change<unknown>[]): Promise<void> {
  const now = owner;
  if (!now) return;
  let value: unknown = await read(name);
  for (const to of changes) value = to(value);
  const row = value === null ? null : await seal(now, name, value);
  const work = await transaction("readwrite");
  const kept = (await settled(work.objectStore(OWNER).get(OWNER))) as Owner | undefined;
  if (kept?.id !== now.id) {
    // Another tab has turned it off.
    if (owner === now) await erase();
    return;
  }
  const rows = work.objectStore(ROWS);
  if (row) rows.put(row, name);
  else rows.delete(name);
  await prune(rows);
  await done(work);
}

/** Null if it is too large for a row. */
async function seal(now: Owner, name: string, value: unknown): Promise<Row | null> {
  const text = new TextEncoder().encode(JSON.stringify(value));
  if (text.length > MAX_ROW_BYTES) return null;
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const sealed = await crypto.subtle.encrypt(parameters(now, name, iv), now.key, text);
  return { at: Date.now(), size: sealed.byteLength, iv, sealed };
}

/** Drops the conversations that were written longest ago, beyond the bounds. */
function prune(rows: IDBObjectStore): Promise<void> {
  let count = 0;
  let bytes = 0;
  return new Promise((resolve, reject) => {
    const walk = rows.index(BOUNDS).openKeyCursor(null, "prev");
    walk.onerror = () => reject(walk.error as Error);
    walk.onsuccess = () => {
      const at = walk.result;
      if (!at) return resolve();
      const [time, size] = at.key as [number, number];
      if (at.primaryKey !== LIST) {
        count++;
        bytes += size;
        const isTooMuch = count > MAX_CONVERSATIONS || bytes > MAX_TOTAL_BYTES;
        if (isTooMuch || time < Date.now() - MAX_AGE_MS) rows.delete(at.primaryKey);
      }
      at.continue();
    };
  });
}
