/** Key backups under a protection password. */
import {
  type Bytes,
  base64,
  concat,
  EMPTY,
  equal,
  fromBase64,
  label,
  lp,
  random,
  u32,
  u8,
  idBytes,
} from "./bytes.js";
import { DecryptError, UsageError } from "./errors.js";
import { type PrivateKeys, type PublicKeys, keyId } from "./keys.js";
import { gcmOpen, gcmSeal, hkdf, publicHalf } from "./primitives.js";

export interface Argon2Costs {
  /** KiB of memory. */
  readonly m: number;
  readonly t: number;
  readonly p: number;
}

export const DEFAULT_COSTS: Argon2Costs = { m: 65_536, t: 3, p: 1 };
const MAX_BACKUP_KEYS = 160;
const GENERATED_CHARACTERS = 24;
const MIN_CHOSEN_CHARACTERS = 12;

/** A server could ask for costs that guess easily, or that no device can pay. */
export function isWithinBounds({ m, t, p }: Argon2Costs): boolean {
  const fits = m >= 19_456 && m <= 1_048_576 && t >= 2 && t <= 10 && p >= 1 && p <= 16;
  return [m, t, p].every(Number.isInteger) && fits;
}

function checkCosts(costs: Argon2Costs): void {
  if (!isWithinBounds(costs)) throw new UsageError("these Argon2 costs are refused");
}

/** The key of a backup. Argon2id is loaded only here. */
export async function backupKey(
  password: string,
  salt: Uint8Array,
  costs: Argon2Costs,
): Promise<Bytes> {
  checkCosts(costs);
  const { argon2id } = await import("hash-wasm");
  const hash = await argon2id({
    password: password.normalize("NFKC"),
    salt,
    memorySize: costs.m,
    iterations: costs.t,
    parallelism: costs.p,
    hashLength: 32,
    outputType: "binary",
  });
  return Uint8Array.from(hash);
}

/** A password that needs no judgement: 120 random bits in 24 characters. */
export function generateProtectionPassword(): string {
  const alphabet = "abcdefghijklmnopqrstuvwxyz234567";
  return [...random(GENERATED_CHARACTERS)].map((byte) => alphabet[byte & 31]).join("");
}

/** Refuses what is short, and the account's password: the server sees that one. */
export function checkProtectionPassword(chosen: string, accountPassword?: string): void {
  if ([...chosen.normalize("NFKC")].length < MIN_CHOSEN_CHARACTERS) {
    throw new UsageError("a protection password has 12 characters or more");
  }
  if (
    accountPassword !== undefined &&
    chosen.normalize("NFKC") === accountPassword.normalize("NFKC")
  ) {
    throw new UsageError(
      "the protection password must not be the account's: the server sees that one",
    );
  }
}

/** The place that a backup is bound to. */
export interface BackupPlace {
  readonly userId: string;
  readonly deviceId: string;
  readonly keys: PublicKeys;
  readonly costs: Argon2Costs;
}

type Role = "a" | "b";

/** A private key and the id of the pair that it belongs to. */
export interface BackedUpKey {
  readonly keyId: Bytes;
  readonly secret: Bytes;
}

function backupAad(role: Role, place: BackupPlace): Bytes {
  return concat(
    label("backup-aad"),
    new TextEncoder().encode(role),
    idBytes(place.userId),
    lp(place.deviceId),
    place.keys.publicKey,
    place.keys.signingPublicKey,
    u32(place.costs.m),
    u32(place.costs.t),
    u32(place.costs.p),
  );
}

function roleKey(kek: Uint8Array, role: Role): Promise<Bytes> {
  return hkdf(kek, EMPTY, concat(label("backup"), new TextEncoder().encode(role)), 32);
}

/** Seals a half of a backup. */
export function sealBackup(
  role: Role,
  kek: Uint8Array,
  place: BackupPlace,
  keys: readonly BackedUpKey[],
): Promise<string> {
  return sealBackupWithNonce(role, kek, place, keys, random(12));
}

/** As `sealBackup`, for vectors: a nonce is never used twice. */
export async function sealBackupWithNonce(
  role: Role,
  kek: Uint8Array,
  place: BackupPlace,
  keys: readonly BackedUpKey[],
  nonce: Bytes,
): Promise<string> {
  if (keys.length < 1 || keys.length > MAX_BACKUP_KEYS)
    throw new UsageError("a backup has 1 to 160 keys");
  const list = concat(u8(keys.length), ...keys.flatMap((key) => [key.keyId, key.secret]));
  const sealed = await gcmSeal(await roleKey(kek, role), nonce, list, backupAad(role, place));
  return base64(concat(u8(1), nonce, sealed));
}

/** Opens one half. Every failure is `wrong_key`, as for a wrong password. */
export async function openBackup(
  role: Role,
  kek: Uint8Array,
  place: BackupPlace,
  backup: string,
): Promise<BackedUpKey[]> {
  return asWrongKey(() => openHalf(role, kek, place, backup));
}

async function asWrongKey<T>(open: () => Promise<T>): Promise<T> {
  try {
    return await open();
  } catch (error) {
    throw error instanceof DecryptError ? new DecryptError("wrong_key") : error;
  }
}

async function openHalf(
  role: Role,
  kek: Uint8Array,
  place: BackupPlace,
  backup: string,
): Promise<BackedUpKey[]> {
  const bytes = fromBase64(backup);
  if (bytes.length === 0) throw new DecryptError("malformed");
  if (bytes[0] !== 1) throw new DecryptError("unknown_version");
  if (bytes.length < 13 + 16) throw new DecryptError("malformed");
  const key = await roleKey(kek, role);
  const list = await gcmOpen(
    key,
    bytes.subarray(1, 13),
    bytes.subarray(13),
    backupAad(role, place),
  );
  const keys = readKeys(list);
  const own = keys[0]!;
  const derived = await publicHalf(role === "a" ? "X25519" : "Ed25519", own.secret);
  const expected = role === "a" ? place.keys.publicKey : place.keys.signingPublicKey;
  if (!equal(derived, expected) || !equal(own.keyId, await keyId(place.keys))) {
    throw new DecryptError("wrong_key");
  }
  return keys;
}

function readKeys(list: Bytes): BackedUpKey[] {
  const count = list[0] ?? 0;
  if (count < 1 || count > MAX_BACKUP_KEYS || list.length !== 1 + 48 * count) {
    throw new DecryptError("malformed");
  }
  return Array.from({ length: count }, (_, i) => {
    const at = 1 + 48 * i;
    return { keyId: list.slice(at, at + 16), secret: list.slice(at + 16, at + 48) };
  });
}

/** The fields of `POST /keys/backup`. */
export interface BackupFields {
  readonly backup_a: string;
  readonly backup_b: string;
  readonly argon2_salt: string;
  readonly argon2_params: Argon2Costs;
  readonly public_key: string;
  readonly signing_public_key: string;
  readonly device_id: string;
}

/**
 * A whole backup, under a salt of its own. `earlier` are X25519 keys that the device also holds.
 * Take `costs` from nobody.
 */
export async function makeBackup(
  password: string,
  userId: string,
  deviceId: string,
  secret: PrivateKeys,
  earlier: readonly BackedUpKey[] = [],
  costs: Argon2Costs = DEFAULT_COSTS,
): Promise<BackupFields> {
  const keys = {
    publicKey: await publicHalf("X25519", secret.exchange),
    signingPublicKey: await publicHalf("Ed25519", secret.signingSeed),
  };
  const salt = random(32);
  const place = { userId, deviceId, keys, costs };
  const kek = await backupKey(password, salt, costs);
  const id = await keyId(keys);
  const exchange = [{ keyId: id, secret: secret.exchange }, ...earlier].slice(0, MAX_BACKUP_KEYS);
  return {
    backup_a: await sealBackup("a", kek, place, exchange),
    backup_b: await sealBackup("b", kek, place, [{ keyId: id, secret: secret.signingSeed }]),
    argon2_salt: base64(salt),
    argon2_params: costs,
    public_key: base64(keys.publicKey),
    signing_public_key: base64(keys.signingPublicKey),
    device_id: deviceId,
  };
}

export interface RestoredBackup {
  readonly secret: PrivateKeys;
  /** X25519 keys that the device held besides its own. */
  readonly earlier: readonly BackedUpKey[];
}

/** Every failure is `wrong_key`, also costs out of bounds. */
export function restoreBackup(
  password: string,
  userId: string,
  fields: BackupFields,
): Promise<RestoredBackup> {
  return asWrongKey(() => restore(password, userId, fields));
}

async function restore(
  password: string,
  userId: string,
  fields: BackupFields,
): Promise<RestoredBackup> {
  // The server names them; a single backup must not stop the look at the others.
  if (!isWithinBounds(fields.argon2_params)) throw new DecryptError("wrong_key");
  const place = {
    userId,
    deviceId: fields.device_id,
    keys: {
      publicKey: fromBase64(fields.public_key),
      signingPublicKey: fromBase64(fields.signing_public_key),
    },
    costs: fields.argon2_params,
  };
  const kek = await backupKey(password, fromBase64(fields.argon2_salt), fields.argon2_params);
  const exchange = await openBackup("a", kek, place, fields.backup_a);
  const signing = await openBackup("b", kek, place, fields.backup_b);
  return {
    secret: { exchange: exchange[0]!.secret, signingSeed: signing[0]!.secret },
    earlier: exchange.slice(1),
  };
}
