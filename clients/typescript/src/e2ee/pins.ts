/** Pins: a key that a client was shown, with its standing and its end. */
import { base64, fromBase64 } from "./bytes.js";
import type { Introduction, PublicKeys } from "./keys.js";

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

export function higher(one: Standing, other: Standing): Standing {
  return RANK[one] >= RANK[other] ? one : other;
}

/** A key as the directory shows it. */
export interface DirectoryKey extends PublicKeys {
  /** Absent for an agent. */
  readonly deviceId?: string | undefined;
  readonly schemes?: readonly string[] | undefined;
  readonly introduction?: Introduction | undefined;
  /** It is of the past, also if no time of that is told. */
  readonly retired?: boolean | undefined;
  /** Its end, in Unix milliseconds by the server's clock; it may lie ahead. */
  readonly retiredAt?: number | undefined;
}

export interface Pin extends PublicKeys {
  readonly keyId: string;
  readonly deviceId: string;
  standing: Standing;
  /** It left the directory, as far as this client has read: see `isRetired`. */
  retired: boolean;
  /** The server's time of its end, which may lie ahead; null if it was not told. */
  retiredAt: number | null;
  introducedBy: string | null;
  /** Seen before this start of the program. */
  readonly fromStore: boolean;
}

/** Whether a key left the directory, or its end has passed since. */
export function isRetired(
  { retired, retiredAt }: Pick<DirectoryKey, "retired"> & { retiredAt?: number | null | undefined },
  now: number,
): boolean {
  return retired === true || (retiredAt != null && retiredAt <= now);
}

/** Whether something new may be wrapped for it and believed from it. */
export function isAccepted(pin: Pin, now: number): boolean {
  return !isRetired(pin, now) && pin.standing !== "waiting";
}

/** Takes over what the directory says of a key; the answer is what a person is to be told. */
export function readEnd(
  pin: Pin,
  shown: DirectoryKey | undefined,
  now: number,
): "retired_key" | "returned_key" | null {
  const wasRetired = isRetired(pin, now);
  const isShown = shown !== undefined && !isRetired(shown, now);
  const hasLeft = !isShown && !pin.retired;
  const told = shown?.retiredAt ?? null;
  const before = pin.retiredAt;
  const passed = (end: number | null): number | null => (end !== null && end <= now ? end : null);
  pin.retired = wasRetired || !isShown;
  // A key that has left lets nothing in by an end that lies ahead.
  pin.retiredAt = pin.retired ? (passed(told) ?? passed(before)) : told;
  if (hasLeft) return "retired_key";
  return wasRetired && isShown ? "returned_key" : null;
}

export interface StoredPin {
  readonly key_id: string;
  readonly public_key: string;
  readonly signing_public_key: string;
  readonly device_id: string;
  readonly standing: Standing;
  readonly retired: boolean;
  readonly retired_at: number | null;
  readonly introduced_by: string | null;
}

export function newPin(id: string, key: DirectoryKey, standing: Standing, now: number): Pin {
  return {
    keyId: id,
    publicKey: key.publicKey,
    signingPublicKey: key.signingPublicKey,
    deviceId: key.deviceId ?? "",
    standing,
    retired: isRetired(key, now),
    retiredAt: key.retiredAt ?? null,
    introducedBy: null,
    fromStore: false,
  };
}

/** Joins what two processes have learned of a key at once. In doubt it waits, or has left. */
export function mergePin(own: Pin, other: Pin): void {
  const isVerified = own.standing === "verified" || other.standing === "verified";
  const lower = RANK[own.standing] <= RANK[other.standing] ? own.standing : other.standing;
  own.standing = isVerified ? "verified" : lower;
  own.retired ||= other.retired;
  own.introducedBy ??= other.introducedBy;
  const ends = [own.retiredAt, other.retiredAt].filter((end) => end !== null);
  own.retiredAt = ends.length > 0 ? Math.min(...ends) : null;
}

export function storePin(pin: Pin): StoredPin {
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

export function restorePin(stored: StoredPin, fromStore: boolean): Pin {
  return {
    keyId: stored.key_id,
    publicKey: fromBase64(stored.public_key),
    signingPublicKey: fromBase64(stored.signing_public_key),
    deviceId: stored.device_id,
    standing: stored.standing,
    retired: stored.retired,
    retiredAt: stored.retired_at,
    introducedBy: stored.introduced_by,
    fromStore,
  };
}
