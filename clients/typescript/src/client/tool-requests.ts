/** Tool calls on this device: shown, decided, executed once, signed. */
import { idBytes } from "../e2ee/bytes.js";
import {
  Consents,
  type Decision,
  MAX_REMEMBERED_DAYS,
  type StoredConsents,
  type Tool,
} from "../e2ee/consent.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind, type RequestPlace, requestDigest } from "../e2ee/context.js";
import { envelopeOf } from "../e2ee/envelope.js";
import { UsageError } from "../e2ee/errors.js";
import type { Principal } from "../e2ee/keys.js";
import { isSameId } from "../core/opened.js";
import type { Session } from "../core/session.js";
import type { Grant, ToolCall } from "../core/types.js";
import { ApiError, NotApproved } from "../errors.js";

/** Runs a tool; the arguments are decrypted. Its result is a JSON value. */
export type ToolRun = (tool: string, args: JsonObject) => unknown;

/** A tool of this device, and what runs it. */
export interface DeviceTool extends Tool {
  /** Runs where `execute()` is given nothing else. */
  readonly run?: ToolRun | undefined;
}

/** Where a device keeps its records of consent. */
export interface ConsentStore {
  /** All records, each as it was added last; null at the first start. */
  loadConsents(): Promise<StoredConsents | null>;
  /**
   * Keeps the records that have changed: each takes the place of the earlier one of its name, null
   * takes it away, and all others stay. Resolves once they are durable: only then a tool runs. A
   * request that began more than 31 days before may be forgotten.
   */
  addConsents(changed: StoredConsents): Promise<void>;
}

/** The device's records, and the store behind them. */
export class ConsentKeeper {
  #loaded: Promise<Consents> | null = null;
  #saved: Promise<void> = Promise.resolve();

  constructor(
    readonly tools: Readonly<Record<string, DeviceTool>>,
    private readonly store: ConsentStore | null,
    /** The store has failed. */
    private readonly onFailed: (error: unknown) => void,
  ) {}

  load(): Promise<Consents> {
    this.#loaded ??= this.#read();
    return this.#loaded;
  }

  async #read(): Promise<Consents> {
    try {
      const stored = await this.store?.loadConsents();
      return new Consents(this.tools, stored ?? undefined);
    } catch (error) {
      this.#loaded = null;
      throw error;
    }
  }

  /** Forgets what was approved of an agent: see `Consents.withdraw`. */
  async withdraw(
    conversationId: string | null,
    agentId: string,
    scope: string | null,
  ): Promise<void> {
    const consents = await this.load();
    const conversation = conversationId === null ? null : idBytes(conversationId);
    if (consents.withdraw(conversation, { type: "agent", id: agentId }, scope)) await this.save();
  }

  /** Saves follow each other, so that an older record replaces no newer one. */
  async save(): Promise<void> {
    const consents = await this.load();
    const saved = this.#saved.then(() => this.#write(consents));
    this.#saved = saved.catch(() => {});
    await saved;
  }

  async #write(consents: Consents): Promise<void> {
    const changed = this.store && consents.takeChanged();
    if (!changed) return;
    try {
      await this.store!.addConsents(changed);
    } catch (error) {
      consents.notKept(changed);
      this.onFailed(error);
      throw error;
    }
  }
}

/** The parts that a request works with. */
export interface ToolRequestParts {
  readonly session: Session;
  readonly keeper: ConsentKeeper;
  /** Makes a fresh secret if one is due, so that the answer can be sealed. */
  readonly prepare: (conversationId: string) => Promise<void>;
}

/** A grant that was revoked ends what this device remembers of its scopes. */
export async function withdrawGrant(
  consents: ConsentKeeper,
  { agent_id, conversation_id, scopes }: Grant,
): Promise<void> {
  // A grant that names no scope counts as all of them.
  const named = scopes.length > 0 ? scopes : [null];
  for (const scope of named) await consents.withdraw(conversation_id, agent_id, scope);
}

/** An agent's wish to run a tool here. Show the decrypted arguments, never the prompt alone. */
export class ToolRequest {
  /** The decrypted arguments. */
  readonly arguments: JsonObject;
  /** The person agreed to this request. */
  #isApproved = false;

  constructor(
    readonly call: ToolCall,
    given: JsonObject,
    readonly prompt: string | null,
    private readonly parts: ToolRequestParts,
    private readonly digest: Uint8Array,
    private readonly place: RequestPlace,
    private readonly consents: Consents,
  ) {
    this.arguments = given;
  }

  get #agent(): Principal {
    return { type: "agent", id: this.call.agent_id };
  }

  get #conversation(): Uint8Array {
    return idBytes(this.call.conversation_id);
  }

  /** A tool of this device's table has the name asked for. */
  get isKnown(): boolean {
    return this.consents.tool(this.call.tool) !== undefined;
  }

  /** This person is asked, and no other device of theirs. */
  get #isForMe(): boolean {
    const { self, deviceId } = this.parts.session.options;
    const named = this.place.deviceId;
    const isMine = isSameId(self.id, this.place.userId);
    return isMine && (named === null || named === deviceId);
  }

  #decide(): Decision {
    const decision = this.consents.decide(
      this.parts.session.options.self,
      this.#conversation,
      this.#agent,
      this.place,
      this.call.sensitivity,
      Date.now(),
    );
    return decision === "repeated" || this.#isForMe ? decision : "unable";
  }

  /**
   * Decides by this device's own table of tools and its own records. The server's word can only
   * raise the sensitivity.
   */
  async decide(): Promise<Decision> {
    return this.#decide();
  }

  /** The person agrees to this request alone: `execute()` uses that up. */
  async approve(): Promise<void> {
    this.#isApproved = true;
  }

  /**
   * The person wants not to be asked again: for so many days, this tool of this agent runs unasked
   * in this conversation. Throws `UsageError` for more than 30 days and for a `high` tool.
   */
  async remember({ days = MAX_REMEMBERED_DAYS }: { readonly days?: number } = {}): Promise<void> {
    const { sensitivity } = this.call;
    const now = Date.now();
    if (!this.#isForMe) throw new UsageError("another device is asked");
    this.consents.remember(
      this.#conversation,
      this.#agent,
      this.place,
      sensitivity,
      days,
      now,
    );
    await this.parts.keeper.save();
  }

  /** Noted durably before anything runs. False if it began before. */
  async #begin(): Promise<boolean> {
    const { request_id: id } = this.call;
    if (!this.consents.begin(this.#agent, id, Date.now())) return false;
    try {
      await this.parts.keeper.save();
      return true;
    } catch (error) {
      this.consents.notBegun(this.#agent, id);
      throw error;
    }
  }

  /**
   * Keeps a request that names no device for this one. False if another device has it.
   */
  async #claim(): Promise<boolean> {
    if (this.place.deviceId !== null) return true;
    const { request_id, agent_id } = this.call;
    try {
      await this.parts.session.options.http.data({
        method: "POST",
        path: `/artifact-requests/${request_id}/claim`,
        body: { agent_id },
        repeatable: true,
      });
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.code === "ALREADY_DECIDED") return false;
      throw error;
    }
  }

  /**
   * Runs the tool once if it may run, and answers with its result in this device's name. Without
   * `run`, the handler of the device's table runs. A request that names no device runs on the first
   * one that claims it; on the others nothing runs. Throws `NotApproved` unless the device's records
   * allow it or `approve()` was called on this request. A tool that this device does not know is
   * answered as `unknown_tool`.
   */
  async execute(run?: ToolRun): Promise<void> {
    const decision = this.#decide();
    if (decision === "repeated") return;
    if (!this.isKnown && this.#isForMe) return this.#refuse("failed", "unknown_tool");
    if (decision !== "execute" && !(decision === "ask" && this.#isApproved)) {
      throw new NotApproved();
    }
    const { tool, conversation_id } = this.call;
    const runs = run ?? this.parts.keeper.tools[tool]?.run;
    if (!runs) throw new UsageError(`nothing runs the tool ${tool}: give execute() a function`);
    // A former member is answered by nobody.
    const { room } = await this.parts.session.load(conversation_id);
    if (!room.isMember(this.#agent)) throw new NotApproved("the agent is no member here");
    await this.parts.prepare(conversation_id);
    if (!(await this.#claim())) return;
    if (!(await this.#begin())) return;
    this.#isApproved = false;
    let result: JsonObject | null;
    try {
      result = ((await runs(tool, this.arguments)) as JsonObject | undefined) ?? null;
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      return this.#respond("failed", "tool_failed", { message });
    }
    // Whatever fails from here on, the tool has executed.
    await this.#respond("executed", null, { result });
  }

  async deny(reason = "user_denied"): Promise<void> {
    await this.#refuse("denied", reason);
  }

  async #refuse(status: string, reason: string): Promise<void> {
    if (await this.#begin()) await this.#respond(status, reason, {});
  }

  async #respond(status: string, reason: string | null, content: JsonObject): Promise<void> {
    const { request_id, conversation_id, agent_id } = this.call;
    const place = {
      kind: Kind.response,
      digest: this.digest,
      requestId: request_id,
      status,
      reason,
    };
    const { session } = this.parts;
    // Members may have changed while the tool ran.
    await this.parts.prepare(conversation_id);
    const payload = await session.sealPayload(conversation_id, place, content);
    await session.options.http.data({
      method: "POST",
      path: `/artifact-requests/${request_id}/response`,
      body: { agent_id, status, ...(reason ? { reason } : {}), payload },
      repeatable: true,
    });
  }
}

/**
 * Opens a request; null if the agent is no member of the conversation. Throws `DecryptError` for
 * what no device executes.
 */
export async function openToolRequest(
  call: ToolCall,
  parts: ToolRequestParts,
): Promise<ToolRequest | null> {
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
  const shown = await parts.session.open(call.conversation_id, incoming);
  if (!shown.entry.room.isMember(agent)) return null;
  const opened = shown.opened!;
  const conversation = idBytes(call.conversation_id);
  const digest = await requestDigest(conversation, agent, place, opened.contentBytes);
  const { arguments: args, prompt } = opened.content;
  const isObject = typeof args === "object" && args !== null && !Array.isArray(args);
  const text = typeof prompt === "string" ? prompt : null;
  const given = isObject ? args : {};
  const consents = await parts.keeper.load();
  return new ToolRequest(call, given, text, parts, digest, place, consents);
}
