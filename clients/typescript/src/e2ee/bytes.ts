/** Bytes, their spellings, and the building blocks of every layout in `bp1`. */
import { DecryptError, UsageError } from "./errors.js";

/** A `CryptoKey`, named without the types of browsers, which a project for Node may not have. */
export type NativeKey = Awaited<ReturnType<typeof crypto.subtle.importKey>>;

/** Bytes that own a plain buffer, as WebCrypto wants them. */
export type Bytes = Uint8Array<ArrayBuffer>;

const encoder = new TextEncoder();
const strictDecoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export const EMPTY: Bytes = new Uint8Array(0);

/** The part of Node's `Buffer` that spells bytes, many times as fast as a loop. */
interface NativeBuffer {
  toString(spelling: "hex" | "latin1" | "base64"): string;
  write(text: string, spelling: "base64"): number;
}

interface NativeBuffers {
  from(bytes: ArrayBufferLike, at: number, length: number): NativeBuffer;
}

/** Undefined in browsers. */
const buffers = (globalThis as unknown as { Buffer?: NativeBuffers }).Buffer;

function bufferOf(library: NativeBuffers, { buffer, byteOffset, length }: Uint8Array): NativeBuffer {
  return library.from(buffer, byteOffset, length);
}

export function concat(...parts: readonly Uint8Array[]): Bytes {
  let length = 0;
  for (const part of parts) length += part.length;
  const all = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function utf8(text: string): Bytes {
  return encoder.encode(text) as Bytes;
}

/** Throws `TypeError` on invalid UTF-8. */
export function fromUtf8(bytes: Uint8Array): string {
  return strictDecoder.decode(bytes);
}

export function u8(value: number): Bytes {
  return Uint8Array.of(value);
}

export function u16(value: number): Bytes {
  return Uint8Array.of(value >>> 8, value);
}

export function u32(value: number): Bytes {
  return Uint8Array.of(value >>> 24, value >>> 16, value >>> 8, value);
}

export function u64(value: number): Bytes {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value));
  return bytes;
}

export function readU32(bytes: Uint8Array, at: number): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getUint32(at);
}

/** A number above 2^53 loses its low bits; no time that counts is that large. */
export function readU64(bytes: Uint8Array, at: number): number {
  return Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(at));
}

/** u16 length and the bytes. A value that is too long for its length is not sealed. */
export function lp(value: string | Uint8Array): Bytes {
  const bytes = typeof value === "string" ? utf8(value) : value;
  if (bytes.length > 0xffff) throw new UsageError("a field is longer than 65,535 bytes");
  return concat(u16(bytes.length), bytes);
}

const labels = new Map<string, Bytes>();

/** The label of one use: no bytes of one use are ever those of another. */
export function label(name: string): Bytes {
  let found = labels.get(name);
  if (!found) labels.set(name, (found = utf8(`blindpipe/1/${name}\0`)));
  return found;
}

const HEX = "0123456789abcdef";
/** A text that is added to piece by piece takes much more memory. */
const ASCII = new TextDecoder();

export function hex(bytes: Uint8Array): string {
  if (buffers) return bufferOf(buffers, bytes).toString("hex");
  const digits = new Uint8Array(2 * bytes.length);
  for (const [i, byte] of bytes.entries()) {
    digits[2 * i] = HEX.charCodeAt(byte >> 4);
    digits[2 * i + 1] = HEX.charCodeAt(byte & 15);
  }
  return ASCII.decode(digits);
}

export function fromHex(text: string): Bytes {
  if (text.length % 2 !== 0 || !/^[0-9a-fA-F]*$/.test(text))
    throw new UsageError("not hexadecimal");
  const bytes = new Uint8Array(text.length / 2);
  for (let i = 0; i < bytes.length; i++)
    bytes[i] = Number.parseInt(text.slice(2 * i, 2 * i + 2), 16);
  return bytes;
}

const CHUNK_CHARACTERS = 0x8000;

/** A character per byte. */
export function latin1(bytes: Uint8Array): string {
  return buffers ? bufferOf(buffers, bytes).toString("latin1") : String.fromCharCode(...bytes);
}

export function base64(bytes: Uint8Array): string {
  if (buffers) return bufferOf(buffers, bytes).toString("base64");
  let text = "";
  for (let at = 0; at < bytes.length; at += CHUNK_CHARACTERS) {
    text += String.fromCharCode(...bytes.subarray(at, at + CHUNK_CHARACTERS));
  }
  return btoa(text);
}

/** Standard, padded, canonical; anything else is `malformed`. */
export function fromBase64(text: string): Bytes {
  if (buffers) return nativeFromBase64(buffers, text);
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4 !== 0) {
    throw new DecryptError("malformed");
  }
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  // The bits behind the last byte must be zero, or two texts would be one envelope.
  if (
    text.endsWith("=") &&
    base64(bytes.subarray(bytes.length - (bytes.length % 3))) !== text.slice(-4)
  ) {
    throw new DecryptError("malformed");
  }
  return bytes;
}

function nativeFromBase64(library: NativeBuffers, text: string): Bytes {
  if (text.length % 4 !== 0) throw new DecryptError("malformed");
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  const buffer = bufferOf(library, bytes);
  buffer.write(text, "base64");
  // Node reads other spellings too. One of all texts with these bytes is canonical.
  if (buffer.toString("base64") !== text) throw new DecryptError("malformed");
  return bytes;
}

export function base64url(bytes: Uint8Array): string {
  return base64(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  let difference = 0;
  for (let i = 0; i < a.length; i++) difference |= a[i]! ^ b[i]!;
  return difference === 0;
}

/** Bytewise, shorter first where one begins the other. */
export function compare(a: Uint8Array, b: Uint8Array): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) if (a[i] !== b[i]) return a[i]! - b[i]!;
  return a.length - b.length;
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  return crc;
});

export function crc32(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff]!;
  return ~crc >>> 0;
}

export function isZero(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

export function random(length: number): Bytes {
  return crypto.getRandomValues(new Uint8Array(length));
}

const CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

const NO_DIGIT = 255;
/** The value of a digit by its character code, in all its spellings. */
const DIGITS = new Uint8Array(128).fill(NO_DIGIT);
for (const [value, digit] of [...CROCKFORD].entries()) {
  const spellings = { "0": "0Oo", "1": "1IiLl" }[digit] ?? digit + digit.toLowerCase();
  for (const spelling of spellings) DIGITS[spelling.charCodeAt(0)] = value;
}

/** The 16 bytes of a ULID or UUID, in any of their spellings. */
export function idBytes(text: string): Bytes {
  const bytes = bytesOfId(text);
  if (!bytes) throw new UsageError("not an id");
  return bytes;
}

/** Null for what is no id. */
function bytesOfId(text: string): Bytes | null {
  if (typeof text !== "string") return null;
  if (text.length === 26) return bytesOfUlid(text);
  if (
    /^[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}$/.test(text)
  ) {
    return fromHex(text.replaceAll("-", ""));
  }
  return null;
}

function bytesOfUlid(text: string): Bytes | null {
  const bytes = new Uint8Array(16);
  // 26 digits of 5 bits are 130 bits; the first two are zero.
  let bits = 0;
  let held = -2;
  for (let i = 0, at = 0; i < 26; i++) {
    const digit = DIGITS[text.charCodeAt(i)] ?? NO_DIGIT;
    if (digit === NO_DIGIT || (i === 0 && digit > 7)) return null;
    bits = (bits << 5) | digit;
    held += 5;
    if (held < 8) continue;
    held -= 8;
    bytes[at++] = bits >> held;
    bits &= (1 << held) - 1;
  }
  return bytes;
}

/** Whether this is the text of a ULID or UUID. */
export function isId(text: string): boolean {
  return bytesOfId(text) !== null;
}

export function ulid(bytes: Uint8Array): string {
  const digits = new Uint8Array(26);
  // 26 digits of 5 bits are 130 bits; the first two are zero.
  let bits = 0;
  let held = 2;
  let at = 0;
  for (const byte of bytes) {
    bits = (bits << 8) | byte;
    for (held += 8; held >= 5; bits &= (1 << held) - 1) {
      held -= 5;
      digits[at++] = CROCKFORD.charCodeAt(bits >> held);
    }
  }
  return ASCII.decode(digits);
}

/** A name for maps: the spelling of the service, which is not copied. */
export function idName(id: string): string {
  return /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/.test(id) ? id : ulid(idBytes(id));
}

export function uuid(bytes: Uint8Array): string {
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** A new ULID of this moment. */
export function newUlid(now: number = Date.now()): string {
  return ulid(concat(u64(now).subarray(2), random(10)));
}
