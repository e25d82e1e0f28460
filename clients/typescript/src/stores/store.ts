/** Where a person's device keeps what it must not forget. */
import type { StoredSession } from "../client/account.js";
import type { ConsentStore } from "../client/tool-requests.js";
import { base64, fromBase64 } from "../e2ee/bytes.js";
import { UsageError } from "../e2ee/errors.js";
import type { BackedUpKey } from "../e2ee/backup.js";
import type { PrivateKeys } from "../e2ee/keys.js";
import type { HandledStore, LoadedTrust } from "./pin-store.js";

/** Whose device it is. */
export interface StoreOwner {
  readonly userId: string;
  readonly deviceId: string;
}

/** A store was given that somebody else has used. */
export class OtherOwner extends UsageError {
  constructor() {
    super("this store is of another person or another device");
  }
}

/**
 * Keeps pins, marks, consents, and the messages that were shown within 31 days. Nothing of it is a
 * key or a text. A store is for a single process, or for the tabs of a browser.
 */
export interface Store extends Omit<HandledStore, "load">, ConsentStore {
  /**
   * The first call. All pins and marks, each as it was saved last; null at the first start. Nothing
   * of another person or device is given. Rejects where only one of them has a place, and it is
   * another's.
   */
  load(owner: StoreOwner): Promise<LoadedTrust | null>;
}

/** A store that keeps the sign-in and the device's private keys too. */
export interface DeviceStore extends Store {
  /** As it was saved last; null at the first start. */
  loadDevice(): Promise<DeviceState | null>;
  /** Takes the place of what was saved before. Resolves once it is durable. */
  saveDevice(device: DeviceState): Promise<void>;
}

/** A sign-in, and the private keys of its device. Keep it as you keep a password. */
export interface DeviceState {
  readonly session: StoredSession;
  /** Null before the device has keys. */
  readonly keys: StoredKeys | null;
}

/** Private keys in base64. */
export interface StoredKeys {
  readonly exchange: string;
  readonly signing_seed: string;
  /** Earlier keys, which open what was wrapped for them; by their ids. */
  readonly earlier: readonly { readonly key_id: string; readonly exchange: string }[];
}

export function keepsDevice(store: Store | null): store is DeviceStore {
  return store !== null && "loadDevice" in store && "saveDevice" in store;
}

/** The private keys of a device, with those of before. */
export interface HeldKeys {
  readonly secret: PrivateKeys;
  readonly earlier: readonly BackedUpKey[];
}

export function storeKeys({ secret, earlier }: HeldKeys): StoredKeys {
  return {
    exchange: base64(secret.exchange),
    signing_seed: base64(secret.signingSeed),
    earlier: earlier.map((key) => ({ key_id: base64(key.keyId), exchange: base64(key.secret) })),
  };
}

export function restoreKeys({ exchange, signing_seed, earlier }: StoredKeys): HeldKeys {
  return {
    secret: { exchange: fromBase64(exchange), signingSeed: fromBase64(signing_seed) },
    earlier: earlier.map((key) => ({
      keyId: fromBase64(key.key_id),
      secret: fromBase64(key.exchange),
    })),
  };
}
