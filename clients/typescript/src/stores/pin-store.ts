/**
 * Where an agent keeps the keys of others, and the events that it has handled.
 *
 * Why: ADR 74.
 */
import type { Handled } from "../core/session.js";
import type { EpochMarks } from "../e2ee/room.js";
import { type Entries, Texts } from "../e2ee/texts.js";
import type { LoadedPins, StoredPins, StoredPrincipal } from "../e2ee/trust.js";
import { firstByte, fs } from "./files.js";
import { HandledFile } from "./handled.js";
import { FREE_BYTES, Log } from "./log.js";

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

/** The part of a store that lessons are added to. */
export type LessonStore = Pick<PinStore, "save">;

type Handles = Pick<HandledStore, "loadHandled" | "addHandled">;

export function keepsHandled<S extends LessonStore>(store: S | null): store is S & Handles {
  return store !== null && "loadHandled" in store && "addHandled" in store;
}

const BRACE = 0x7b;

/**
 * A log of entries of mode 0600, to which each change is added; the clients in Python and Rust read
 * the same. A second file, with `.handled` behind the name, has a line for each message that was
 * handled within 31 days. A pair of files is for a single process.
 */
export function filePins(path: string, freeBytes = FREE_BYTES): HandledStore {
  const log = new Log(path, ["pins", "marks"], freeBytes);
  const handledFile = new HandledFile(`${path}.handled`);
  return {
    async load() {
      // An earlier version wrote a single document.
      if ((await firstByte(path)) === BRACE) await convertDocument(log);
      const found = await log.load();
      return (
        found && {
          pins: { principals: new Texts<StoredPrincipal>(found.pins) },
          marks: new Texts<EpochMarks>(found.marks),
        }
      );
    },
    save: ({ pins, marks }) => log.add({ pins: pins.principals, marks }),
    loadHandled: () => handledFile.load(),
    addHandled: (handled) => handledFile.add(handled),
  };
}

async function convertDocument(log: Log<"pins" | "marks">): Promise<void> {
  const { readFile } = await fs();
  const { pins, marks } = JSON.parse(await readFile(log.path, "utf8")) as StoredTrust;
  await log.replace({ pins: pins.principals, marks });
}
