/**
 * The store of a person's device in files, for Node.
 *
 * Why: ADR 74.
 */
import type { StoredConsents, StoredRemembered } from "../e2ee/consent.js";
import { type EpochMarks, MAX_MESSAGE_AGE_MS } from "../e2ee/room.js";
import { Texts } from "../e2ee/texts.js";
import type { StoredPrincipal } from "../e2ee/trust.js";
import { fs, isThere, replace } from "./files.js";
import { HandledFile } from "./handled.js";
import { FREE_BYTES, Log } from "./log.js";
import { type DeviceState, type DeviceStore, OtherOwner, type StoreOwner } from "./store.js";

const SECTIONS = ["owner", "pins", "marks", "begun", "remembered"] as const;

export interface FileStore extends DeviceStore {
  /** Removes all files, such as at a sign-out. */
  remove(): Promise<void>;
}

/**
 * Files of mode 0600 for a single process. The one at `path` has the sign-in and the private keys,
 * and is written anew. The one with `.learned` behind the name is a log of pins, marks and consents,
 * to which each change is added. The one with `.handled` has a line for each message that was shown
 * within 31 days.
 */
export function fileStore(path: string, freeBytes = FREE_BYTES): FileStore {
  const log = new Log(`${path}.learned`, SECTIONS, freeBytes, isForgotten);
  const handledFile = new HandledFile(`${path}.handled`);
  let consents: StoredConsents | null = null;
  return {
    async loadDevice() {
      const { readFile } = await fs();
      if (!(await isThere(path))) return null;
      return JSON.parse(await readFile(path, "utf8")) as DeviceState;
    },
    saveDevice: (device) => replace(path, JSON.stringify(device)),
    async load(owner) {
      const found = await log.load();
      const name = ownerName(owner);
      const before = found?.owner.keys().next().value;
      if (before !== undefined && before !== name) throw new OtherOwner();
      if (before === undefined) await log.add({ owner: { [name]: true } });
      if (!found) return null;
      const { begun, remembered } = found;
      consents = {
        begun: parsed<number>(begun),
        remembered: parsed<StoredRemembered>(remembered),
      };
      return {
        pins: { principals: new Texts<StoredPrincipal>(found.pins) },
        marks: new Texts<EpochMarks>(found.marks),
      };
    },
    save: ({ pins, marks }) => log.add({ pins: pins.principals, marks }),
    loadConsents: () => Promise.resolve(consents),
    addConsents: ({ begun, remembered }) => log.add({ begun, remembered }),
    loadHandled: () => handledFile.load(),
    addHandled: (handled) => handledFile.add(handled),
    async remove() {
      const { rm } = await fs();
      for (const each of [path, log.path, handledFile.path]) await rm(each, { force: true });
    },
  };
}

function ownerName({ userId, deviceId }: StoreOwner): string {
  return `${userId}/${deviceId}`;
}

function parsed<T>(texts: ReadonlyMap<string, string>): Record<string, T> {
  return Object.fromEntries([...texts].map(([name, text]) => [name, JSON.parse(text) as T]));
}

/** A request that began 31 days ago is too old to come again. */
function isForgotten(section: string, text: string): boolean {
  return section === "begun" && Number(text) < Date.now() - MAX_MESSAGE_AGE_MS;
}
