/**
 * A log of entries, to which each change is added; the clients in Python and Rust read an agent's. A
 * line is the CRC-32 of its rest in hex, a section, a name, and an entry as JSON. The last line of
 * a name counts. A log is for a single process.
 *
 * Why: ADR 74.
 */
import { crc32, utf8 } from "../e2ee/bytes.js";
import { LINE_FEED, append, cutTornLine, fs, isThere, lineBatches, replace } from "./files.js";

/** A log grows by so much, and to twice its entries, before it is written anew. */
export const FREE_BYTES = 1 << 20;

const SPACE = 0x20;
/** The entry of what was taken away. */
const NOTHING = "null";

/** The texts of entries, by section and name. */
export type Sections<Section extends string> = Readonly<Record<Section, Map<string, string>>>;

export type Changes<Section extends string> = Readonly<
  Partial<Record<Section, Readonly<Record<string, unknown>>>>
>;

export class Log<Section extends string> {
  #maxBytes: number;
  /** A change waits for the one before, which may write the log anew. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(
    readonly path: string,
    private readonly sections: readonly Section[],
    private readonly freeBytes = FREE_BYTES,
    /** Entries that serve for nothing any more. */
    private readonly isForgotten: (section: string, text: string) => boolean = () => false,
  ) {
    this.#maxBytes = freeBytes;
  }

  #next<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#last.then(work);
    this.#last = done.catch(() => {});
    return done;
  }

  /** The entries as they were added last; null without a file. */
  load(): Promise<Sections<Section> | null> {
    return this.#next(() => this.#read());
  }

  async #read(): Promise<Sections<Section> | null> {
    if (!(await isThere(this.path))) return null;
    const end = await cutTornLine(this.path);
    const named = this.sections.map((section) => [section, new Map<string, string>()] as const);
    const found = Object.fromEntries(named) as Sections<Section>;
    let liveBytes = 0;
    for await (const lines of lineBatches(this.path)) {
      for (const line of lines) {
        const [section, name, text] = entryOf(line) ?? [];
        const entries = section === undefined ? undefined : found[section as Section];
        if (!entries) continue;
        const before = entries.get(name!);
        liveBytes += text!.length - (before?.length ?? -64);
        if (this.#isGone(section!, text!)) entries.delete(name!);
        else entries.set(name!, text!);
      }
    }
    this.#maxBytes = this.freeBytes + 2 * liveBytes;
    if (end > this.#maxBytes) await this.#compact();
    return found;
  }

  #isGone(section: string, text: string): boolean {
    return text === NOTHING || this.isForgotten(section, text);
  }

  /** Resolves once the changes are durable. A null takes an entry away. */
  add(changes: Changes<Section>): Promise<void> {
    const lines = linesOf(changes).join("");
    return this.#next(async () => {
      const bytes = await append(this.path, lines);
      if (bytes > this.#maxBytes) await this.#compact();
    });
  }

  /** Writes the log anew with these entries alone. */
  replace(entries: Changes<Section>): Promise<void> {
    const lines = linesOf(entries).join("");
    return this.#next(() => replace(this.path, lines));
  }

  /** Writes the log anew with the last line of each name. */
  async #compact(): Promise<void> {
    const { stat } = await fs();
    const last = new Map<string, number>();
    let number = 0;
    for await (const lines of lineBatches(this.path)) {
      for (const line of lines) {
        const [section, name, text] = entryOf(line) ?? [];
        if (section !== undefined) {
          if (this.#isGone(section, text!)) last.delete(`${section} ${name}`);
          else last.set(`${section} ${name}`, number);
        }
        number += 1;
      }
    }
    await replace(this.path, linesAt(this.path, new Set(last.values())));
    this.#maxBytes = this.freeBytes + 2 * (await stat(this.path)).size;
  }
}

function linesOf(changes: Changes<string>): string[] {
  return Object.entries(changes).flatMap(([section, entries]) =>
    Object.entries(entries ?? {}).map(([name, entry]) => {
      const rest = `${section} ${written(name)} ${JSON.stringify(entry)}`;
      return `${crcOf(rest)} ${rest}\n`;
    }),
  );
}

/** Others choose a part of some names, so a name may have any characters. */
function written(name: string): string {
  if (/^[!#-~][!-~]*$/.test(name)) return name;
  return JSON.stringify(name).replaceAll(" ", "\\u0020");
}

function read(name: string): string {
  return name.startsWith('"') ? (JSON.parse(name) as string) : name;
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
    read(rest.toString("utf8", name, text - 1)),
    rest.toString("utf8", text),
  ];
}

async function* linesAt(path: string, numbers: ReadonlySet<number>): AsyncGenerator<Buffer> {
  let number = 0;
  for await (const lines of lineBatches(path)) {
    const kept = lines.filter(() => numbers.has(number++));
    yield Buffer.concat(kept.flatMap((line) => [line, Buffer.of(LINE_FEED)]));
  }
}
