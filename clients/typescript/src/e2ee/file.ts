/** Files: encrypted in chunks with a key of their own. */
import { type Bytes, concat, equal, fromBase64, hex, label, random, utf8 } from "./bytes.js";
import { DecryptError } from "./errors.js";
import { gcmOpen, gcmSeal, hkdf, sha256 } from "./primitives.js";

const MAGIC = utf8("BPF1");
const HEAD_BYTES = 20;
const CHUNK_BYTES = 65_536;
const TAG_BYTES = 16;

function nonce(index: number, last: boolean): Bytes {
  const bytes = new Uint8Array(12);
  new DataView(bytes.buffer).setUint32(7, index);
  bytes[11] = last ? 1 : 0;
  return bytes;
}

export interface SealedFile {
  /** The bytes that are uploaded. */
  readonly ciphertext: Bytes;
  /** The file's key, for the message that names the file. */
  readonly key: Bytes;
  /** Lower-case hex SHA-256 of the ciphertext. */
  readonly sha256: string;
}

/** Seals a file under a new key. */
export function sealFile(content: Uint8Array): Promise<SealedFile> {
  return sealFileWithSalt(content, random(32), random(16));
}

/** As `sealFile`, for vectors: key and salt are of one content. */
export async function sealFileWithSalt(
  content: Uint8Array,
  key: Bytes,
  salt: Bytes,
): Promise<SealedFile> {
  const chunkKey = await hkdf(key, salt, label("file"), 32);
  const parts: Uint8Array[] = [MAGIC, salt];
  const count = Math.max(1, Math.ceil(content.length / CHUNK_BYTES));
  for (let i = 0; i < count; i++) {
    const chunk = content.subarray(i * CHUNK_BYTES, (i + 1) * CHUNK_BYTES);
    parts.push(await gcmSeal(chunkKey, nonce(i, i === count - 1), chunk));
  }
  const ciphertext = concat(...parts);
  return { ciphertext, key, sha256: hex(await sha256(ciphertext)) };
}

/** Opens a whole file; nothing of it is given out before the last chunk has opened. */
export async function openFile(
  ciphertext: Uint8Array,
  key: Bytes,
  expectedSha256: string,
): Promise<Bytes> {
  if (hex(await sha256(ciphertext)) !== fileHash({ sha256: expectedSha256 })) {
    throw new DecryptError("bad_ciphertext");
  }
  if (ciphertext.length < MAGIC.length) throw new DecryptError("malformed");
  if (!equal(ciphertext.subarray(0, MAGIC.length), MAGIC)) {
    throw new DecryptError("unknown_version");
  }
  if (ciphertext.length < HEAD_BYTES) throw new DecryptError("malformed");
  const chunkKey = await hkdf(key, ciphertext.subarray(4, HEAD_BYTES), label("file"), 32);
  return concat(...(await openChunks(ciphertext.subarray(HEAD_BYTES), chunkKey)));
}

async function openChunks(body: Uint8Array, chunkKey: Bytes): Promise<Bytes[]> {
  const stride = CHUNK_BYTES + TAG_BYTES;
  const count = Math.max(1, Math.ceil(body.length / stride));
  const parts: Bytes[] = [];
  for (let i = 0; i < count; i++) {
    const sealed = body.subarray(i * stride, (i + 1) * stride);
    const chunk = await gcmOpen(chunkKey, nonce(i, i === count - 1), sealed);
    // Only an empty file has an empty chunk, or one content would have two ciphertext lengths.
    if (i > 0 && chunk.length === 0) throw new DecryptError("malformed");
    parts.push(chunk);
  }
  return parts;
}

/** The content of the message that names a file. */
export interface FileContent {
  readonly type: "file";
  readonly file_id: string;
  readonly object_key: string;
  readonly name: string;
  readonly content_type: string;
  /** Of the content, in bytes. */
  readonly size: number;
  /** Of the ciphertext, in hex. */
  readonly sha256: string;
  /** The file's key in base64. */
  readonly key: string;
  readonly caption?: string;
  readonly kind?: "image" | "audio" | "video" | "document";
  readonly thumbnail?: {
    readonly content_type: string;
    /** Base64 of at most 24 KiB. */
    readonly data: string;
    readonly width: number;
    readonly height: number;
  };
}

/** Throws `malformed` for what is no key. */
export function fileKey({ key: text }: { readonly key: unknown }): Bytes {
  if (typeof text !== "string") throw new DecryptError("malformed");
  const key = fromBase64(text);
  if (key.length !== 32) throw new DecryptError("malformed");
  return key;
}

/** The hash in lower case. Throws `malformed` where none is told. */
export function fileHash({ sha256: text }: { readonly sha256: unknown }): string {
  if (typeof text !== "string" || !/^[0-9a-fA-F]{64}$/.test(text)) {
    throw new DecryptError("malformed");
  }
  return text.toLowerCase();
}
