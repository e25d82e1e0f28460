/** Trust: which keys of whom are known, introduced, verified, waiting for a person, or retired. */
import { hex } from "./bytes.js";
import { type Principal, isUsable, keyId, principalName, verifyIntroduction } from "./keys.js";
import { type Notice, notice, sortNotices } from "./notices.js";
import {
  type DirectoryKey,
  type Pin,
  type StoredPin,
  higher,
  isAccepted,
  isRetired,
  newPin,
  readEnd,
  restorePin,
  storePin,
} from "./pins.js";

export * from "./notices.js";
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

/** Pins as a store keeps them, for ever. */
export interface StoredPins {
  readonly principals: Readonly<
    Record<string, { speaks: boolean; linked: string | null; keys: readonly StoredPin[] }>
  >;
}

type Listed = readonly [id: string, key: DirectoryKey];

export class Trust {
  readonly #principals = new Map<string, PrincipalPins>();
  readonly #own: Set<string>;

  constructor(
    readonly me: Principal,
    readonly policy: TrustPolicy = "tofu",
    /** Ids of the keys that this client holds. */
    own: Iterable<string> = [],
    stored: StoredPins | null = null,
  ) {
    this.#own = new Set(own);
    for (const [name, entry] of Object.entries(stored?.principals ?? {})) {
      const keys = new Map(entry.keys.map((pin) => [pin.key_id, restorePin(pin)]));
      this.#principals.set(name, { keys, speaks: entry.speaks, linked: entry.linked });
    }
  }

  /** Keys that this client got since. */
  own(ids: Iterable<string>): void {
    for (const id of ids) this.#own.add(id);
  }

  store(): StoredPins {
    const entries = [...this.#principals].map(([name, { keys, speaks, linked }]) => [
      name,
      { speaks, linked, keys: [...keys.values()].map(storePin) },
    ]);
    return { principals: Object.fromEntries(entries) as StoredPins["principals"] };
  }

  #of(principal: Principal): PrincipalPins {
    const name = principalName(principal);
    let entry = this.#principals.get(name);
    if (!entry)
      this.#principals.set(name, (entry = { keys: new Map(), speaks: false, linked: null }));
    return entry;
  }

  find(principal: Principal, id: string | Uint8Array): Pin | undefined {
    const name = typeof id === "string" ? id : hex(id);
    return this.#principals.get(principalName(principal))?.keys.get(name);
  }

  keysOf(principal: Principal): Pin[] {
    return [...(this.#principals.get(principalName(principal))?.keys.values() ?? [])];
  }

  isKnown(principal: Principal): boolean {
    return this.keysOf(principal).length > 0;
  }

  speaks(principal: Principal): boolean {
    return this.#principals.get(principalName(principal))?.speaks ?? false;
  }

  /** `schemes`, a wrap, an envelope or a link has said so once; that is kept for ever. */
  heard(principal: Principal): void {
    this.#of(principal).speaks = true;
  }

  /** Takes a whole list of the directory. */
  async directory(
    of: Principal,
    list: readonly DirectoryKey[],
    now: number = Date.now(),
  ): Promise<Notice[]> {
    const notices: Notice[] = [];
    const listed: Listed[] = [];
    for (const key of list) {
      if (await isUsable(key)) listed.push([hex(await keyId(key)), key]);
      else notices.push(notice("unusable_key", of));
    }
    const entry = this.#of(of);
    const isFirst = entry.keys.size === 0;
    const isMine = principalName(of) === principalName(this.me);
    for (const pin of entry.keys.values()) {
      const shown = listed.find(([id]) => id === pin.keyId)?.[1];
      const kind = readEnd(pin, shown, now);
      if (kind) notices.push(notice(kind, of, pin.keyId));
    }
    this.#pinFirst(entry, listed, isFirst, isMine, now);
    await this.#introduce(of, entry, listed, notices, now);
    this.#pinWaiting(of, entry, listed, isMine, notices, now);
    if (listed.length > 0 && !this.#verifyLinked(entry, now) && entry.linked) {
      notices.push(notice("link_retired", of, entry.linked));
      entry.linked = null;
    }
    if (list.some((key) => key.schemes?.includes("bp1"))) entry.speaks = true;
    return sortNotices(notices);
  }

  #pinFirst(
    entry: PrincipalPins,
    listed: readonly Listed[],
    isFirst: boolean,
    isMine: boolean,
    now: number,
  ): void {
    for (const [id, key] of listed) {
      if (entry.keys.has(id)) continue;
      if (isMine && this.#own.has(id)) entry.keys.set(id, newPin(id, key, "verified", now));
      if (!isMine && isFirst && this.policy === "tofu")
        entry.keys.set(id, newPin(id, key, "known", now));
    }
  }

  /** An introduced key introduces others, so this goes on until nothing changes. */
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
    pin.standing = higher(pin.standing, "known");
    pin.retired = false;
    if (pin.retiredAt !== null && pin.retiredAt <= now) pin.retiredAt = null;
    return true;
  }

  /** People have compared safety numbers. */
  verify(of: Principal, id: string, now: number = Date.now()): boolean {
    const pin = this.find(of, id);
    if (!pin || isRetired(pin, now)) return false;
    pin.standing = "verified";
    spread(this.#of(of), id);
    return true;
  }

  /** Somebody follows an agent's link, which carries its key. */
  link(agent: Principal, id: string, now: number = Date.now()): Notice[] {
    const entry = this.#of(agent);
    entry.speaks = true;
    entry.linked = id;
    if (entry.keys.size === 0 || this.#verifyLinked(entry, now)) return [];
    entry.linked = null;
    return [notice("link_retired", agent, id)];
  }

  #verifyLinked(entry: PrincipalPins, now: number): boolean {
    const { linked } = entry;
    const pin = linked === null ? undefined : entry.keys.get(linked);
    if (!pin) return false;
    if (!isRetired(pin, now)) pin.standing = "verified";
    spread(entry, pin.keyId);
    const isFound = [...entry.keys.values()].some(
      (one) => one.standing === "verified" && !isRetired(one, now),
    );
    if (isFound) entry.linked = null;
    return isFound;
  }
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

