/** The envelope: one function for everything that is encrypted. */
import {
  type Bytes,
  type NativeKey,
  EMPTY,
  base64,
  compare,
  concat,
  equal,
  fromBase64,
  hex,
  isZero,
  label,
  random,
  readU32,
  readU64,
  u32,
  u64,
  u8,
} from "./bytes.js";
import {
  type JsonObject,
  MAX_CONTENT_BYTES,
  PLAINTEXT_HEAD_BYTES,
  checkContent,
  decodeSource,
  encodeContent,
  paddedLength,
} from "./content.js";
import { Kind, type Place, contextBytes } from "./context.js";
import { type EpochKey, LANE_AGENT, LANE_EVERYONE } from "./epoch.js";
import { DecryptError, UsageError } from "./errors.js";
import { type KeyPair, type Principal, type PublicKeys, principalBytes } from "./keys.js";
import { gcmOpen, gcmSeal, hkdf, sha256, sign, verify } from "./primitives.js";

const VERSION = 1;
const FIXED_BYTES = 88;
const SLOT_BYTES = 64;
const MAX_SLOTS = 32;
const TAG_BYTES = 16;
/** The largest content, padded. */
const MAX_SEALED_BYTES = paddedLength(Kind.message, MAX_CONTENT_BYTES) + TAG_BYTES;

/** The sender's own key list as it sees it. */
export interface View {
  readonly listVersion: number;
  /** First 16 bytes of the list's hash. */
  readonly keysHash: Bytes;
}

export const VIEW_UNKNOWN: View = { listVersion: 0, keysHash: new Uint8Array(16) };

export interface SealInput {
  readonly secret: EpochKey;
  readonly place: Place;
  readonly sender: Principal;
  readonly keys: KeyPair;
  readonly content: JsonObject | Bytes;
  /** Ids (16 bytes) of the `addressed` agents that this is for. */
  readonly addressed?: readonly Bytes[] | undefined;
  /** Unix milliseconds. */
  readonly time: number;
  readonly view?: View | undefined;
}

/** The parts of an envelope that are in clear. */
export interface Header {
  readonly kind: number;
  readonly lane: number;
  readonly epoch: number;
  readonly sid: Bytes;
  readonly keyId: Bytes;
  readonly salt: Bytes;
  readonly commitment: Bytes;
  /** The writer of an agent's lane. */
  readonly agentId: Bytes | null;
  readonly slots: readonly { agentId: Bytes; sealed: Bytes }[];
  /** The whole header. */
  readonly bytes: Bytes;
}

interface MessageKeys {
  readonly key: Bytes;
  readonly nonce: Bytes;
  readonly commitment: Bytes;
}

async function messageKeys(messageSecret: Uint8Array): Promise<MessageKeys> {
  const bytes = await hkdf(messageSecret, EMPTY, label("content"), 76);
  return { key: bytes.subarray(0, 32), nonce: bytes.subarray(32, 44), commitment: bytes.subarray(44) };
}

async function slotKey(lane: NativeKey, salt: Bytes): Promise<{ key: Bytes; nonce: Bytes }> {
  const bytes = await hkdf(lane, salt, label("slot"), 44);
  return { key: bytes.subarray(0, 32), nonce: bytes.subarray(32) };
}

async function associatedData(
  header: Bytes,
  conversation: Bytes,
  sender: Principal,
  context: Bytes,
): Promise<{ aad: Bytes; hash: Bytes }> {
  const aad = concat(label("aad"), header, conversation, principalBytes(sender), context);
  return { aad, hash: await sha256(aad) };
}

function signedText(hash: Bytes, head: Uint8Array, content: Uint8Array): Bytes {
  return concat(label("sign"), hash, head, content);
}

/** Seals one thing. The bytes are the envelope; `payload()` makes a payload of them. */
export function seal(input: SealInput): Promise<Bytes> {
  return sealWithSalt(input, random(16));
}

/** As `seal`, for vectors: two seals under one salt and secret repeat a nonce. */
export async function sealWithSalt(input: SealInput, salt: Bytes): Promise<Bytes> {
  const { secret, sender } = input;
  checkWriter(input);
  const content =
    input.content instanceof Uint8Array
      ? checkContent(input.content)
      : encodeContent(input.content);
  const own = secret.kind === 2 ? principalBytes(sender).slice(1) : null;
  const messageSecret = await hkdf(await secret.lane(own), salt, label("message"), 32);
  const keys = await messageKeys(messageSecret);
  const header = await writeHeader(input, salt, keys.commitment, own, messageSecret);
  const place = contextBytes(input.place);
  const { aad, hash } = await associatedData(header, secret.conversation, sender, place);
  const plaintext = await writePlaintext(input, hash, content);
  return concat(header, await gcmSeal(keys.key, keys.nonce, plaintext, aad));
}

function checkWriter({ secret, sender, place, addressed }: SealInput): void {
  if (!mayWrite(sender, place.kind))
    throw new UsageError("this principal does not write this kind");
  if ((addressed?.length ?? 0) > MAX_SLOTS) throw new UsageError("at most 32 addressed agents");
  if (secret.kind === 2 && (sender.type !== "agent" || addressed?.length)) {
    throw new UsageError("an addressed agent writes in its own lane, to nobody else's");
  }
}

/** Deltas and tool requests come from agents only, responses from users only. */
function mayWrite(sender: Principal, kind: Kind): boolean {
  if (kind === Kind.message) return true;
  return (kind === Kind.response) === (sender.type === "user");
}

async function writeHeader(
  input: SealInput,
  salt: Bytes,
  commitment: Bytes,
  own: Bytes | null,
  messageSecret: Bytes,
): Promise<Bytes> {
  const { secret, keys } = input;
  const agents = uniqueSorted(input.addressed ?? []);
  const fixed = concat(
    u8(VERSION),
    u8(input.place.kind),
    u8(own ? LANE_AGENT : LANE_EVERYONE),
    u8(agents.length),
    u32(secret.epoch),
    secret.sid,
    keys.keyId,
    salt,
    commitment,
  );
  const slots: Bytes[] = [];
  for (const agentId of agents) {
    const slot = await slotKey(await secret.lane(agentId), salt);
    slots.push(agentId, await gcmSeal(slot.key, slot.nonce, messageSecret, fixed));
  }
  return concat(fixed, own ?? EMPTY, ...slots);
}

function uniqueSorted(ids: readonly Bytes[]): Bytes[] {
  const byName = new Map(ids.map((id) => [hex(id), id]));
  return [...byName.values()].sort(compare);
}

async function writePlaintext(input: SealInput, hash: Bytes, content: Bytes): Promise<Bytes> {
  const view = input.view ?? VIEW_UNKNOWN;
  const head = concat(u64(input.time), u32(view.listVersion), view.keysHash);
  const signature = await sign(input.keys.signing, signedText(hash, head, content));
  const plaintext = new Uint8Array(paddedLength(input.place.kind, content.length));
  plaintext.set(concat(signature, head, u32(content.length), content));
  return plaintext;
}

/** Reads the parts in clear, which are not copied. Throws `malformed` or `unknown_version`. */
export function readHeader(bytes: Uint8Array): Header {
  const envelope = bytes as Bytes;
  if (envelope.length === 0) throw new DecryptError("malformed");
  if (envelope[0] !== VERSION) throw new DecryptError("unknown_version");
  if (envelope.length < FIXED_BYTES) throw new DecryptError("malformed");
  const lane = envelope[2]!;
  const count = envelope[3]!;
  const laneFits = lane === LANE_EVERYONE || (lane === LANE_AGENT && count === 0);
  if (!laneFits || count > MAX_SLOTS) throw new DecryptError("malformed");
  const start = FIXED_BYTES + (lane === LANE_AGENT ? 16 : 0);
  const end = start + count * SLOT_BYTES;
  const sealed = envelope.length - end;
  if (sealed < TAG_BYTES || sealed > MAX_SEALED_BYTES) throw new DecryptError("malformed");
  return {
    kind: envelope[1]!,
    lane,
    epoch: readU32(envelope, 4),
    sid: envelope.subarray(8, 24),
    keyId: envelope.subarray(24, 40),
    salt: envelope.subarray(40, 56),
    commitment: envelope.subarray(56, 88),
    agentId: lane === LANE_AGENT ? envelope.subarray(FIXED_BYTES, start) : null,
    slots: readSlots(envelope, start, count),
    bytes: envelope.subarray(0, end),
  };
}

function readSlots(envelope: Bytes, start: number, count: number): Header["slots"] {
  const slots = [];
  for (let i = 0; i < count; i++) {
    const at = start + i * SLOT_BYTES;
    slots.push({
      agentId: envelope.subarray(at, at + 16),
      sealed: envelope.subarray(at + 16, at + 64),
    });
    const before = slots[i - 1];
    if (before && compare(before.agentId, slots[i]!.agentId) >= 0)
      throw new DecryptError("malformed");
  }
  return slots;
}

/** An envelope, and the secrets and keys that the caller knows. */
export interface OpenInput {
  readonly envelope: Bytes;
  readonly place: Place;
  readonly conversation: Bytes;
  readonly sender: Principal;
  /** The secret of this epoch and `sid`, if it is held. */
  readonly secret: (
    epoch: number,
    sid: Bytes,
  ) => EpochKey | undefined | Promise<EpochKey | undefined>;
  /** The keys of this `key_id` of the sender, if they are known. */
  readonly senderKeys: (keyId: Bytes) => PublicKeys | undefined | Promise<PublicKeys | undefined>;
}

export interface Opened {
  readonly header: Header;
  readonly content: JsonObject;
  /** Its exact text. */
  readonly source: string;
  /** The content as it was signed. */
  readonly contentBytes: Bytes;
  /** Unix milliseconds by the sender's clock. */
  readonly time: number;
  readonly view: View;
}

/** Opens an envelope, in the fixed order of the scheme. Throws `DecryptError`. */
export async function open(input: OpenInput): Promise<Opened> {
  const { envelope, place, conversation, sender } = input;
  const header = readHeader(envelope);
  checkPlace(header, place.kind, sender);
  const secret = await input.secret(header.epoch, header.sid);
  if (!secret || secret.epoch !== header.epoch || !equal(secret.sid, header.sid)) {
    throw new DecryptError("no_epoch_key");
  }
  const keys = await messageKeys(await messageSecretOf(header, secret));
  if (!equal(keys.commitment, header.commitment)) throw new DecryptError("wrong_key");
  const context = contextBytes(place);
  const { aad, hash } = await associatedData(header.bytes, conversation, sender, context);
  const plaintext = await gcmOpen(
    keys.key,
    keys.nonce,
    envelope.subarray(header.bytes.length),
    aad,
  );
  const contentBytes = unpad(place.kind, plaintext);
  const known = await input.senderKeys(header.keyId);
  if (!known) throw new DecryptError("unknown_sender_key");
  const text = signedText(hash, plaintext.subarray(64, 92), contentBytes);
  if (!(await verify(known.signingPublicKey, plaintext.subarray(0, 64), text))) {
    throw new DecryptError("bad_signature");
  }
  const view = { listVersion: readU32(plaintext, 72), keysHash: plaintext.slice(76, 92) };
  const { content, source } = decodeSource(contentBytes);
  return { header, content, source, contentBytes, time: readU64(plaintext, 64), view };
}

function checkPlace(header: Header, kind: Kind, sender: Principal): void {
  const writer = principalBytes(sender).slice(1);
  if (header.agentId && (sender.type !== "agent" || !equal(header.agentId, writer))) {
    throw new DecryptError("malformed");
  }
  if (header.kind !== kind || !mayWrite(sender, kind)) throw new DecryptError("unknown_kind");
}

async function messageSecretOf(header: Header, secret: EpochKey): Promise<Bytes> {
  if (secret.kind === 1 || header.agentId) {
    return hkdf(await secret.lane(header.agentId), header.salt, label("message"), 32);
  }
  const slot = header.slots.find((each) => equal(each.agentId, secret.agentId!));
  if (!slot) throw new DecryptError("no_epoch_key");
  return openSlot(slot.sealed, await secret.lane(secret.agentId), header);
}

async function openSlot(sealed: Bytes, lane: NativeKey, header: Header): Promise<Bytes> {
  const { key, nonce } = await slotKey(lane, header.salt);
  return gcmOpen(key, nonce, sealed, header.bytes.subarray(0, FIXED_BYTES));
}

function unpad(kind: Kind, plaintext: Bytes): Bytes {
  if (plaintext.length < PLAINTEXT_HEAD_BYTES) throw new DecryptError("bad_padding");
  const length = readU32(plaintext, 92);
  const end = PLAINTEXT_HEAD_BYTES + length;
  const exact = paddedLength(kind, length) === plaintext.length;
  if (!exact || !isZero(plaintext.subarray(end))) throw new DecryptError("bad_padding");
  return plaintext.slice(PLAINTEXT_HEAD_BYTES, end);
}

/** A payload on the wire. */
export interface EncryptedPayload {
  readonly type: "encrypted";
  readonly v: 1;
  readonly ciphertext: string;
  readonly [name: string]: unknown;
}

export function payload(envelope: Uint8Array): EncryptedPayload {
  return { type: "encrypted", v: 1, ciphertext: base64(envelope) };
}

/** The envelope of a payload. Throws `clear`, `unknown_version` or `malformed`. */
export function envelopeOf(value: unknown): Bytes {
  const fields = (typeof value === "object" && value !== null ? value : {}) as Record<
    string,
    unknown
  >;
  if (fields["type"] !== "encrypted") throw new DecryptError("clear");
  if (fields["v"] !== 1) throw new DecryptError("unknown_version");
  if (typeof fields["ciphertext"] !== "string") throw new DecryptError("malformed");
  return fromBase64(fields["ciphertext"]);
}

/** `re`: which envelope an answer answers, since the id is only the server's word. */
export async function envelopeHash(envelope: Uint8Array): Promise<string> {
  return base64(await sha256(envelope));
}
