/** This device's keys: made, backed up, restored. */
import { base64, equal, fromBase64, hex } from "../e2ee/bytes.js";
import {
  type Argon2Costs,
  type BackedUpKey,
  type BackupFields,
  checkProtectionPassword,
  makeBackup,
  restoreBackup,
} from "../e2ee/backup.js";
import { DecryptError } from "../e2ee/errors.js";
import {
  type Introduction,
  type KeyPair,
  type OpeningKeys,
  type PrivateKeys,
  generatePrivateKeys,
  importKeys,
  importOpeningKey,
  introduce,
} from "../e2ee/keys.js";
import type { KeyBackup, KeyDirectory, StoredDevice } from "../core/types.js";
import type { components } from "../generated/openapi.js";
import type { HeldKeys } from "../stores/store.js";
import type { Account } from "./account.js";

type Schemas = components["schemas"];

/** The keys that this device holds. */
export interface DeviceKeys {
  readonly signer: KeyPair;
  readonly opening: readonly OpeningKeys[];
}

export interface CreateOptions {
  /** It is refused as protection: the server sees it. */
  readonly accountPassword?: string | undefined;
  /** Costs of a guess, within the bounds of the scheme. Cheaper ones are for tests. */
  readonly costs?: Argon2Costs | undefined;
}

export interface DeviceEvents {
  readonly onKeys: (keys: DeviceKeys) => void;
  /** New or restored private keys, for a store. */
  readonly onPrivateKeys: (keys: HeldKeys) => Promise<void>;
  readonly onRevoked: () => Promise<void>;
  readonly introducedBy: (deviceId: string) => Promise<string[]>;
  readonly onWithdraw: (agentId: string, scope: string | null) => Promise<void>;
  /** The backup that was restored is not of the key that the directory shows for its device. */
  readonly onOldBackup: (keyId: string) => void;
}

/** A subscription as `PushSubscription.toJSON()` of a browser gives it. */
export interface PushTarget {
  readonly endpoint: string;
  readonly keys: { readonly p256dh: string; readonly auth: string };
}

export class Devices {
  constructor(
    private readonly account: Account,
    private readonly events: DeviceEvents,
  ) {}

  async list(): Promise<StoredDevice[]> {
    const devices: StoredDevice[] = [];
    const pages = this.account.http.pages<StoredDevice>("/users/me/devices");
    for await (const device of pages) devices.push(device);
    return devices;
  }

  /** The devices that are connected now. */
  async online(): Promise<string[]> {
    return (await this.list()).filter((device) => device.online).map((device) => device.device_id);
  }

  /**
   * The other devices whose keys `deviceId` introduced, directly or by another one: after a theft,
   * these may be the thief's. This device is not among them.
   */
  async introducedBy(deviceId: string): Promise<string[]> {
    const found = await this.events.introducedBy(deviceId);
    return found.filter((id) => id !== this.account.deviceId);
  }

  /**
   * Revokes a device at once, and also those that `introducedBy()` names if asked to. The
   * conversations of the last 7 days get fresh secrets now, and all others with the next send.
   */
  async revoke(
    deviceId: string,
    { withIntroduced = false }: { readonly withIntroduced?: boolean } = {},
  ): Promise<void> {
    const others = withIntroduced ? await this.introducedBy(deviceId) : [];
    for (const other of others) await this.revoke(other);
    await this.account.http.data({ method: "DELETE", path: `/users/me/devices/${deviceId}` });
    if (deviceId !== this.account.deviceId) await this.events.onRevoked();
  }

  /** The server's key in base64url, which a browser takes as `applicationServerKey`. */
  async pushKey(): Promise<string> {
    const call = { method: "GET", path: "/push/key" } as const;
    return (await this.account.http.data<Schemas["PushKey"]>(call)).public_key;
  }

  /**
   * Lets the server wake this device through a push service. The service learns when something
   * waits, and never what. The subscription ends with the session, so call this at each start.
   */
  subscribe(
    target: PushTarget,
    kind: Schemas["PushKind"] = "webpush",
  ): Promise<Schemas["PushSubscription"]> {
    const { endpoint, keys } = target;
    const body = { kind, endpoint, p256dh: keys.p256dh, auth: keys.auth };
    return this.account.http.data({ method: "PUT", path: this.#pushPath(), body });
  }

  /** The subscription of this device or another one. Its `last_error` is a word or null. */
  subscription(deviceId?: string): Promise<Schemas["PushSubscription"]> {
    return this.account.http.data({ method: "GET", path: this.#pushPath(deviceId) });
  }

  /** Ends the pushes to this device or another one. */
  async unsubscribe(deviceId?: string): Promise<void> {
    await this.account.http.data({ method: "DELETE", path: this.#pushPath(deviceId) });
  }

  #pushPath(deviceId = this.account.deviceId): string {
    return `/users/me/devices/${deviceId}/push`;
  }

  /**
   * Forgets on this device what the person approved of an agent: of one scope, or everything. From
   * now on each of its requests asks.
   */
  withdraw(agentId: string, scope: string | null = null): Promise<void> {
    return this.events.onWithdraw(agentId, scope);
  }

  /**
   * Goes on with keys that an earlier run has kept. Browsers keep them in IndexedDB as they are:
   * no script reads their bytes.
   */
  useKeys(keys: DeviceKeys): void {
    this.events.onKeys(keys);
  }

  /**
   * Makes keys for this device and backs them up. The account's password is refused as protection,
   * since the server sees that one.
   */
  async create(protectionPassword: string, options: CreateOptions = {}): Promise<DeviceKeys> {
    const isSeen = await this.account.isPassword(protectionPassword);
    checkProtectionPassword(
      protectionPassword,
      isSeen ? protectionPassword : options.accountPassword,
    );
    return this.#setUp(protectionPassword, [], null, options.costs);
  }

  /**
   * Reads the newest backup that opens, those of keys that the directory shows first. Restored keys
   * open old messages and introduce this device, which gets keys of its own. The hook `key_changed`
   * is told of an old backup as `old_backup`: it opens less, signs nothing and introduces nobody.
   * Throws `wrong_key` for another password.
   */
  async restore(protectionPassword: string): Promise<DeviceKeys> {
    const backups = await this.account.http.data<KeyBackup[]>({
      method: "GET",
      path: "/keys/backup",
    });
    const shown = await this.#shown();
    const isShown = (backup: KeyBackup): boolean => shown.some((key) => isOf(key, backup));
    const shownFirst = [...backups].sort((one, other) => +isShown(other) - +isShown(one));
    let fault: unknown = new DecryptError("no_epoch_key");
    for (const backup of shownFirst) {
      try {
        return await this.#restoreFrom(backup, protectionPassword, !isShown(backup));
      } catch (error) {
        if (!(error instanceof DecryptError)) throw error;
        fault = error;
      }
    }
    throw fault;
  }

  async #restoreFrom(
    backup: KeyBackup,
    password: string,
    isOld: boolean,
  ): Promise<DeviceKeys> {
    const restored = await restoreBackup(password, this.account.userId, backup as BackupFields);
    const pair = await importKeys(restored.secret);
    const earlier = [{ keyId: pair.keyId, secret: restored.secret.exchange }, ...restored.earlier];
    if (isOld) this.events.onOldBackup(hex(pair.keyId));
    // Somebody else may hold a key that was replaced.
    if (isOld) return this.#setUp(password, earlier, null);
    const isOwn = backup.device_id === this.account.deviceId;
    if (isOwn) return this.#hold(restored.secret, restored.earlier);
    return this.#setUp(password, earlier, pair);
  }

  /** This person's keys, as the directory shows them. */
  async #shown(): Promise<KeyDirectory["devices"]> {
    const path = `/keys/users/${this.account.userId}/devices`;
    return (await this.account.http.data<KeyDirectory>({ method: "GET", path })).devices;
  }

  async #setUp(
    password: string,
    earlier: readonly BackedUpKey[],
    by: KeyPair | null,
    costs?: Argon2Costs,
  ): Promise<DeviceKeys> {
    const { deviceId } = this.account;
    const secret = generatePrivateKeys();
    const fields = await makeBackup(
      password,
      this.account.userId,
      deviceId,
      secret,
      earlier,
      costs,
    );
    const introduction = by ? await this.#introduce(by, deviceId, fields) : null;
    await this.account.http.data({
      method: "POST",
      path: "/keys/backup",
      body: { ...fields, schemes: ["bp1"], ...(introduction ? { introduction } : {}) },
    });
    return this.#hold(secret, earlier);
  }

  async #introduce(
    by: KeyPair,
    deviceId: string,
    fields: BackupFields,
  ): Promise<{ by_key_id: string; signature: string }> {
    const keys = {
      publicKey: fromBase64(fields.public_key),
      signingPublicKey: fromBase64(fields.signing_public_key),
    };
    const self = { type: "user", id: this.account.userId } as const;
    const { byKeyId, signature }: Introduction = await introduce(by, self, deviceId, keys);
    return { by_key_id: hex(byKeyId), signature: base64(signature) };
  }

  async #hold(secret: PrivateKeys, earlier: readonly BackedUpKey[]): Promise<DeviceKeys> {
    const keys = await importHeld({ secret, earlier });
    this.useKeys(keys);
    await this.events.onPrivateKeys({ secret, earlier });
    return keys;
  }
}

/** The keys as a client holds them, which no script reads back. */
export async function importHeld({ secret, earlier }: HeldKeys): Promise<DeviceKeys> {
  const signer = await importKeys(secret);
  const others = earlier.filter((key) => !equal(key.keyId, signer.keyId));
  const restored = await Promise.all(others.map((key) => importOpeningKey(key.keyId, key.secret)));
  return { signer, opening: [signer, ...restored] };
}

/** Whether the directory shows both halves of a backup's key for the backup's device. */
function isOf(key: KeyDirectory["devices"][number], backup: KeyBackup): boolean {
  return (
    key.device_id === backup.device_id &&
    key.public_key === backup.public_key &&
    key.signing_public_key === backup.signing_public_key
  );
}
