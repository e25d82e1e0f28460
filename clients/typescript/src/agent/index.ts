/**
 * The agent's side: events in, answers out, each exactly once.
 *
 * @module agent
 */
export { Agent, type RunOptions } from "./agent.js";
export type { Handler, Middleware } from "./processor.js";
export {
  type AskOptions,
  Context,
  type DeferredStream,
  type QuestionAnswer,
  type SendOptions,
  type SteerMessage,
} from "./context.js";
export type { ApprovalResult, ApproveOptions } from "./approvals.js";
export { type Approval, type ApprovalState, Receipt } from "../core/approvals.js";
export type { BusyPolicy } from "./turns.js";
export type { AgentOptions } from "./options.js";
export type { HandledStore, PinStore, StoredTrust } from "../stores/pin-store.js";
export { type News, type SharedStore, StoreChanged } from "../stores/shared-store.js";
export { POSTGRES_TABLES, type Queryable, postgresStore } from "../stores/postgres-store.js";
export { filePins } from "../stores/pin-store.js";
export type { CallOptions, CallResult } from "./tool-calls.js";
export { toNode, verifyDelivery, type WebhookHandler, type WebhookSecrets } from "./webhook.js";
export {
  ApiError,
  BlindpipeError,
  Closed,
  ConnectionLost,
  type ErrorDetails,
  IdConflict,
} from "../errors.js";
// A class for each code of the service.
export * from "../generated/errors.js";
export type { Hooks, Logger } from "../hooks.js";
export type { Handled } from "../core/session.js";
export type { EpochMarks } from "../e2ee/room.js";
export type { EventObject, Grant, Message, Sent } from "../core/types.js";
export { DecryptError, KeyUnavailable, UsageError } from "../e2ee/errors.js";
