/** Trust: which keys of whom are known, introduced, verified, waiting for a person, or retired. */
import { hex } from "./bytes.js";
import {
  type Principal,
  isUsable,
  keyId,
  namedPrincipal,
  principalName,
  verifyIntroduction,
} from "./keys.js";
import { type Notice, notice, sortNotices } from "./notices.js";
import {
  type DirectoryKey,
  type Pin,
  type StoredPin,
  higher,
  isAccepted,
  isRetired,
  mergePin,
  newPin,
  readEnd,
  restorePin,
  storePin,
} from "./pins.js";

import { type SafetySide, safetyNumber } from "./safety.js";
import { type Entries, Texts } from "./texts.js";

export { notice, type Notice, type NoticeKind, sortNotices } from "./notices.js";
export {
  type DirectoryKey,
  type Pin,
  type Standing,
  type StoredPin,
  isAccepted,
  isRetired,
} from "./pins.js";

/** `tofu` accepts first keys; under `strict` they wait too. */
export type TrustPolicy = "tofu" | "strict";

interface PrincipalPins {
  readonly keys: Map<string, Pin>;
  speaks: boolean;
  /** The key of a link that was followed before the directory showed it. */
  linked: string | null;
}

/** The pins of somebody as a store keeps them. */
export interface StoredPrincipal {
  readonly speaks: boolean;
  readonly linked: string | null;
  readonly keys: readonly StoredPin[];
}

/** Pins as a store keeps them, for ever. */
export interface StoredPins {
  readonly principals: Readonly<Record<string, StoredPrincipal>>;
}

/** Pins that a store gives: it may parse each entry when it is asked for. */
export interface LoadedPins {
  readonly principals: Entries<StoredPrincipal>;
}

/** Those whose pins are not texts. */
const MAX_USED_PRINCIPALS = 2_000;

type Listed = readonly [id: string, key: DirectoryKey];

export class Trust {
  /** The pins that were used last, and all of them as texts. */
  readonly #used = new Map<string, PrincipalPins>();
  readonly #packed: Texts<PackedPrincipal>;
  /** Principals whose list is being read: their pins are not packed meanwhile. */
  readonly #reading = new Map<string, number>();
  #changed = new Set<string>();
  readonly #own: Set<string>;

  constructor(
    readonly me: Principal,
    readonly policy: TrustPolicy = "tofu",
    /** Ids of the keys that this client holds. */
    own: Iterable<string> = [],
    stored: LoadedPins | null = null,
  ) {
    this.#own = new Set(own);
    this.#packed = Texts.of<PackedPrincipal>(stored?.principals ?? {});
  }

  /** Keys that this client got since. */
  own(ids: Iterable<string>): void {
    for (const id of ids) this.#own.add(id);
  }

  store(): StoredPins {
    return this.#entries(new Set([...this.#packed.names(), ...this.#used.keys()]));
  }

  #entries(names: Iterable<string>): StoredPins {
    const stored = [...names].map((name) => [name, storePrincipal(this.#found(name)!)]);
    return { principals: Object.fromEntries(stored) as StoredPins["principals"] };
  }

  /** Whose pins have changed since the last question, and these as a store keeps them. */
  takeChanged(): { readonly names: ReadonlySet<string>; readonly pins: StoredPins } {
    const names = this.#changed;
    this.#changed = new Set();
    return { names, pins: this.#entries(names) };
  }

  /** A store did not keep what `takeChanged` gave. */
  notKept(names: Iterable<string>): void {
    for (const name of names) this.#changed.add(name);
  }

  /**
   * Pins that another process of this client has stored, and whose they are. Where both processes
   * have changed a key, the stricter standing counts.
   */
  takeOver(entries: Readonly<Record<string, StoredPrincipal>>): Principal[] {
    return Object.entries(entries).map(([name, stored]) => {
      const theirs = restorePrincipal(stored);
      const entry = this.#of(namedPrincipal(name));
      // A list that is being read changes this entry, so it stays the same object.
      if (this.#changed.has(name) || this.#reading.has(name)) {
        merge(entry, theirs);
      } else {
        entry.keys.clear();
        for (const [id, pin] of theirs.keys) entry.keys.set(id, pin);
        [entry.speaks, entry.linked] = [theirs.speaks, theirs.linked];
      }
      return namedPrincipal(name);
    });
  }

  #found(name: string): PrincipalPins | undefined {
    const packed = this.#used.has(name) ? undefined : this.#packed.get(name);
    const entry = packed ? restorePrincipal(packed) : this.#used.get(name);
    return entry && this.#use(name, entry);
  }

  #use(name: string, entry: PrincipalPins): PrincipalPins {
    this.#used.delete(name);
    this.#used.set(name, entry);
    if (this.#used.size > MAX_USED_PRINCIPALS) this.#pack();
    return entry;
  }

  #pack(): void {
    for (const [name, entry] of this.#used) {
      if (this.#reading.has(name)) continue;
      this.#packed.put(name, packPrincipal(entry));
      this.#used.delete(name);
      return;
    }
  }

  #of(principal: Principal): PrincipalPins {
    const name = principalName(principal);
    return this.#found(name) ?? this.#use(name, { keys: new Map(), speaks: false, linked: null });
  }

  #changing(principal: Principal): PrincipalPins {
    this.#changed.add(principalName(principal));
    return this.#of(principal);
  }

  find(principal: Principal, id: string | Uint8Array): Pin | undefined {
    const name = typeof id === "string" ? id : hex(id);
    return this.#found(principalName(principal))?.keys.get(name);
  }

  keysOf(principal: Principal): Pin[] {
    return [...(this.#found(principalName(principal))?.keys.values() ?? [])];
  }

  isKnown(principal: Principal): boolean {
    return this.keysOf(principal).length > 0;
  }

  speaks(principal: Principal): boolean {
    return this.#found(principalName(principal))?.speaks ?? false;
  }

  /** `schemes`, a wrap, an envelope or a link has said so once; that is kept for ever. */
  heard(principal: Principal): void {
    if (!this.speaks(principal)) this.#changing(principal).speaks = true;
  }

  /** Takes a whole list of the directory. */
  async directory(
    of: Principal,
    list: readonly DirectoryKey[],
    now: number = Date.now(),
  ): Promise<Notice[]> {
    const name = principalName(of);
    this.#reading.set(name, (this.#reading.get(name) ?? 0) + 1);
    try {
      return await this.#read(of, list, now);
    } finally {
      const others = this.#reading.get(name)! - 1;
      if (others > 0) this.#reading.set(name, others);
      else this.#reading.delete(name);
    }
  }

  async #read(of: Principal, list: readonly DirectoryKey[], now: number): Promise<Notice[]> {
    const notices: Notice[] = [];
    const listed: Listed[] = [];
    for (const key of list) {
      if (await isUsable(key)) listed.push([hex(await keyId(key)), key]);
      else notices.push(notice("unusable_key", of));
    }
    const entry = this.#of(of);
    const before = JSON.stringify(storePrincipal(entry));
    const known = entry.keys.size;
    const isMine = principalName(of) === principalName(this.me);
    for (const pin of entry.keys.values()) {
      const shown = listed.find(([id]) => id === pin.keyId)?.[1];
      const kind = readEnd(pin, shown, now);
      if (kind) notices.push(notice(kind, of, pin.keyId));
    }
    this.#pinFirst(entry, listed, known === 0, isMine, now);
    await this.#introduce(of, entry, listed, notices, now);
    this.#pinWaiting(of, entry, listed, isMine, notices, now);
    notices.push(...follow(of, entry, entry.keys.size > known, now));
    if (list.some((key) => key.schemes?.includes("bp1"))) entry.speaks = true;
    if (JSON.stringify(storePrincipal(entry)) !== before) this.#changed.add(principalName(of));
    return sortNotices(notices);
  }

  /**
   * Pins what is accepted at once: one's own keys, the key of a link, and first keys unless the
   * policy is strict. While the key of a link is not listed, first keys wait too.
   */
  #pinFirst(
    entry: PrincipalPins,
    listed: readonly Listed[],
    isFirst: boolean,
    isMine: boolean,
    now: number,
  ): void {
    const isNamed = ([id, key]: Listed): boolean => id === entry.linked && !isRetired(key, now);
    const isKnown =
      isFirst && this.policy === "tofu" && (entry.linked === null || listed.some(isNamed));
    for (const one of listed) {
      const [id, key] = one;
      if (entry.keys.has(id)) continue;
      if (isMine && this.#own.has(id)) entry.keys.set(id, newPin(id, key, "verified", now));
      if (!isMine && (isKnown || isNamed(one))) entry.keys.set(id, newPin(id, key, "known", now));
    }
  }

  /**
   * An introduced key introduces others, so this goes on until nothing changes. Beside a verified
   * key, only verified ones introduce.
   */
  async #introduce(
    of: Principal,
    entry: PrincipalPins,
    listed: readonly Listed[],
    notices: Notice[],
    now: number,
  ): Promise<void> {
    for (let hasChanged = true; hasChanged;) {
      hasChanged = false;
      for (const one of listed) {
        const pin = await this.#introduced(of, entry, one, now);
        if (!pin) continue;
        const before = entry.keys.get(pin.keyId);
        entry.keys.set(pin.keyId, pin);
        if (!before || before.standing === "waiting") {
          notices.push(notice("introduced_key", of, pin.keyId));
        }
        hasChanged = true;
        break;
      }
    }
  }

  async #introduced(
    of: Principal,
    entry: PrincipalPins,
    [id, key]: Listed,
    now: number,
  ): Promise<Pin | null> {
    const { introduction } = key;
    const before = entry.keys.get(id);
    if (!introduction || isRetired(key, now) || before?.introducedBy) return null;
    if (before && isRetired(before, now)) return null;
    const by = entry.keys.get(hex(introduction.byKeyId));
    if (!by || !isAccepted(by, now)) return null;
    if (by.standing !== "verified" && verified(entry).length > 0) return null;
    const device = key.deviceId ?? "";
    if (!(await verifyIntroduction(by, of, device, key, introduction.signature))) return null;
    const earned = by.standing === "verified" ? "verified" : "introduced";
    const pin = newPin(id, key, before ? higher(before.standing, earned) : earned, now);
    pin.introducedBy = by.keyId;
    return pin;
  }

  #pinWaiting(
    of: Principal,
    entry: PrincipalPins,
    listed: readonly Listed[],
    isMine: boolean,
    notices: Notice[],
    now: number,
  ): void {
    for (const [id, key] of listed) {
      const before = entry.keys.get(id);
      const pin = before ?? newPin(id, key, "waiting", now);
      if (!before) entry.keys.set(id, pin);
      if (pin.standing !== "waiting" || isRetired(pin, now)) continue;
      if (isMine) notices.push(notice("own_list_key", of, id));
      else if (!before) notices.push(notice("waiting_key", of, id));
    }
  }

  /** The tap: a person takes this key for that principal's. False for an unknown key. */
  confirm(of: Principal, id: string, now: number = Date.now()): boolean {
    const pin = this.find(of, id);
    if (!pin) return false;
    this.#changed.add(principalName(of));
    pin.standing = higher(pin.standing, "known");
    pin.retired = false;
    if (pin.retiredAt !== null && pin.retiredAt <= now) pin.retiredAt = null;
    return true;
  }

  /**
   * 60 digits to compare with `of`: of all accepted keys of both sides; where a side has none, of
   * those that wait. Null if a side has no keys at all.
   */
  async safetyNumber(of: Principal, now: number = Date.now()): Promise<string | null> {
    const side = (principal: Principal): SafetySide => ({
      principal,
      keys: compared(this.keysOf(principal), now),
    });
    const [mine, other] = [side(this.me), side(of)];
    const isMe = principalName(of) === principalName(this.me);
    if (isMe || mine.keys.length === 0 || other.keys.length === 0) return null;
    return safetyNumber(mine, other);
  }

  /**
   * People have compared the digits: every key of `of` that they stand for is verified. Null if
   * these are not, or no longer, the digits of now.
   */
  async verifyNumber(
    of: Principal,
    number: string,
    now: number = Date.now(),
  ): Promise<Notice[] | null> {
    const keys = compared(this.keysOf(of), now).map(({ keyId }) => keyId);
    const present = await this.safetyNumber(of, now);
    if (present?.replaceAll(" ", "") !== number.replaceAll(/\s/gu, "")) return null;
    return raise(of, this.#changing(of), keys, now);
  }

  /** People have compared this key alone. Null if it was never shown, or is retired. */
  verify(of: Principal, id: string, now: number = Date.now()): Notice[] | null {
    const pin = this.find(of, id);
    if (!pin || isRetired(pin, now)) return null;
    return raise(of, this.#changing(of), [pin.keyId], now);
  }

  /**
   * The devices that `deviceId` introduced, directly or by another one. Whoever removes a lost
   * device is asked about these too.
   */
  introducedBy(of: Principal, deviceId: string, now: number = Date.now()): string[] {
    const pins = this.keysOf(of);
    const sources = pins.filter((pin) => pin.deviceId === deviceId);
    const found = new Set<string>();
    for (let by = sources.pop(); by !== undefined; by = sources.pop()) {
      const { keyId } = by;
      for (const pin of pins.filter(({ introducedBy }) => introducedBy === keyId)) {
        sources.push(pin);
        if (!isRetired(pin, now)) found.add(pin.deviceId);
      }
    }
    found.delete(deviceId);
    found.delete("");
    return [...found].sort();
  }

  /**
   * Somebody follows an agent's link, which carries its key. It is remembered until its key is
   * found; until then all keys that nobody verified wait.
   */
  link(agent: Principal, id: string, now: number = Date.now()): Notice[] {
    const entry = this.#changing(agent);
    entry.speaks = true;
    const isNew = entry.linked !== id;
    entry.linked = id;
    if (entry.keys.size === 0) return [];
    const notices = follow(agent, entry, true, now);
    // A link that is followed again takes back no tap.
    if (isNew && entry.linked !== null) notices.push(...holdBack(agent, entry, now));
    return sortNotices(notices);
  }
}

/** As a store keeps it, and the keys that were first seen in this run. */
interface PackedPrincipal extends StoredPrincipal {
  readonly fresh?: readonly string[];
}

function storePrincipal({ keys, speaks, linked }: PrincipalPins): StoredPrincipal {
  return { speaks, linked, keys: [...keys.values()].map(storePin) };
}

function packPrincipal(entry: PrincipalPins): PackedPrincipal {
  const fresh = [...entry.keys.values()].filter(({ fromStore }) => !fromStore);
  return { ...storePrincipal(entry), fresh: fresh.map(({ keyId }) => keyId) };
}

function restorePrincipal({ keys, speaks, linked, fresh = [] }: PackedPrincipal): PrincipalPins {
  const pins = keys.map((pin) => restorePin(pin, !fresh.includes(pin.key_id)));
  return { keys: new Map(pins.map((pin) => [pin.keyId, pin])), speaks, linked };
}

/** Joins what two processes have learned at once. Beside a verified key, all others wait. */
function merge(entry: PrincipalPins, theirs: PrincipalPins): void {
  for (const [id, pin] of theirs.keys) {
    const own = entry.keys.get(id);
    if (own) mergePin(own, pin);
    else entry.keys.set(id, pin);
  }
  entry.speaks ||= theirs.speaks;
  entry.linked ??= theirs.linked;
  if (verified(entry).length === 0) return;
  for (const pin of entry.keys.values()) {
    if (pin.standing !== "verified") [pin.standing, pin.introducedBy] = ["waiting", null];
  }
}

function verified(entry: PrincipalPins): Pin[] {
  return [...entry.keys.values()].filter(({ standing }) => standing === "verified");
}

/** The keys that a safety number stands for. */
function compared(pins: readonly Pin[], now: number): Pin[] {
  const live = pins.filter((pin) => !isRetired(pin, now));
  const accepted = live.filter((pin) => isAccepted(pin, now));
  return accepted.length > 0 ? accepted : live;
}

/**
 * Verifies the key of the link, or the present one that introductions lead to from it. `isNews`: a
 * person is told if there is no such key.
 */
function follow(of: Principal, entry: PrincipalPins, isNews: boolean, now: number): Notice[] {
  const { linked } = entry;
  if (linked === null) return [];
  const notices = raise(of, entry, [linked], now);
  const isLive = verified(entry).some((pin) => !isRetired(pin, now));
  if (isLive && entry.keys.has(linked)) entry.linked = null;
  else if (isNews) notices.push(notice("link_retired", of, linked));
  return notices;
}

/** Verifies keys and those that they introduced. If any is verified only now, all others wait. */
function raise(
  of: Principal,
  entry: PrincipalPins,
  keys: readonly string[],
  now: number,
): Notice[] {
  const before = verified(entry).length;
  for (const id of keys) {
    const pin = entry.keys.get(id);
    if (pin && !isRetired(pin, now)) pin.standing = "verified";
    spread(entry, id);
  }
  return verified(entry).length > before ? holdBack(of, entry, now) : [];
}

/** A key that a verified one introduced is verified, and so on. */
function spread(entry: PrincipalPins, from: string): void {
  const sources = [from];
  for (let source = sources.pop(); source !== undefined; source = sources.pop()) {
    for (const pin of entry.keys.values()) {
      if (pin.introducedBy !== source || pin.standing !== "introduced") continue;
      pin.standing = "verified";
      sources.push(pin.keyId);
    }
  }
}

/** Lets all keys wait that nobody verified. A verified key may introduce them anew. */
function holdBack(of: Principal, entry: PrincipalPins, now: number): Notice[] {
  const notices: Notice[] = [];
  for (const pin of entry.keys.values()) {
    if (!isAccepted(pin, now) || pin.standing === "verified") continue;
    pin.standing = "waiting";
    pin.introducedBy = null;
    notices.push(notice("waiting_key", of, pin.keyId));
  }
  return sortNotices(notices);
}
