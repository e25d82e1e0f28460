/** Keys of devices and agents, their ids, and introductions. */
import {
  type Bytes,
  type NativeKey,
  EMPTY,
  base64url,
  concat,
  crc32,
  equal,
  fromBase64,
  fromHex,
  hex,
  idBytes,
  label,
  lp,
  random,
  u32,
  u8,
  ulid,
} from "./bytes.js";
import { UsageError } from "./errors.js";
import {
  hkdf,
  importEd25519,
  importX25519,
  importX25519Public,
  isSmallOrder,
  publicHalf,
  sha256,
  sign,
  verify,
} from "./primitives.js";

export type PrincipalType = "user" | "agent";

/** A user or an agent. */
export interface Principal {
  readonly type: PrincipalType;
  /** ULID or UUID; compared as bytes. */
  readonly id: string;
}

/** `P`: kind and id in 17 bytes. */
export function principalBytes(principal: Principal): Bytes {
  return concat(u8(principal.type === "user" ? 1 : 2), idBytes(principal.id));
}

/** A name for maps: two spellings of an id are one principal. */
export function principalName(principal: Principal): string {
  return hex(principalBytes(principal));
}

/** The principal of such a name. */
export function namedPrincipal(name: string): Principal {
  const bytes = fromHex(name);
  if (bytes.length !== 17 || (bytes[0] !== 1 && bytes[0] !== 2)) {
    throw new UsageError("not the name of a principal");
  }
  return { type: bytes[0] === 1 ? "user" : "agent", id: ulid(bytes.subarray(1)) };
}

export interface PublicKeys {
  readonly publicKey: Bytes;
  readonly signingPublicKey: Bytes;
}

/** First 16 bytes of SHA-256 of both keys. It is computed and never read. */
export async function keyId(keys: PublicKeys): Promise<Bytes> {
  return (await sha256(keys.publicKey, keys.signingPublicKey)).slice(0, 16);
}

/** X25519 gives zeros for these points, whatever the other key is. */
const X25519_PROBE = new Uint8Array(32).fill(0x42);

/** Whether somebody may be given something under these keys, and be believed. */
export async function isUsable(keys: PublicKeys): Promise<boolean> {
  if (keys.publicKey.length !== 32 || keys.signingPublicKey.length !== 32) return false;
  if (isSmallOrder(keys.signingPublicKey)) return false;
  try {
    const probe = await importX25519(X25519_PROBE);
    const peer = await importX25519Public(keys.publicKey);
    const parameters = { name: "X25519", public: peer };
    const shared = await crypto.subtle.deriveBits(parameters, probe, 256);
    return !equal(new Uint8Array(shared), new Uint8Array(32));
  } catch {
    return false;
  }
}

/** The key that opens wraps: also the half of an earlier key that a backup keeps. */
export interface OpeningKeys {
  readonly keyId: Bytes;
  /** X25519, not extractable. */
  readonly exchange: NativeKey;
  readonly exchangePublic: NativeKey;
}

/** The private and public keys of a device or an agent. */
export interface KeyPair extends PublicKeys, OpeningKeys {
  /** Ed25519, not extractable. */
  readonly signing: NativeKey;
}

/** An earlier X25519 key, by the id of the pair that it belonged to. */
export async function importOpeningKey(id: Bytes, exchange: Bytes): Promise<OpeningKeys> {
  const publicKey = await publicHalf("X25519", exchange);
  return {
    keyId: id,
    exchange: await importX25519(exchange),
    exchangePublic: await importX25519Public(publicKey),
  };
}

/** The raw private keys, as a backup holds them. */
export interface PrivateKeys {
  readonly exchange: Bytes;
  readonly signingSeed: Bytes;
}

/** Imports private keys as keys that scripts cannot read back. */
export async function importKeys(secret: PrivateKeys): Promise<KeyPair> {
  const publicKey = await publicHalf("X25519", secret.exchange);
  const signingPublicKey = await publicHalf("Ed25519", secret.signingSeed);
  return {
    publicKey,
    signingPublicKey,
    keyId: await keyId({ publicKey, signingPublicKey }),
    exchange: await importX25519(secret.exchange),
    exchangePublic: await importX25519Public(publicKey),
    signing: await importEd25519(secret.signingSeed),
  };
}

/** New keys of a device. The caller backs them up and then drops the raw bytes. */
export function generatePrivateKeys(): PrivateKeys {
  return { exchange: random(32), signingSeed: random(32) };
}

const AGENT_KEY_PREFIX = "bpk_";

/** The seed of one agent of one deployment. It does not print. */
export class AgentKey {
  readonly #seed: Bytes;

  private constructor(seed: Bytes) {
    this.#seed = seed;
  }

  static random(): AgentKey {
    return new AgentKey(random(32));
  }

  static fromBytes(seed: Uint8Array): AgentKey {
    if (seed.length !== 32) throw new UsageError("an agent's seed has 32 bytes");
    return new AgentKey(Uint8Array.from(seed));
  }

  /** Reads `bpk_…`, the form of `BLINDPIPE_KEY`. */
  static parse(text: string): AgentKey {
    const fault = new UsageError("not an agent key: it is bpk_ and 48 characters");
    if (!text.startsWith(AGENT_KEY_PREFIX) || text.length !== 52) throw fault;
    let bytes: Bytes;
    try {
      bytes = fromBase64(text.slice(4).replaceAll("-", "+").replaceAll("_", "/"));
    } catch {
      throw fault;
    }
    const seed = bytes.slice(0, 32);
    if (!equal(u32(crc32(seed)), bytes.subarray(32))) throw fault;
    return new AgentKey(seed);
  }

  /** Several, newest first, with commas: old epochs were wrapped for old keys. */
  static parseAll(text: string): AgentKey[] {
    return text.split(",").map((part) => AgentKey.parse(part.trim()));
  }

  /** The secret as text. */
  toText(): string {
    return AGENT_KEY_PREFIX + base64url(concat(this.#seed, u32(crc32(this.#seed))));
  }

  async privateKeys(): Promise<PrivateKeys> {
    return {
      exchange: await hkdf(this.#seed, EMPTY, label("agent-x25519"), 32),
      signingSeed: await hkdf(this.#seed, EMPTY, label("agent-ed25519"), 32),
    };
  }

  async keys(): Promise<KeyPair> {
    return importKeys(await this.privateKeys());
  }

  toJSON(): string {
    return "AgentKey";
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return "AgentKey";
  }
}

/** A new key, signed by an earlier one of the same principal. */
export interface Introduction {
  readonly byKeyId: Bytes;
  readonly signature: Bytes;
}

function introductionText(principal: Principal, deviceId: string, keys: PublicKeys): Bytes {
  return concat(
    label("introduce"),
    principalBytes(principal),
    lp(deviceId),
    keys.publicKey,
    keys.signingPublicKey,
  );
}

/** `deviceId` is "" for an agent. */
export async function introduce(
  by: KeyPair,
  principal: Principal,
  deviceId: string,
  keys: PublicKeys,
): Promise<Introduction> {
  const signature = await sign(by.signing, introductionText(principal, deviceId, keys));
  return { byKeyId: by.keyId, signature };
}

export function verifyIntroduction(
  by: PublicKeys,
  principal: Principal,
  deviceId: string,
  keys: PublicKeys,
  signature: Uint8Array,
): Promise<boolean> {
  return verify(by.signingPublicKey, signature, introductionText(principal, deviceId, keys));
}
