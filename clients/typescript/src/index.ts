/**
 * People on Blindpipe: sign-in, devices, conversations, events.
 *
 * @module client
 */
export { Client, type ClientOptions, type PasswordLogin } from "./client/client.js";
export { Account, type SignInDevice } from "./client/account.js";
export { Conversation, type ReceivedMessage, type SendOptions } from "./client/conversation.js";
export type { CreateOptions, DeviceKeys } from "./client/devices.js";
export { Devices } from "./client/devices.js";
export type { ClientEvent } from "./client/events.js";
export type { ConsentStore, DeviceTool, ToolRun } from "./client/tool-requests.js";
export type { Decision, Sensitivity, StoredConsents, Tool } from "./e2ee/consent.js";
export { ToolRequest } from "./client/tool-requests.js";
export {
  ApiError,
  BlindpipeError,
  Closed,
  ConnectionLost,
  type ErrorDetails,
  IdConflict,
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
