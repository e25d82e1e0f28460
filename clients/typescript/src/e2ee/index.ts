/**
 * The encryption `bp1`, without any input or output.
 *
 * `bp1` has no forward secrecy, and no independent cryptographer has reviewed it yet.
 *
 * @module e2ee
 */
export * from "./errors.js";
export * from "./keys.js";
export * from "./context.js";
export * from "./content.js";
export * from "./epoch.js";
export * from "./wrap.js";
export * from "./envelope.js";
export * from "./file.js";
export * from "./backup.js";
export * from "./safety.js";
export * from "./replies.js";
export * from "./key-log.js";
export * from "./trust.js";
export * from "./room.js";
export * from "./consent.js";
export {
  type Bytes,
  type NativeKey,
  base64,
  fromBase64,
  hex,
  fromHex,
  idBytes,
  ulid,
  uuid,
  newUlid,
  equal,
} from "./bytes.js";
export { isSmallOrder } from "./primitives.js";
