/**
 * People on Blindpipe: sign-in, devices, conversations, events.
 *
 * @module client
 */
export { Client } from "./client/client.js";
export type { ClientOptions, PasswordLogin } from "./client/options.js";
export { Account, type SignInDevice, type StoredSession } from "./client/account.js";
export type { NewFile, Thumbnail } from "./core/files.js";
export {
  Conversation,
  type HistoryPage,
  isDeleted,
  type ReceivedMessage,
  type SendOptions,
} from "./client/conversation.js";
export { Agents, type DeliveryFilter } from "./client/agents.js";
export { AccountCalls, type RequestOptions, type ShareOptions } from "./client/calls.js";
export { ApprovalRequest } from "./client/approvals.js";
export {
  type Approval,
  type ApprovalState,
  type DecisionItem,
  Receipt,
} from "./core/approvals.js";
export { type Reactions, timeline, type TimelineItem } from "./client/timeline.js";
export { type ContentKind, type ContentView, contentView } from "./core/content.js";
export type { CreateOptions, DeviceKeys, PushTarget } from "./client/devices.js";
export { Devices } from "./client/devices.js";
export {
  type PasskeyOptions,
  supportsPasskeyAutofill,
  supportsPasskeys,
} from "./client/passkeys.js";
export { type Proof, Sessions } from "./client/sessions.js";
export type { ClientEvent } from "./client/events.js";
export type { ConsentStore, DeviceTool, ToolRun } from "./client/tool-requests.js";
export type { Decision, Sensitivity, StoredConsents, Tool } from "./e2ee/consent.js";
export { ToolRequest } from "./client/tool-requests.js";
export { type FileStore, fileStore } from "./stores/file-store.js";
export type {
  DeviceState,
  DeviceStore,
  Store,
  StoredKeys,
  StoreOwner,
} from "./stores/store.js";
export type { LoadedTrust, StoredTrust } from "./stores/pin-store.js";
export type { Handled } from "./core/session.js";
export {
  ApiError,
  BlindpipeError,
  Closed,
  ConnectionLost,
  type ErrorDetails,
  IdConflict,
  isOutage,
  NotApproved,
} from "./errors.js";
// A class for each code of the service.
export * from "./generated/errors.js";
export type { Hooks, Logger } from "./hooks.js";
export { DecryptError, KeyUnavailable, UsageError } from "./e2ee/errors.js";
export type { EpochMarks } from "./e2ee/room.js";
export { Trust } from "./e2ee/trust.js";
export { generateProtectionPassword } from "./e2ee/backup.js";
export type { components, operations, paths } from "./generated/openapi.js";
