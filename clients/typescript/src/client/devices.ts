/** This device's keys: made, backed up, restored. */
import { base64, equal, fromBase64, hex } from "../e2ee/bytes.js";
import {
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
import type { KeyBackup, StoredDevice } from "../core/types.js";
import type { Account } from "./account.js";

/** What this device holds. */
export interface DeviceKeys {
  readonly signer: KeyPair;
  readonly opening: readonly OpeningKeys[];
}

export class Devices {
  constructor(
    private readonly account: Account,
    private readonly onKeys: (keys: DeviceKeys) => Promise<void>,
  ) {}

  list(): Promise<StoredDevice[]> {
    return this.account.http.data<StoredDevice[]>({ method: "GET", path: "/users/me/devices" });
  }

  /** Revokes a device at once. Its conversations get fresh secrets with the next sends. */
  revoke(deviceId: string): Promise<unknown> {
    return this.account.http.data({ method: "DELETE", path: `/users/me/devices/${deviceId}` });
  }

  /** Makes keys for this device and backs them up. `accountPassword` is refused as protection. */
  async create(
    protectionPassword: string,
    options: { accountPassword?: string } = {},
  ): Promise<void> {
    checkProtectionPassword(protectionPassword, options.accountPassword);
    await this.#setUp(protectionPassword, [], null);
  }

  /**
   * Reads the newest backup that opens. Restored keys open old messages and introduce this device,
   * which gets keys of its own. Throws `bad_ciphertext` for a wrong password.
   */
  async restore(protectionPassword: string): Promise<void> {
    const backups = await this.account.http.data<KeyBackup[]>({ method: "GET", path: "/keys/backup" });
    let fault: unknown = new DecryptError("no_epoch_key");
    for (const backup of backups) {
      try {
        return await this.#restoreFrom(backup, protectionPassword);
      } catch (error) {
        if (!(error instanceof DecryptError)) throw error;
        fault = error;
      }
    }
    throw fault;
  }

  async #restoreFrom(backup: KeyBackup, password: string): Promise<void> {
    const restored = await restoreBackup(password, this.account.userId, backup as BackupFields);
    const pair = await importKeys(restored.secret);
    const earlier = [
      { keyId: pair.keyId, secret: restored.secret.exchange },
      ...restored.earlier,
    ];
    const isOwn = backup.device_id === this.account.deviceId;
    if (isOwn) return this.#hold(restored.secret, restored.earlier);
    await this.#setUp(password, earlier, pair);
  }

  async #setUp(
    password: string,
    earlier: readonly BackedUpKey[],
    by: KeyPair | null,
  ): Promise<void> {
    const { deviceId } = this.account;
    const secret = generatePrivateKeys();
    const fields = await makeBackup(password, this.account.userId, deviceId, secret, earlier);
    const introduction = by ? await this.#introduce(by, deviceId, fields) : null;
    await this.account.http.data({
      method: "POST",
      path: "/keys/backup",
      body: { ...fields, schemes: ["bp1"], ...(introduction ? { introduction } : {}) },
    });
    await this.#hold(secret, earlier);
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

  async #hold(secret: PrivateKeys, earlier: readonly BackedUpKey[]): Promise<void> {
    const signer = await importKeys(secret);
    const others = earlier.filter((key) => !equal(key.keyId, signer.keyId));
    const restored = await Promise.all(others.map((key) => importOpeningKey(key.keyId, key.secret)));
    await this.onKeys({ signer, opening: [signer, ...restored] });
  }
}
