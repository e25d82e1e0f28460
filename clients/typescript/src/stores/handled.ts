/** A file with a line for each message that was handled within 31 days. */
import type { Handled } from "../core/session.js";
import { fromHex, hex, idBytes, isId, ulid } from "../e2ee/bytes.js";
import { namedPrincipal, principalName } from "../e2ee/keys.js";
import { MAX_MESSAGE_AGE_MS } from "../e2ee/room.js";
import { append, lineBatches, replace } from "./files.js";

/** Lines are added before those that are too old are looked for, at least. */
const MIN_ADDED_LINES = 10_000;

export class HandledFile {
  #keptLines = 0;
  #addedLines = 0;

  constructor(readonly path: string) {}

  async load(): Promise<Iterable<Handled>> {
    const since = Date.now() - MAX_MESSAGE_AGE_MS;
    // Lines are a third as large as what they say, which is read when it is asked for.
    const kept: string[] = [];
    let lines = 0;
    for await (const batch of lineBatches(this.path)) {
      lines += batch.length;
      const texts = batch.map((line) => line.toString("latin1"));
      kept.push(...texts.filter((text) => (handledOf(text)?.at ?? -1) >= since));
    }
    // Lines too old to come again, and lines that a crash has torn, are left out.
    if (kept.length < lines) await replace(this.path, kept.map((line) => `${line}\n`).join(""));
    [this.#keptLines, this.#addedLines] = [kept.length, 0];
    return {
      *[Symbol.iterator]() {
        for (const line of kept) yield handledOf(line)!;
      },
    };
  }

  async add(handled: readonly Handled[]): Promise<void> {
    await append(this.path, handled.map(lineOf).join(""));
    this.#addedLines += handled.length;
    // The file grows to about twice of what 31 days need.
    if (this.#addedLines > Math.max(MIN_ADDED_LINES, this.#keptLines)) await this.load();
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
