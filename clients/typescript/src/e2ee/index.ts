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
export {
  type EncryptedPayload,
  type Header,
  type OpenInput,
  type Opened,
  type SealInput,
  VIEW_UNKNOWN,
  type View,
  envelopeHash,
  envelopeOf,
  open,
  payload,
  readHeader,
  seal,
} from "./envelope.js";
export {
  type FileContent,
  type SealedFile,
  fileHash,
  fileKey,
  openFile,
  sealFile,
} from "./file.js";
export {
  type Argon2Costs,
  type BackedUpKey,
  type BackupFields,
  type BackupPlace,
  DEFAULT_COSTS,
  type RestoredBackup,
  backupKey,
  checkProtectionPassword,
  generateProtectionPassword,
  makeBackup,
  openBackup,
  restoreBackup,
  sealBackup,
} from "./backup.js";
export * from "./approval.js";
export * from "./safety.js";
export * from "./search.js";
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
