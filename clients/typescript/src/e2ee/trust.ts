/** Pins: which keys are believed, and whose new keys wait for a tap. */
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

/**
 * `known`: a first key, or confirmed by a person. `introduced`: signed by such a one. `verified`:
 * compared by people, or introduced by a verified one. `waiting`: nothing is believed or given.
 */
export type Trust = "known" | "introduced" | "verified" | "waiting";

/** `tofu` accepts first keys; `strict` lets them wait too. */
export type TrustPolicy = "tofu" | "strict";

/** A key as the directory shows it. */
export interface DirectoryKey extends PublicKeys {
  /** Absent for an agent. */
  readonly deviceId?: string | undefined;
  readonly schemes?: readonly string[] | undefined;
  readonly introduction?: Introduction | undefined;
  /** The directory itself says that this key is of the past. */
  readonly retired?: boolean | undefined;
}

export interface Pin extends PublicKeys {
  readonly keyId: string;
  readonly deviceId: string;
  trust: Trust;
  retired: boolean;
  /** The inbox number at which the key was seen to have left; live messages after it are refused. */
  retiredAt: number | null;
  /** Seen before this start of the program. */
  readonly fromStore: boolean;
}

export type KeyNotice =
  | { readonly type: "key_waiting"; readonly principal: Principal; readonly keyId: string }
  | { readonly type: "key_unusable"; readonly principal: Principal; readonly deviceId: string }
  | { readonly type: "key_retired"; readonly principal: Principal; readonly keyId: string }
  | { readonly type: "key_returned"; readonly principal: Principal; readonly keyId: string };

interface PrincipalPins {
  readonly keys: Map<string, Pin>;
  speaks: boolean;
  listVersion: number;
}

/** Pins as a store keeps them. */
export interface StoredPins {
  readonly principals: Record<
    string,
    {
      readonly speaks: boolean;
      readonly list_version: number;
      readonly keys: readonly {
        readonly public_key: string;
        readonly signing_public_key: string;
        readonly key_id: string;
        readonly device_id: string;
        readonly trust: Trust;
        readonly retired: boolean;
      }[];
    }
  >;
}

export class Pins {
  readonly #principals = new Map<string, PrincipalPins>();

  constructor(readonly policy: TrustPolicy = "tofu") {}

  static restore(stored: StoredPins, policy: TrustPolicy = "tofu"): Pins {
    const pins = new Pins(policy);
    for (const [name, entry] of Object.entries(stored.principals)) {
      const keys = entry.keys.map((key): [string, Pin] => [key.key_id, {
        keyId: key.key_id,
        publicKey: fromBase64(key.public_key),
        signingPublicKey: fromBase64(key.signing_public_key),
        deviceId: key.device_id,
        trust: key.trust,
        retired: key.retired,
        retiredAt: null,
        fromStore: true,
      }]);
      pins.#principals.set(name, {
        keys: new Map(keys),
        speaks: entry.speaks,
        listVersion: entry.list_version,
      });
    }
    return pins;
  }

  store(): StoredPins {
    const principals: Record<string, StoredPins["principals"][string]> = {};
    for (const [name, entry] of this.#principals) {
      const keys = [...entry.keys.values()].map((pin) => ({
        public_key: base64(pin.publicKey),
        signing_public_key: base64(pin.signingPublicKey),
        key_id: pin.keyId,
        device_id: pin.deviceId,
        trust: pin.trust,
        retired: pin.retired,
      }));
      principals[name] = { speaks: entry.speaks, list_version: entry.listVersion, keys };
    }
    return { principals };
  }

  #of(principal: Principal): PrincipalPins {
    const name = principalName(principal);
    let entry = this.#principals.get(name);
    if (!entry) {
      entry = { keys: new Map(), speaks: false, listVersion: 0 };
      this.#principals.set(name, entry);
    }
    return entry;
  }

  /**
   * Takes a whole list of the directory. `position` is the inbox number that the list is not older
   * than; a key that is missing counts as retired from there on.
   */
  async observe(
    principal: Principal,
    list: readonly DirectoryKey[],
    position: number | null = null,
    listVersion = 0,
  ): Promise<KeyNotice[]> {
    const entry = this.#of(principal);
    const isFirst = entry.keys.size === 0;
    const notices: KeyNotice[] = [];
    const listed = new Map<string, DirectoryKey>();
    for (const key of list) {
      if (await isUsable(key)) listed.set(hex(await keyId(key)), key);
      else notices.push({ type: "key_unusable", principal, deviceId: key.deviceId ?? "" });
      if (key.schemes?.includes("bp1")) entry.speaks = true;
    }
    // Before anything left is retired: its introductions count while it is not seen to have left.
    const fresh = [...listed].filter(([id]) => !entry.keys.has(id));
    await this.#add(principal, entry, fresh, isFirst);
    this.#noticeNew(principal, entry, fresh, notices);
    this.#retire(principal, entry, listed, position, notices);
    entry.listVersion = Math.max(entry.listVersion, listVersion);
    return notices;
  }

  async #add(
    principal: Principal,
    entry: PrincipalPins,
    fresh: readonly [string, DirectoryKey][],
    isFirst: boolean,
  ): Promise<void> {
    for (const [id, key] of fresh) {
      const trust = isFirst && this.policy === "tofu" ? "known" : "waiting";
      entry.keys.set(id, {
        keyId: id,
        publicKey: key.publicKey,
        signingPublicKey: key.signingPublicKey,
        deviceId: key.deviceId ?? "",
        trust,
        retired: key.retired ?? false,
        retiredAt: null,
        fromStore: false,
      });
    }
    if (!isFirst) await this.#followIntroductions(principal, entry, fresh);
  }

  /** An introduced key introduces others, so this goes on until nothing changes. */
  async #followIntroductions(
    principal: Principal,
    entry: PrincipalPins,
    fresh: readonly [string, DirectoryKey][],
  ): Promise<void> {
    for (let changed = true; changed; ) {
      changed = false;
      for (const [id, key] of fresh) {
        const pin = entry.keys.get(id)!;
        const by = key.introduction && entry.keys.get(hex(key.introduction.byKeyId));
        const counts = by && by.trust !== "waiting" && !by.retired;
        if (pin.trust !== "waiting" || pin.retired || !counts) continue;
        const { signature } = key.introduction!;
        if (!(await verifyIntroduction(by, principal, pin.deviceId, pin, signature))) continue;
        pin.trust = by.trust === "verified" ? "verified" : "introduced";
        changed = true;
      }
    }
  }

  #noticeNew(
    principal: Principal,
    entry: PrincipalPins,
    fresh: readonly [string, DirectoryKey][],
    notices: KeyNotice[],
  ): void {
    for (const [id] of fresh) {
      const pin = entry.keys.get(id)!;
      if (pin.trust === "waiting" && !pin.retired) {
        notices.push({ type: "key_waiting", principal, keyId: id });
      }
    }
  }

  #retire(
    principal: Principal,
    entry: PrincipalPins,
    listed: ReadonlyMap<string, DirectoryKey>,
    position: number | null,
    notices: KeyNotice[],
  ): void {
    for (const pin of entry.keys.values()) {
      const key = listed.get(pin.keyId);
      const present = key !== undefined && !key.retired;
      if (!present && !pin.retired) {
        pin.retired = true;
        pin.retiredAt = position;
        notices.push({ type: "key_retired", principal, keyId: pin.keyId });
      } else if (present && pin.retired) {
        // What came back was perhaps brought back by who stole it.
        pin.retired = false;
        pin.retiredAt = null;
        pin.trust = "waiting";
        notices.push({ type: "key_returned", principal, keyId: pin.keyId });
      }
    }
  }

  find(principal: Principal, id: string | Uint8Array): Pin | undefined {
    const name = typeof id === "string" ? id : hex(id);
    return this.#principals.get(principalName(principal))?.keys.get(name);
  }

  keysOf(principal: Principal): Pin[] {
    return [...(this.#principals.get(principalName(principal))?.keys.values() ?? [])];
  }

  listVersion(principal: Principal): number {
    return this.#principals.get(principalName(principal))?.listVersion ?? 0;
  }

  /** Whether anything at all is known of this principal. */
  isKnown(principal: Principal): boolean {
    return this.keysOf(principal).length > 0;
  }

  /** Whether something may be given to this key. */
  isAccepted(principal: Principal, id: string | Uint8Array): boolean {
    const pin = this.find(principal, id);
    return pin !== undefined && pin.trust !== "waiting" && !pin.retired;
  }

  /** The tap: a person takes this key for that principal's. */
  confirm(principal: Principal, id: string): void {
    const pin = this.find(principal, id);
    if (pin && pin.trust === "waiting") pin.trust = "known";
  }

  /** People have compared safety numbers, or followed a link that names the key. */
  markVerified(principal: Principal, id: string): void {
    const pin = this.find(principal, id);
    if (pin) pin.trust = "verified";
  }

  /** `schemes`, a wrap, an envelope or a link with a key_id has said so once; that is kept for ever. */
  noteSpeaks(principal: Principal): void {
    this.#of(principal).speaks = true;
  }

  speaks(principal: Principal): boolean {
    return this.#principals.get(principalName(principal))?.speaks ?? false;
  }
}
