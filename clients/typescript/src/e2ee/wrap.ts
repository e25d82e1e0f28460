/** Wraps: the secret of an epoch, for one key of one member, signed by who rotated. */
import { CipherSuite, Aes256Gcm, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";
import {
  type Bytes,
  base64,
  concat,
  equal,
  fromBase64,
  label,
  readU64,
  u32,
  u64,
  u8,
  ulid,
} from "./bytes.js";
import { EpochKey, type SecretKind, secretId } from "./epoch.js";
import { DecryptError, UsageError } from "./errors.js";
import {
  type KeyPair,
  type OpeningKeys,
  type Principal,
  type PublicKeys,
  keyId,
  principalBytes,
} from "./keys.js";
import { importX25519Public, sign, verify } from "./primitives.js";

const WRAP_BYTES = 235;
const WRAP_VERSION = 1;
const ENC_AT = 17;
const CIPHERTEXT_AT = 49;
const SIGNED_BYTES = 106;

const suite = new CipherSuite({
  kem: new DhkemX25519HkdfSha256(),
  kdf: new HkdfSha256(),
  aead: new Aes256Gcm(),
});

/** The wrap for a member who is to get nothing; the server wants a string for each device. */
export const NOT_GIVEN = base64(u8(0));

export interface WrapInput {
  readonly kind: SecretKind;
  /** The epoch's secret for kind 1, the agent's lane secret for kind 2. */
  readonly secret: Uint8Array;
  readonly sid: Uint8Array;
  /** Zeros when there was none, or the rotator does not know it. */
  readonly previousSid?: Uint8Array | undefined;
  readonly conversation: Uint8Array;
  readonly epoch: number;
  readonly recipient: Principal;
  readonly recipientKeys: PublicKeys;
  readonly rotator: Principal;
  readonly rotatorKeys: KeyPair;
  /** Unix milliseconds. */
  readonly madeAt: number;
}

function wrapInfo(
  conversation: Uint8Array,
  epoch: number,
  recipient: Principal,
  recipientKeyId: Uint8Array,
): Bytes {
  return concat(label("wrap"), conversation, u32(epoch), principalBytes(recipient), recipientKeyId);
}

/** The `wrapped_key` of one recipient. */
export async function sealWrap(input: WrapInput): Promise<string> {
  if (input.rotator.type !== "user") throw new UsageError("only users rotate");
  const recipientKeyId = await keyId(input.recipientKeys);
  const info = wrapInfo(input.conversation, input.epoch, input.recipient, recipientKeyId);
  const signed = concat(
    u8(input.kind),
    input.secret,
    input.sid,
    input.previousSid ?? new Uint8Array(16),
    principalBytes(input.rotator),
    input.rotatorKeys.keyId,
    u64(input.madeAt),
  );
  const signature = await sign(input.rotatorKeys.signing, concat(label("wrap-sign"), info, signed));
  const recipientPublicKey = await importX25519Public(input.recipientKeys.publicKey);
  const sender = await suite.createSenderContext({
    recipientPublicKey,
    info: info.buffer,
  });
  const sealed = new Uint8Array(await sender.seal(concat(signed, signature).buffer));
  const enc = new Uint8Array(sender.enc);
  return base64(concat(u8(WRAP_VERSION), recipientKeyId, enc, sealed));
}

/** A wrap that has opened. The signature is judged with the rotator's key. */
export interface OpenedWrap {
  readonly secret: EpochKey;
  readonly epoch: number;
  readonly sid: Bytes;
  readonly previousSid: Bytes;
  readonly rotator: Principal;
  readonly rotatorKeyId: Bytes;
  /** Unix milliseconds by the rotator's clock. */
  readonly madeAt: number;
  readonly verify: (rotator: PublicKeys) => Promise<boolean>;
}

/** Whether the rotator gave this recipient nothing. */
export function isNotGiven(wrapped: string): boolean {
  return wrapped === NOT_GIVEN;
}

/** The key_id that a wrap is for, so that the holder of several keys finds the right one. */
export function wrapRecipient(wrapped: string): Bytes {
  return checkedWrap(wrapped).slice(1, ENC_AT);
}

function checkedWrap(wrapped: string): Bytes {
  const bytes = fromBase64(wrapped);
  if (bytes.length === 0) throw new DecryptError("malformed");
  if (wrapped === NOT_GIVEN) throw new DecryptError("no_epoch_key");
  if (bytes[0] !== WRAP_VERSION) throw new DecryptError("unknown_version");
  if (bytes.length !== WRAP_BYTES) throw new DecryptError("malformed");
  return bytes;
}

/**
 * Opens a wrap. For kind 2 the caller must still check the signature before it serves: its `sid`
 * proves nothing.
 */
export async function openWrap(
  wrapped: string,
  conversation: Bytes,
  epoch: number,
  recipient: Principal,
  keys: OpeningKeys,
): Promise<OpenedWrap> {
  const bytes = checkedWrap(wrapped);
  if (!equal(bytes.subarray(1, ENC_AT), keys.keyId)) throw new DecryptError("no_epoch_key");
  const info = wrapInfo(conversation, epoch, recipient, keys.keyId);
  const plain = await unseal(bytes, info, keys);
  return readWrap(plain, info, conversation, epoch, recipient);
}

async function unseal(bytes: Bytes, info: Bytes, keys: OpeningKeys): Promise<Bytes> {
  try {
    const context = await suite.createRecipientContext({
      recipientKey: { privateKey: keys.exchange, publicKey: keys.exchangePublic },
      enc: bytes.slice(ENC_AT, CIPHERTEXT_AT).buffer,
      info: info.buffer,
    });
    return new Uint8Array(await context.open(bytes.slice(CIPHERTEXT_AT).buffer));
  } catch {
    throw new DecryptError("bad_ciphertext");
  }
}

async function readWrap(
  plain: Bytes,
  info: Bytes,
  conversation: Bytes,
  epoch: number,
  recipient: Principal,
): Promise<OpenedWrap> {
  const kind = plain[0]!;
  const fits = kind === 1 || (kind === 2 && recipient.type === "agent");
  if (!fits) throw new DecryptError("unknown_kind");
  // A rotator is a user: agents cannot rotate.
  if (plain[65] !== 1) throw new DecryptError("malformed");
  const raw = plain.subarray(1, 33);
  const sid = plain.slice(33, 49);
  if (kind === 1 && !equal(await secretId(raw, conversation, epoch), sid)) {
    throw new DecryptError("wrong_key");
  }
  const recipientId = principalBytes(recipient).slice(1);
  const secret =
    kind === 1
      ? await EpochKey.ofEpoch(raw, conversation, epoch)
      : await EpochKey.ofLane(raw, conversation, epoch, sid, recipientId);
  return describeWrap(plain, info, secret, epoch, sid);
}

function describeWrap(
  plain: Bytes,
  info: Bytes,
  secret: EpochKey,
  epoch: number,
  sid: Bytes,
): OpenedWrap {
  const signature = plain.slice(SIGNED_BYTES);
  // The secret itself is part of what is signed, so its bytes stay until the signature was judged.
  const text = concat(label("wrap-sign"), info, plain.subarray(0, SIGNED_BYTES));
  return {
    secret,
    epoch,
    sid,
    previousSid: plain.slice(49, 65),
    rotator: { type: "user", id: ulid(plain.slice(66, 82)) },
    rotatorKeyId: plain.slice(82, 98),
    madeAt: readU64(plain, 98),
    verify: (rotator) => verify(rotator.signingPublicKey, signature, text),
  };
}
