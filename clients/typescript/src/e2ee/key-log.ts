/** Leaves of the key log, and the hash of a principal's key list. */
import { type Bytes, compare, concat, label, lp, u16, u32, u8 } from "./bytes.js";
import { type Principal, type PublicKeys, principalBytes } from "./keys.js";
import { sha256 } from "./primitives.js";

export interface ListedKey extends PublicKeys {
  readonly deviceId: string;
  readonly schemes: readonly string[];
}

export function logLabel(principal: Principal): Promise<Bytes> {
  return sha256(label("log-label"), principalBytes(principal));
}

/** The whole list of keys that are not retired, chained to the list before. */
export function keysHash(before: Uint8Array, keys: readonly ListedKey[]): Promise<Bytes> {
  const entries = keys.map((key) =>
    concat(
      lp(key.deviceId),
      key.publicKey,
      key.signingPublicKey,
      lp([...key.schemes].sort().join(",")),
    ),
  );
  return sha256(label("log-keys"), before, u16(keys.length), ...entries.sort(compare));
}

export function logLeaf(labelHash: Uint8Array, listVersion: number, hash: Uint8Array): Bytes {
  return concat(u8(1), labelHash, u32(listVersion), hash);
}

/** RFC 6962's hash of a leaf. */
export function leafHash(leaf: Uint8Array): Promise<Bytes> {
  return sha256(u8(0), leaf);
}
