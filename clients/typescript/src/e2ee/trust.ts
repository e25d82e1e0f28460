/** Pins: which keys of whom are known, introduced, verified, waiting for a person, or retired. */
import { base64, fromBase64, hex } from "./bytes.js";
import {
  type Introduction,
  type Principal,
  type PublicKeys,
  isUsable,
  keyId,
  principalName,
  verifyIntroduction,
} from "./keys.js";

/** `tofu` accepts first keys; under `strict` they wait too. */
export type TrustPolicy = "tofu" | "strict";

/**
 * `waiting`: nothing is believed or given. `known`: a first key, or confirmed by a person.
 * `introduced`: signed by an accepted one. `verified`: compared by people, or introduced by such.
 */
export type Standing = "waiting" | "known" | "introduced" | "verified";

const RANK: Readonly<Record<Standing, number>> = {
  waiting: 0,
  known: 1,
  introduced: 2,
  verified: 3,
};

function higher(one: Standing, other: Standing): Standing {
  return RANK[one] >= RANK[other] ? one : other;
}

/** A key as the directory shows it. */
export interface DirectoryKey extends PublicKeys {
  /** Absent for an agent. */
  readonly deviceId?: string | undefined;
  readonly schemes?: readonly string[] | undefined;
  readonly introduction?: Introduction | undefined;
  /** The directory itself says that this key is of the past. */
  readonly retired?: boolean | undefined;
  /** Since when, in Unix milliseconds by the server's clock. */
  readonly retiredAt?: number | undefined;
}

export interface Pin extends PublicKeys {
  readonly keyId: string;
  readonly deviceId: string;
  standing: Standing;
  retired: boolean;
  /** The server's time of its leaving; null if it was not told. */
  retiredAt: number | null;
  introducedBy: string | null;
  /** Seen before this start of the program. */
  readonly fromStore: boolean;
}

export function isAccepted(pin: Pin): boolean {
  return !pin.retired && pin.standing !== "waiting";
}

/** In the order in which notices stand. */
const NOTICE_KINDS = [
  "introduced_key",
  "waiting_key",
  "unusable_key",
  "retired_key",
  "returned_key",
  "own_list_key",
  "link_retired",
  "member_added",
  "member_removed",
  "agent_sees_all",
  "not_member",
  "other_secret_before",
  "other_secret",
  "other_time",
  "not_encrypted",
  "no_quote",
] as const;

export type NoticeKind = (typeof NOTICE_KINDS)[number];

/** Something that the person is told. */
export interface Notice {
  readonly kind: NoticeKind;
  readonly about: Principal;
  readonly keyId: string | null;
}

export function notice(kind: NoticeKind, about: Principal, id: string | null = null): Notice {
  return { kind, about, keyId: id };
}

export function sortNotices(notices: Notice[]): Notice[] {
  const name = (one: Notice): string => `${principalName(one.about)}${one.keyId ?? ""}`;
  const rank = (one: Notice): number => NOTICE_KINDS.indexOf(one.kind);
  return notices.sort(
    (one, other) => rank(one) - rank(other) || (name(one) < name(other) ? -1 : 1),
  );
}

interface PrincipalPins {
  readonly keys: Map<string, Pin>;
  speaks: boolean;
  /** The key of a link that was followed before the directory showed it. */
  linked: string | null;
}

interface StoredPin {
  readonly key_id: string;
  readonly public_key: string;
  readonly signing_public_key: string;
  readonly device_id: string;
  readonly standing: Standing;
  readonly retired: boolean;
  readonly retired_at: number | null;
  readonly introduced_by: string | null;
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
  async directory(of: Principal, list: readonly DirectoryKey[]): Promise<Notice[]> {
    const notices: Notice[] = [];
    const listed: Listed[] = [];
    for (const key of list) {
      if (await isUsable(key)) listed.push([hex(await keyId(key)), key]);
      else notices.push(notice("unusable_key", of));
    }
    const entry = this.#of(of);
    const isFirst = entry.keys.size === 0;
    const isMine = principalName(of) === principalName(this.me);
    this.#retire(of, entry, listed, notices);
    this.#pinFirst(entry, listed, isFirst, isMine);
    await this.#introduce(of, entry, listed, notices);
    this.#pinWaiting(of, entry, listed, isMine, notices);
    if (listed.length > 0 && !this.#verifyLinked(entry) && entry.linked) {
      notices.push(notice("link_retired", of, entry.linked));
      entry.linked = null;
    }
    if (list.some((key) => key.schemes?.includes("bp1"))) entry.speaks = true;
    return sortNotices(notices);
  }

  #retire(of: Principal, entry: PrincipalPins, listed: readonly Listed[], notices: Notice[]): void {
    for (const pin of entry.keys.values()) {
      const here = listed.find(([id]) => id === pin.keyId)?.[1];
      const isHere = here !== undefined && !here.retired;
      if (!pin.retired && !isHere) {
        pin.retired = true;
        pin.retiredAt = here?.retiredAt ?? null;
        notices.push(notice("retired_key", of, pin.keyId));
      } else if (pin.retired && isHere) {
        notices.push(notice("returned_key", of, pin.keyId));
      }
    }
  }

  #pinFirst(
    entry: PrincipalPins,
    listed: readonly Listed[],
    isFirst: boolean,
    isMine: boolean,
  ): void {
    for (const [id, key] of listed) {
      if (entry.keys.has(id)) continue;
      if (isMine && this.#own.has(id)) entry.keys.set(id, newPin(id, key, "verified"));
      if (!isMine && isFirst && this.policy === "tofu")
        entry.keys.set(id, newPin(id, key, "known"));
    }
  }

  /** An introduced key introduces others, so this goes on until nothing changes. */
  async #introduce(
    of: Principal,
    entry: PrincipalPins,
    listed: readonly Listed[],
    notices: Notice[],
  ): Promise<void> {
    for (let hasChanged = true; hasChanged;) {
      hasChanged = false;
      for (const one of listed) {
        const pin = await this.#introduced(of, entry, one);
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

  async #introduced(of: Principal, entry: PrincipalPins, [id, key]: Listed): Promise<Pin | null> {
    const { introduction } = key;
    const before = entry.keys.get(id);
    if (!introduction || key.retired || before?.retired || before?.introducedBy) return null;
    const by = entry.keys.get(hex(introduction.byKeyId));
    if (!by || !isAccepted(by)) return null;
    const device = key.deviceId ?? "";
    if (!(await verifyIntroduction(by, of, device, key, introduction.signature))) return null;
    const earned = by.standing === "verified" ? "verified" : "introduced";
    const pin = newPin(id, key, before ? higher(before.standing, earned) : earned);
    pin.introducedBy = by.keyId;
    return pin;
  }

  #pinWaiting(
    of: Principal,
    entry: PrincipalPins,
    listed: readonly Listed[],
    isMine: boolean,
    notices: Notice[],
  ): void {
    for (const [id, key] of listed) {
      const before = entry.keys.get(id);
      const pin = before ?? newPin(id, key, "waiting");
      if (!before) entry.keys.set(id, pin);
      if (pin.standing !== "waiting" || pin.retired) continue;
      if (isMine) notices.push(notice("own_list_key", of, id));
      else if (!before) notices.push(notice("waiting_key", of, id));
    }
  }

  /** The tap: a person takes this key for that principal's. False for an unknown key. */
  confirm(of: Principal, id: string): boolean {
    const pin = this.find(of, id);
    if (!pin) return false;
    pin.standing = higher(pin.standing, "known");
    pin.retired = false;
    return true;
  }

  /** People have compared safety numbers. */
  verify(of: Principal, id: string): boolean {
    const pin = this.find(of, id);
    if (!pin || pin.retired) return false;
    pin.standing = "verified";
    spread(this.#of(of), id);
    return true;
  }

  /** Somebody follows an agent's link, which carries its key. */
  link(agent: Principal, id: string): Notice[] {
    const entry = this.#of(agent);
    entry.speaks = true;
    entry.linked = id;
    if (entry.keys.size === 0 || this.#verifyLinked(entry)) return [];
    entry.linked = null;
    return [notice("link_retired", agent, id)];
  }

  #verifyLinked(entry: PrincipalPins): boolean {
    const { linked } = entry;
    const pin = linked === null ? undefined : entry.keys.get(linked);
    if (!pin) return false;
    if (!pin.retired) pin.standing = "verified";
    spread(entry, pin.keyId);
    const isFound = [...entry.keys.values()].some(
      (one) => one.standing === "verified" && !one.retired,
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

function newPin(id: string, key: DirectoryKey, standing: Standing): Pin {
  return {
    keyId: id,
    publicKey: key.publicKey,
    signingPublicKey: key.signingPublicKey,
    deviceId: key.deviceId ?? "",
    standing,
    retired: key.retired ?? false,
    retiredAt: key.retiredAt ?? null,
    introducedBy: null,
    fromStore: false,
  };
}

function storePin(pin: Pin): StoredPin {
  return {
    key_id: pin.keyId,
    public_key: base64(pin.publicKey),
    signing_public_key: base64(pin.signingPublicKey),
    device_id: pin.deviceId,
    standing: pin.standing,
    retired: pin.retired,
    retired_at: pin.retiredAt,
    introduced_by: pin.introducedBy,
  };
}

function restorePin(stored: StoredPin): Pin {
  return {
    keyId: stored.key_id,
    publicKey: fromBase64(stored.public_key),
    signingPublicKey: fromBase64(stored.signing_public_key),
    deviceId: stored.device_id,
    standing: stored.standing,
    retired: stored.retired,
    retiredAt: stored.retired_at,
    introducedBy: stored.introduced_by,
    fromStore: true,
  };
}
