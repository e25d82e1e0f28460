/**
 * The encryption `bp1`, without any input or output.
 *
 * `bp1` has no forward secrecy, and no independent cryptographer has reviewed it yet.
 *
 * @module e2ee
 */
export { DecryptError, type DecryptReason, KeyUnavailable, UsageError } from "./errors.js";
export {
  AgentKey,
  generatePrivateKeys,
  importKeys,
  importOpeningKey,
  introduce,
  type Introduction,
  isUsable,
  keyId,
  type KeyPair,
  namedPrincipal,
  type OpeningKeys,
  type Principal,
  principalBytes,
  principalName,
  type PrincipalType,
  type PrivateKeys,
  type PublicKeys,
  verifyIntroduction,
} from "./keys.js";
export {
  contextBytes,
  type DeltaPlace,
  Kind,
  type MessagePlace,
  type Place,
  requestDigest,
  type RequestPlace,
  type ResponsePlace,
  STATUS_NUMBER,
} from "./context.js";
export {
  checkContent,
  decodeContent,
  decodeSource,
  encodeContent,
  encodeLargeContent,
  type Json,
  type JsonObject,
  MAX_CONTENT_BYTES,
  paddedLength,
  padme,
  PLAINTEXT_HEAD_BYTES,
} from "./content.js";
export {
  agentLaneSecret,
  EpochKey,
  LANE_AGENT,
  LANE_EVERYONE,
  laneSecret,
  newSecret,
  secretId,
  type SecretKind,
} from "./epoch.js";
export {
  isNotGiven,
  NOT_GIVEN,
  type OpenedWrap,
  openWrap,
  sealWrap,
  type WrapInput,
  wrapRecipient,
} from "./wrap.js";
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
export {
  answerDigest,
  type ApprovalDecision,
  clearContent,
  decisionBytes,
  type KeyOf,
  type Proof,
  questionDigest,
  ReceiptError,
  type ReceiptFault,
  signDecision,
  verifyReceipt,
} from "./approval.js";
export { safetyDigits, safetyNumber, type SafetySide } from "./safety.js";
export { MAX_MESSAGE_TOKENS, MAX_SEARCH_TOKENS, searchTokens, searchWords } from "./search.js";
export { eventOrigin, messageOrigin, type Origin, originKey, replyId } from "./replies.js";
export { keysHash, leafHash, type ListedKey, logLabel, logLeaf } from "./key-log.js";
export {
  type DirectoryKey,
  isAccepted,
  isRetired,
  type LoadedPins,
  notice,
  type Notice,
  type NoticeKind,
  type Pin,
  sortNotices,
  type Standing,
  type StoredPin,
  type StoredPins,
  type StoredPrincipal,
  Trust,
  type TrustPolicy,
} from "./trust.js";
export {
  type EpochMarks,
  type Given,
  type Incoming,
  keptMessage,
  MAX_MESSAGE_AGE_MS,
  mergedMarks,
  NO_MARKS,
  Refusal,
  Room,
  type Sealing,
  type ServerEpoch,
  type Shown,
  type Visibility,
  type WrapTaken,
  type Writing,
} from "./room.js";
export {
  type Asked,
  Consents,
  type Decision,
  MAX_REMEMBERED_DAYS,
  openResponse,
  type Sensitivity,
  type StoredConsents,
  type StoredRemembered,
  type Tool,
} from "./consent.js";
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
