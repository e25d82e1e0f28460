/** The JSON inside an envelope, and the padding around it. */
import { type Bytes, fromUtf8, utf8 } from "./bytes.js";
import { DecryptError, UsageError } from "./errors.js";
import { Kind } from "./context.js";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export const MAX_CONTENT_BYTES = 720 * 1024;
/** Objects and lists inside each other. */
const MAX_DEPTH_LEVELS = 64;

/** Signature, time, view and length, before the content. */
export const PLAINTEXT_HEAD_BYTES = 96;

function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A value that two languages could read differently is neither sealed nor believed. */
function fault(value: unknown, depth: number): string | null {
  switch (typeof value) {
    case "string":
      return value.isWellFormed() ? null : "a lone surrogate";
    case "number":
      if (!Number.isFinite(value)) return "a number that is not finite";
      return Number.isInteger(value) && !Number.isSafeInteger(value)
        ? "a whole number beyond 2^53"
        : null;
    case "boolean":
    case "undefined":
      return null;
    case "object":
      return value === null ? null : faultWithin(value, depth);
    default:
      return `a ${typeof value}`;
  }
}

function faultWithin(value: object, depth: number): string | null {
  if (depth >= MAX_DEPTH_LEVELS) return "more than 64 levels";
  for (const [name, inner] of Object.entries(value)) {
    const found = fault(name, depth) ?? fault(inner, depth + 1);
    if (found) return found;
  }
  return null;
}

/** Content as it is signed and sealed. Throws `UsageError` for what is never sealed. */
export function encodeContent(content: object): Bytes {
  return encodeLargeContent(content, MAX_CONTENT_BYTES);
}

/** As `encodeContent`, for what is sealed as a file. */
export function encodeLargeContent(content: object, maxBytes: number): Bytes {
  const found = isObject(content) ? fault(content, 0) : "no object";
  if (found) throw new UsageError(`content is not sealed: ${found}`);
  const bytes = utf8(JSON.stringify(content));
  if (bytes.length > maxBytes) {
    throw new UsageError("content is too large: send it as a file");
  }
  return bytes;
}

/** Throws `UsageError` for bytes that are never sealed. */
export function checkContent(bytes: Bytes): Bytes {
  try {
    decodeContent(bytes);
    return bytes;
  } catch (error) {
    if (!(error instanceof DecryptError)) throw error;
    throw new UsageError("content is not sealed: no reader would take these bytes");
  }
}

/** Of a name given twice the last counts. Throws `malformed` if it is too large, or `not_json`. */
export function decodeContent(bytes: Uint8Array, maxBytes = MAX_CONTENT_BYTES): JsonObject {
  return decodeSource(bytes, maxBytes).content;
}

/** As `decodeContent`, with the exact text. */
export function decodeSource(
  bytes: Uint8Array,
  maxBytes = MAX_CONTENT_BYTES,
): { readonly content: JsonObject; readonly source: string } {
  if (bytes.length > maxBytes) throw new DecryptError("malformed");
  let source: string;
  let content: unknown;
  try {
    source = fromUtf8(bytes);
    content = JSON.parse(source);
  } catch {
    throw new DecryptError("not_json");
  }
  if (!isObject(content) || fault(content, 0)) throw new DecryptError("not_json");
  return { content, source };
}

/** Padmé: at most 12 % more, and few lengths to tell apart. */
export function padme(length: number): number {
  const exponent = Math.floor(Math.log2(length));
  const kept = Math.floor(Math.log2(exponent)) + 1;
  const step = 2 ** (exponent - kept);
  return Math.ceil(length / step) * step;
}

/** Length of the padded plaintext. A delta's own length would tell words. */
export function paddedLength(kind: Kind, contentBytes: number): number {
  const floor = kind === Kind.delta ? 256 : 128;
  return padme(Math.max(PLAINTEXT_HEAD_BYTES + contentBytes, floor));
}
