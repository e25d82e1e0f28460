/** Shapes of the service, from its OpenAPI document. */
import type { JsonObject } from "../e2ee/content.js";
import type { components } from "../generated/openapi.js";

type Schemas = components["schemas"];

/** A shape whose payload is any JSON object. */
type WithPayload<T> = Omit<T, "payload"> & { payload: JsonObject | null };

export type Message = WithPayload<Schemas["Message"]> & {
  readonly refs?: string[] | null;
  readonly deleted_at?: string | null;
  readonly deleted_by?: string | null;
};
export type Conversation = Schemas["Conversation"];
export type Member = Schemas["Member"];
export type MemberChange = Schemas["MemberChange"];
export type Sent = Schemas["Sent"];
/** What an agent is writing. `n` is the number of the next piece. */
export type LiveStream = Schemas["LiveStream"];
export type OwnGroupKeys = Schemas["OwnGroupKeys"];
export type KeyRotation = Schemas["KeyRotation"];
export type KeyDirectory = Schemas["KeyDirectory"];
export type AgentKeys = Schemas["AgentKeys"];
export type ToolCall = WithPayload<Schemas["ToolCall"]>;
export type ToolCallState = Omit<Schemas["ToolCallState"], "payload"> & {
  payload?: JsonObject | null;
};
export type ToolCallOutcome = Omit<Schemas["ToolCallOutcome"], "payload"> & {
  payload?: JsonObject | null;
};
export type SignedIn = Schemas["SignedIn"];
export type StoredDevice = Schemas["Device"];
export type SessionInfo = Schemas["Session"];
export type SessionChange = Schemas["SessionChange"];
export type KeyBackup = Schemas["KeyBackup"];
export type RequestedUpload = Schemas["RequestedUpload"];
export type ConfirmedUpload = Schemas["ConfirmedUpload"];
export type Grant = Schemas["Grant"];
export type AgentInstance = Schemas["AgentInstance"];

/** A durable event, the same on every transport. */
export interface EventObject {
  readonly event_id: string;
  readonly event: string;
  readonly cursor: string;
  readonly seq: number;
  readonly conversation_id?: string;
  readonly created_at: string;
  readonly data: JsonObject;
}
