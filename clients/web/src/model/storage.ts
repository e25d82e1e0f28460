/**
 * The state that outlives a reload, in IndexedDB: the device's keys, which no script can read, and what it has learned of others.
 * No message is here: `cache.ts` keeps those that the person wants to be kept.
 */
import type { ConsentStore, DeviceKeys, EpochMarks, StoredConsents } from "@blindpipe/client";

const STORE = "values";

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("blindpipe", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error as Error);
  });
}

let database: Promise<IDBDatabase> | null = null;

async function store(mode: IDBTransactionMode): Promise<IDBObjectStore> {
  database ??= open();
  return (await database).transaction(STORE, mode).objectStore(STORE);
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error as Error);
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

/** What a person's device has learned. */
export interface Learned {
  readonly pins: ReturnType<import("@blindpipe/client").Trust["store"]> | null;
  readonly marks: ReadonlyMap<string, EpochMarks>;
}

export const readKeys = (userId: string): Promise<DeviceKeys | null> => read(`keys:${userId}`);

export const writeKeys = (userId: string, keys: DeviceKeys): Promise<void> => write(`keys:${userId}`, keys);

export async function readLearned(userId: string): Promise<Learned> {
  return (await read<Learned>(`learned:${userId}`)) ?? { pins: null, marks: new Map() };
}

export const writeLearned = (userId: string, learned: Learned): Promise<void> => write(`learned:${userId}`, learned);

export function consentStore(userId: string): ConsentStore {
  return {
    loadConsents: () => read<StoredConsents>(`consents:${userId}`),
    async addConsents({ begun, remembered }) {
      const before = await read<StoredConsents>(`consents:${userId}`);
      await write(`consents:${userId}`, {
        begun: { ...before?.begun, ...begun },
        remembered: { ...before?.remembered, ...remembered },
      });
    },
  };
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
  const values = await store("readwrite");
  await Promise.all(["keys", "learned", "consents"].map((name) => settled(values.delete(`${name}:${userId}`))));
}
