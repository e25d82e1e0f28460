/** Where an agent keeps what it has learned about others' keys, and what it has handled. */
import { fromHex, hex, idBytes, isId, ulid } from "../e2ee/bytes.js";
import { namedPrincipal, principalName } from "../e2ee/keys.js";
import { type EpochMarks, MAX_MESSAGE_AGE_MS } from "../e2ee/room.js";
import type { StoredPins } from "../e2ee/trust.js";
import type { Handled } from "../core/session.js";

export interface StoredTrust {
  readonly pins: StoredPins;
  readonly marks: Readonly<Record<string, EpochMarks>>;
}

export interface PinStore {
  load(): Promise<StoredTrust | null>;
  /** Resolves once it is kept durably: only then the events that taught it are acknowledged. */
  save(trust: StoredTrust): Promise<void>;
}

/**
 * A pin store that keeps which messages were handled too. With another one, a message of the last
 * 31 days may be handled once more after a restart.
 */
export interface HandledStore extends PinStore {
  /** The messages that were handled within 31 days, oldest first. */
  loadHandled(): Promise<readonly Handled[]>;
  /** Resolves once they are kept durably: only then their events are acknowledged. */
  addHandled(handled: readonly Handled[]): Promise<void>;
}

export function keepsHandled(store: PinStore | null): store is HandledStore {
  return store !== null && "loadHandled" in store && "addHandled" in store;
}

/** Lines are added before those that are too old are looked for, at least. */
const MIN_ADDED_LINES = 10_000;

/**
 * A JSON file, replaced as a whole. It holds public keys and numbers only. A second file, with
 * `.handled` behind the name, has a line for each message that was handled within 31 days.
 */
export function filePins(path: string): HandledStore {
  const handledPath = `${path}.handled`;
  let keptLines = 0;
  let addedLines = 0;
  /** A write has failed, so the file may end within a line. */
  let isTorn = false;
  return {
    async load() {
      const text = await readIfThere(path);
      return text === null ? null : (JSON.parse(text) as StoredTrust);
    },
    save(trust) {
      return replace(path, JSON.stringify(trust));
    },
    async loadHandled() {
      const text = await readIfThere(handledPath);
      [keptLines, addedLines] = [0, 0];
      if (text === null) return [];
      const since = Date.now() - MAX_MESSAGE_AGE_MS;
      const lines = text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
      const handled = lines
        .map(handledOf)
        .filter((each): each is Handled => each !== null && each.at >= since);
      // What is too old to come again, and what a crash has torn, is left out.
      if (handled.length < lines.length) await replace(handledPath, handled.map(lineOf).join(""));
      keptLines = handled.length;
      return handled;
    },
    async addHandled(handled) {
      const { open } = await import("node:fs/promises");
      const isNew = !(await isThere(handledPath));
      const file = await open(handledPath, "a", 0o600);
      try {
        await file.writeFile((isTorn ? "\n" : "") + handled.map(lineOf).join(""));
        await file.sync();
        isTorn = false;
      } catch (error) {
        isTorn = true;
        throw error;
      } finally {
        await file.close();
      }
      if (isNew) await syncFolderOf(handledPath);
      addedLines += handled.length;
      // The file grows to about twice of what 31 days need.
      if (addedLines > Math.max(MIN_ADDED_LINES, keptLines)) await this.loadHandled();
    },
  };
}

/** A torn line, and one that begins behind it, are not read: each ends with a mark of its own. */
function lineOf({ at, conversationId, sender, clientMessageId }: Handled): string {
  return `${at} ${conversationId} ${principalName(sender)} ${hex(idBytes(clientMessageId))} .\n`;
}

function handledOf(line: string): Handled | null {
  const found = /^(\d{1,16}) (\S+) (0[12][0-9a-f]{32}) ([0-9a-f]{32}) \.\n$/.exec(line);
  if (!found || !isId(found[2]!)) return null;
  const [, at, conversationId, sender, id] = found;
  return {
    at: Number(at),
    conversationId: conversationId!,
    sender: namedPrincipal(sender!),
    clientMessageId: ulid(fromHex(id!)),
  };
}

async function readIfThere(path: string): Promise<string | null> {
  const { readFile } = await import("node:fs/promises");
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return null;
    throw error;
  }
}

async function isThere(path: string): Promise<boolean> {
  const { access } = await import("node:fs/promises");
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Writes beside the file, and renames. */
async function replace(path: string, text: string): Promise<void> {
  const { open, rename, rm } = await import("node:fs/promises");
  const beside = `${path}.${process.pid}.tmp`;
  // Nobody else's file, and no link, is written through.
  await rm(beside, { force: true });
  const file = await open(beside, "wx", 0o600);
  try {
    await file.writeFile(text);
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
