/** Tool calls on this device: shown, decided, executed once, signed. */
import { idBytes } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind, type RequestPlace, requestDigest } from "../e2ee/context.js";
import { envelopeOf } from "../e2ee/envelope.js";
import type { Session } from "../core/session.js";
import type { ToolCall } from "../core/types.js";

/** Remembers durably which requests this device has begun. */
export interface BegunStore {
  /** False if it was begun before; true once the note is kept. */
  begin(requestId: string): Promise<boolean>;
}

export function memoryBegunStore(): BegunStore {
  const begun = new Set<string>();
  return {
    async begin(requestId) {
      if (begun.has(requestId)) return false;
      begun.add(requestId);
      return true;
    },
  };
}

/** An agent's wish to run a tool here. Show the decrypted arguments, never the prompt alone. */
export class ToolRequest {
  /** The decrypted arguments. */
  readonly arguments: JsonObject;

  constructor(
    readonly call: ToolCall,
    given: JsonObject,
    readonly prompt: string | null,
    private readonly session: Session,
    private readonly digest: Uint8Array,
    private readonly begun: BegunStore,
  ) {
    this.arguments = given;
  }

  /** Runs the tool once, and answers with its result in this device's name. */
  async execute(run: (args: JsonObject) => unknown): Promise<void> {
    if (!(await this.begun.begin(this.call.request_id))) return;
    try {
      const result = (await run(this.arguments)) ?? null;
      await this.#respond("executed", null, { result: result as JsonObject });
    } catch (error) {
      await this.#respond("failed", "tool_failed", { message: (error as Error).message });
    }
  }

  async deny(reason = "user_denied"): Promise<void> {
    if (!(await this.begun.begin(this.call.request_id))) return;
    await this.#respond("denied", reason, {});
  }

  async #respond(status: string, reason: string | null, content: JsonObject): Promise<void> {
    const { request_id, conversation_id } = this.call;
    const place = { kind: Kind.response, digest: this.digest, requestId: request_id, status, reason };
    const payload = await this.session.sealPayload(conversation_id, place, content);
    await this.session.options.http.data({
      method: "POST",
      path: `/artifact-requests/${request_id}/response`,
      body: { status, ...(reason ? { reason } : {}), payload },
      repeatable: true,
    });
  }
}

/** Opens a request. Throws `DecryptError` for what no device executes. */
export async function openToolRequest(
  call: ToolCall,
  session: Session,
  begun: BegunStore,
): Promise<ToolRequest> {
  const place: RequestPlace = {
    kind: Kind.request,
    userId: call.user_id,
    requestId: call.request_id,
    tool: call.tool,
    scope: call.scope,
    deviceId: call.device_id,
  };
  const agent = { type: "agent", id: call.agent_id } as const;
  const envelope = envelopeOf(call.payload);
  const createdAt = Date.parse(call.created_at);
  const incoming = { sender: agent, place, envelope, createdAt, isLive: true };
  const shown = await session.open(call.conversation_id, incoming);
  const opened = shown.opened!;
  const conversation = idBytes(call.conversation_id);
  const digest = await requestDigest(conversation, agent, place, opened.contentBytes);
  const { arguments: args, prompt } = opened.content;
  const isObject = typeof args === "object" && args !== null && !Array.isArray(args);
  const text = typeof prompt === "string" ? prompt : null;
  return new ToolRequest(call, isObject ? args : {}, text, session, digest, begun);
}
