/** Tool calls on this device: shown, decided, executed once, signed. */
import { idBytes } from "../e2ee/bytes.js";
import { Consents, type Decision, type StoredConsents, type Tool } from "../e2ee/consent.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind, type RequestPlace, requestDigest } from "../e2ee/context.js";
import { envelopeOf } from "../e2ee/envelope.js";
import type { Principal } from "../e2ee/keys.js";
import type { Session } from "../core/session.js";
import type { ToolCall } from "../core/types.js";

/** Where a device keeps its records of consent. */
export interface ConsentStore {
  load(): Promise<StoredConsents | null>;
  /** Resolves once they are kept durably: only then a tool runs. */
  save(consents: StoredConsents): Promise<void>;
}

/** The device's records, and the store behind them. */
export class ConsentKeeper {
  #loaded: Promise<Consents> | null = null;
  #saved: Promise<void> = Promise.resolve();

  constructor(
    private readonly tools: Readonly<Record<string, Tool>>,
    private readonly store: ConsentStore | null,
  ) {}

  load(): Promise<Consents> {
    this.#loaded ??= this.#read();
    return this.#loaded;
  }

  async #read(): Promise<Consents> {
    try {
      return new Consents(this.tools, (await this.store?.load()) ?? undefined);
    } catch (error) {
      this.#loaded = null;
      throw error;
    }
  }

  /** Saves follow each other, so that an older state replaces no newer one. */
  async save(): Promise<void> {
    const consents = await this.load();
    const { store } = this;
    const saved = this.#saved.then(() => store?.save(consents.store()));
    this.#saved = saved.catch(() => {});
    await saved;
  }
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
    private readonly place: RequestPlace,
    private readonly consents: Consents,
    private readonly keeper: ConsentKeeper,
  ) {
    this.arguments = given;
  }

  get #agent(): Principal {
    return { type: "agent", id: this.call.agent_id };
  }

  /**
   * Decides by this device's own table of tools and its own records. The server's word can only
   * raise the sensitivity.
   */
  async decide(): Promise<Decision> {
    const { self } = this.session.options;
    const conversation = idBytes(this.call.conversation_id);
    const { sensitivity } = this.call;
    const now = Date.now();
    const decision = this.consents.decide(
      self,
      conversation,
      this.#agent,
      this.place,
      sensitivity,
      now,
    );
    // The window of a medium tool slides with its use.
    if (decision === "execute") await this.keeper.save();
    return decision;
  }

  /** The person agrees: this agent may use the scope here, by the rules of its sensitivity. */
  async approve(): Promise<void> {
    const { conversation_id, scope } = this.call;
    this.consents.approve(idBytes(conversation_id), this.#agent, scope, Date.now());
    await this.keeper.save();
  }

  /** Noted durably before anything runs. False if it began before. */
  async #begin(): Promise<boolean> {
    const isNew = this.consents.begin(this.#agent, this.call.request_id);
    if (isNew) await this.keeper.save();
    return isNew;
  }

  /** Runs the tool once, and answers with its result in this device's name. */
  async execute(run: (args: JsonObject) => unknown): Promise<void> {
    if (!(await this.#begin())) return;
    let result: JsonObject | null;
    try {
      result = ((await run(this.arguments)) as JsonObject | undefined) ?? null;
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      return this.#respond("failed", "tool_failed", { message });
    }
    // Whatever fails from here on, the tool has executed.
    await this.#respond("executed", null, { result });
  }

  async deny(reason = "user_denied"): Promise<void> {
    if (!(await this.#begin())) return;
    await this.#respond("denied", reason, {});
  }

  async #respond(status: string, reason: string | null, content: JsonObject): Promise<void> {
    const { request_id, conversation_id } = this.call;
    const place = {
      kind: Kind.response,
      digest: this.digest,
      requestId: request_id,
      status,
      reason,
    };
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
  keeper: ConsentKeeper,
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
  const given = isObject ? args : {};
  return new ToolRequest(call, given, text, session, digest, place, await keeper.load(), keeper);
}
