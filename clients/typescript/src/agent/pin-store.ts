/**
 * Where an agent keeps the keys of others, and the events that it has handled.
 *
 * Why: ADR 74.
 */
import { crc32, fromHex, hex, idBytes, isId, ulid, utf8 } from "../e2ee/bytes.js";
import { namedPrincipal, principalName } from "../e2ee/keys.js";
import { type EpochMarks, MAX_MESSAGE_AGE_MS } from "../e2ee/room.js";
import { type Entries, Texts } from "../e2ee/texts.js";
import type { LoadedPins, StoredPins, StoredPrincipal } from "../e2ee/trust.js";
import type { Handled } from "../core/session.js";

/** Entries that an agent keeps. They hold public keys and numbers only. */
export interface StoredTrust {
  readonly pins: StoredPins;
  readonly marks: Readonly<Record<string, EpochMarks>>;
}

/** All entries of a store, which may parse each when it is asked for. */
export interface LoadedTrust {
  readonly pins: LoadedPins;
  readonly marks: Entries<EpochMarks>;
}

export interface PinStore {
  /** All entries, each as it was saved last; null at the first start. */
  load(): Promise<LoadedTrust | null>;
  /**
   * Keeps the entries that have changed: each takes the place of the earlier one of its name, and all
   * others stay. Resolves once they are durable: only then the events that taught them are
   * acknowledged.
   */
  save(trust: StoredTrust): Promise<void>;
}

/**
 * A pin store that keeps which messages were handled too. With another one, a message of the last
 * 31 days may be handled once more after a restart.
 */
export interface HandledStore extends PinStore {
  /** The messages that were handled within 31 days, oldest first. */
  loadHandled(): Promise<Iterable<Handled>>;
  /** Resolves once they are kept durably: only then their events are acknowledged. */
  addHandled(handled: readonly Handled[]): Promise<void>;
}

export function keepsHandled(store: PinStore | null): store is HandledStore {
  return store !== null && "loadHandled" in store && "addHandled" in store;
}

/** Lines are added before those that are too old are looked for, at least. */
const MIN_ADDED_LINES = 10_000;

/** A log grows by so much, and to twice its entries, before it is written anew. */
const FREE_BYTES = 1 << 20;

/**
 * A log of entries, to which each change is added; the Python and TypeScript clients read
 * the same. A line is the CRC-32
 * of its rest in hex, a section, a name, and an entry as JSON. The last line of a name counts. A
 * second file, with `.handled` behind the name, has a line for each message that was handled within
 * 31 days. A pair of files is for a single process.
 */
export function filePins(path: string, freeBytes = FREE_BYTES): HandledStore {
  const handledPath = `${path}.handled`;
  let keptLines = 0;
  let addedLines = 0;
  let maxBytes = freeBytes;
  const compact = async (): Promise<void> => {
    maxBytes = freeBytes + 2 * (await compactLog(path));
  };
  return {
    async load() {
      const log = await readLog(path);
      if (log === null) return null;
      maxBytes = freeBytes + 2 * log.liveBytes;
      if (log.bytes > maxBytes) await compact();
      return log.trust;
    },
    async save(trust) {
      const bytes = await append(path, linesOf(trust).join(""));
      if (bytes > maxBytes) await compact();
    },
    async loadHandled() {
      const since = Date.now() - MAX_MESSAGE_AGE_MS;
      // Lines are a third as large as what they say, which is read when it is asked for.
      const kept: string[] = [];
      let lines = 0;
      for await (const batch of lineBatches(handledPath)) {
        lines += batch.length;
        const texts = batch.map((line) => line.toString("latin1"));
        kept.push(...texts.filter((text) => (handledOf(text)?.at ?? -1) >= since));
      }
      // Lines too old to come again, and lines that a crash has torn, are left out.
      if (kept.length < lines) await replace(handledPath, kept.map((line) => `${line}\n`).join(""));
      [keptLines, addedLines] = [kept.length, 0];
      return {
        *[Symbol.iterator]() {
          for (const line of kept) yield handledOf(line)!;
        },
      };
    },
    async addHandled(handled) {
      await append(handledPath, handled.map(lineOf).join(""));
      addedLines += handled.length;
      // The file grows to about twice of what 31 days need.
      if (addedLines > Math.max(MIN_ADDED_LINES, keptLines)) await this.loadHandled();
    },
  };
}

function linesOf({ pins, marks }: StoredTrust): string[] {
  const sections = { pins: pins.principals, marks };
  return Object.entries(sections).flatMap(([section, entries]) =>
    Object.entries(entries).map(([name, entry]) => {
      const rest = `${section} ${name} ${JSON.stringify(entry)}`;
      return `${crcOf(rest)} ${rest}\n`;
    }),
  );
}

function crcOf(text: string): string {
  return crc32(utf8(text)).toString(16).padStart(8, "0");
}

/** Null for a line that is not as it was written. */
function entryOf(line: Buffer): readonly [section: string, name: string, text: string] | null {
  const rest = line.subarray(9);
  const name = rest.indexOf(SPACE) + 1;
  const text = rest.indexOf(SPACE, name) + 1;
  const isWhole = parseInt(line.toString("latin1", 0, 8), 16) === crc32(rest);
  if (!isWhole || name === 0 || text === 0) return null;
  return [
    rest.toString("latin1", 0, name - 1),
    rest.toString("latin1", name, text - 1),
    rest.toString("utf8", text),
  ];
}

const [LINE_FEED, SPACE, BRACE] = [0x0a, 0x20, 0x7b];
const CHUNK_BYTES = 256 * 1024;

/** The lines of a file without their ends, chunk by chunk; the last one may be torn. */
async function* lineBatches(path: string): AsyncGenerator<Buffer[]> {
  const { open } = await import("node:fs/promises");
  const file = await open(path, "r").catch((error: unknown) => {
    if ((error as { code?: string }).code === "ENOENT") return null;
    throw error;
  });
  if (!file) return;
  try {
    let rest = Buffer.alloc(0);
    for (;;) {
      const { buffer, bytesRead } = await file.read(Buffer.allocUnsafe(CHUNK_BYTES), 0);
      if (bytesRead === 0) break;
      const bytes = Buffer.concat([rest, buffer.subarray(0, bytesRead)]);
      const lines = [];
      let at = 0;
      for (let end; (end = bytes.indexOf(LINE_FEED, at)) >= 0; at = end + 1)
        lines.push(bytes.subarray(at, end));
      rest = bytes.subarray(at);
      yield lines;
    }
    if (rest.length > 0) yield [rest];
  } finally {
    await file.close();
  }
}

interface Log {
  readonly trust: LoadedTrust;
  readonly bytes: number;
  readonly liveBytes: number;
}

async function readLog(path: string): Promise<Log | null> {
  const { readFile } = await import("node:fs/promises");
  if (!(await isThere(path))) return null;
  const end = await cutTornLine(path);
  const sections = { pins: new Map<string, string>(), marks: new Map<string, string>() };
  let liveBytes = 0;
  for await (const lines of lineBatches(path)) {
    // An earlier version wrote a single document.
    if (lines[0]?.[0] === BRACE) return convertDocument(path, await readFile(path));
    for (const line of lines) {
      const [section, name, text] = entryOf(line) ?? [];
      if (section !== "pins" && section !== "marks") continue;
      const before = sections[section].get(name!);
      liveBytes += text!.length - (before?.length ?? -64);
      sections[section].set(name!, text!);
    }
  }
  const trust = {
    pins: { principals: new Texts<StoredPrincipal>(sections.pins) },
    marks: new Texts<EpochMarks>(sections.marks),
  };
  return { trust, bytes: end, liveBytes };
}

/** A crash may have cut the last line, which nobody has acknowledged. The size since. */
async function cutTornLine(path: string): Promise<number> {
  const { open } = await import("node:fs/promises");
  const file = await open(path, "r+");
  try {
    const { size } = await file.stat();
    const isDocument = (await file.read(Buffer.alloc(1), 0, 1, 0)).buffer[0] === BRACE;
    let end = size;
    for (let found = -1; end > 0 && found < 0 && !isDocument; ) {
      const start = Math.max(0, end - CHUNK_BYTES);
      const { buffer } = await file.read(Buffer.alloc(end - start), 0, end - start, start);
      found = buffer.lastIndexOf(LINE_FEED);
      end = found < 0 ? start : start + found + 1;
    }
    if (end < size) await file.truncate(end);
    return end;
  } finally {
    await file.close();
  }
}

async function convertDocument(path: string, document: Buffer): Promise<Log> {
  const trust = JSON.parse(document.toString()) as StoredTrust;
  const lines = linesOf(trust).join("");
  await replace(path, lines);
  return { trust, bytes: lines.length, liveBytes: lines.length };
}

/** Writes a log anew with the last line of each name; its size. */
async function compactLog(path: string): Promise<number> {
  const { stat } = await import("node:fs/promises");
  const last = new Map<string, number>();
  let number = 0;
  for await (const lines of lineBatches(path)) {
    for (const line of lines) {
      const [section, name] = entryOf(line) ?? [];
      if (section !== undefined) last.set(`${section} ${name}`, number);
      number += 1;
    }
  }
  await replace(path, linesAt(path, new Set(last.values())));
  return (await stat(path)).size;
}

async function* linesAt(path: string, numbers: ReadonlySet<number>): AsyncGenerator<Buffer> {
  let number = 0;
  for await (const lines of lineBatches(path)) {
    const kept = lines.filter(() => numbers.has(number++));
    yield Buffer.concat(kept.flatMap((line) => [line, Buffer.of(LINE_FEED)]));
  }
}

/** Adds lines, durably; the size of the file since. A write that fails leaves none of them. */
async function append(path: string, lines: string): Promise<number> {
  const { constants, open } = await import("node:fs/promises");
  const isNew = !(await isThere(path));
  // Nobody else's file is written through a link. Windows has no such flag.
  const { O_APPEND, O_CREAT, O_WRONLY, O_NOFOLLOW = 0 } = constants;
  const file = await open(path, O_APPEND | O_CREAT | O_WRONLY | O_NOFOLLOW, 0o600);
  try {
    const { size } = await file.stat();
    try {
      await file.writeFile(lines);
      await file.sync();
    } catch (error) {
      await file.truncate(size);
      throw error;
    }
    if (isNew) await syncFolderOf(path);
    return (await file.stat()).size;
  } finally {
    await file.close();
  }
}

/** A torn line is not read: each ends with a mark of its own. */
function lineOf({ at, conversationId, sender, clientMessageId }: Handled): string {
  return `${at} ${conversationId} ${principalName(sender)} ${hex(idBytes(clientMessageId))} .\n`;
}

function handledOf(line: string): Handled | null {
  const found = /^(\d{1,16}) (\S+) (0[12][0-9a-f]{32}) ([0-9a-f]{32}) \.$/.exec(line);
  if (!found || !isId(found[2]!)) return null;
  const [, at, conversationId, sender, id] = found;
  return {
    at: Number(at),
    conversationId: conversationId!,
    sender: namedPrincipal(sender!),
    clientMessageId: ulid(fromHex(id!)),
  };
}

async function isThere(path: string): Promise<boolean> {
  const { access } = await import("node:fs/promises");
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Writes beside the file, and renames. */
async function replace(path: string, text: string | AsyncIterable<Buffer>): Promise<void> {
  const { open, rename, rm, writeFile } = await import("node:fs/promises");
  const beside = `${path}.${process.pid}.tmp`;
  // Nobody else's file, and no link, is written through.
  await rm(beside, { force: true });
  const file = await open(beside, "wx", 0o600);
  try {
    await writeFile(file, text);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(beside, path);
  await syncFolderOf(path);
}

async function syncFolderOf(path: string): Promise<void> {
  // Windows opens no folder, and keeps the new name by itself.
  if (process.platform === "win32") return;
  const { open } = await import("node:fs/promises");
  const { dirname } = await import("node:path");
  const folder = await open(dirname(path), "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
