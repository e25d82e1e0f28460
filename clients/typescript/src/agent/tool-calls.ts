/** Tool calls: a device executes and signs, or nobody does. */
import { type JsonObject, encodeContent } from "../e2ee/content.js";
import { Kind, type RequestPlace, requestDigest } from "../e2ee/context.js";
import { envelopeOf } from "../e2ee/envelope.js";
import { DecryptError, KeyUnavailable, UsageError } from "../e2ee/errors.js";
import { idBytes } from "../e2ee/bytes.js";
import type { Session } from "../core/session.js";
import type { ToolCallOutcome, ToolCallState } from "../core/types.js";
import { BlindpipeError, Closed } from "../errors.js";
import type { Http } from "../transport/http.js";
import { type Deferred, deferred, onAbort, sleep } from "../transport/wait.js";

export interface CallOptions {
  readonly tool: string;
  readonly scope: string;
  readonly arguments: JsonObject;
  /** The text that the person reads, beside the arguments. */
  readonly prompt?: string;
  /** The device that is asked; all devices of the person without it. */
  readonly device?: string;
  /** The id of the user who is asked; by default the sender of the message. */
  readonly user?: string | undefined;
  readonly key?: string;
}

export interface CallResult {
  readonly status: "executed" | "denied" | "failed";
  readonly reason: string | null;
  /** The device's result; null unless executed. */
  readonly result: unknown;
  readonly message: string | null;
}

/** Events bring answers at once; this look is for answers that come another way. */
const LOOK_INTERVAL_MS = 3_000;

interface Outcome {
  readonly status: string;
  readonly reason?: string | null | undefined;
  readonly payload?: JsonObject | null | undefined;
}

export class ToolCalls {
  readonly #waiting = new Map<string, Deferred<Outcome>>();

  constructor(
    private readonly http: Http,
    private readonly agentId: string,
    private readonly session: Session,
    private readonly allowsClear: boolean,
  ) {}

  /** Gives an outcome to whoever waits for it, before any queue. */
  deliver(outcome: ToolCallOutcome): boolean {
    const waiting = this.#waiting.get(outcome.request_id);
    waiting?.resolve(outcome);
    return waiting !== undefined;
  }

  /** Ends the calls that a handler has left behind. */
  stop(): void {
    for (const waiting of this.#waiting.values()) waiting.reject(new Closed());
  }

  async call(
    conversationId: string,
    requestId: string,
    options: CallOptions,
    signal: AbortSignal,
  ): Promise<CallResult> {
    if (!options.user) throw new UsageError("name the user who is asked");
    const place: RequestPlace = {
      kind: Kind.request,
      userId: options.user,
      requestId,
      tool: options.tool,
      scope: options.scope,
      deviceId: options.device,
    };
    const content = encodeContent({
      arguments: options.arguments,
      ...(options.prompt === undefined ? {} : { prompt: options.prompt }),
    });
    const isSealed = await this.#isSealed(conversationId);
    const payload = isSealed
      ? await this.session.sealPayload(conversationId, place, content)
      : { type: "tool_call", ...(JSON.parse(new TextDecoder().decode(content)) as JsonObject) };
    const outcome = await this.#outcome(conversationId, place, payload, signal);
    return this.#judge(conversationId, place, content, outcome, isSealed);
  }

  async #isSealed(conversationId: string): Promise<boolean> {
    const mustSeal = !this.allowsClear || (await this.session.isEncrypted(conversationId));
    if (!mustSeal || this.session.hasKeys) return mustSeal;
    throw new KeyUnavailable("this agent has no key for what is encrypted here");
  }

  async #outcome(
    conversationId: string,
    place: RequestPlace,
    payload: JsonObject,
    signal: AbortSignal,
  ): Promise<Outcome> {
    const waiting = deferred<Outcome>();
    const stop = (): void => waiting.reject(signal.reason);
    const stay = onAbort(signal, stop);
    this.#waiting.set(place.requestId, waiting);
    try {
      const ask = (): Promise<ToolCallState> => this.#ask(conversationId, place, payload, signal);
      const state = await ask();
      if (state.status !== "pending") return state;
      void this.#look(ask, waiting, signal);
      return await waiting.promise;
    } finally {
      stay();
      waiting.resolve({ status: "done" });
      this.#waiting.delete(place.requestId);
    }
  }

  /** A request that was made before answers its present state. */
  #ask(
    conversationId: string,
    place: RequestPlace,
    payload: JsonObject,
    signal: AbortSignal,
  ): Promise<ToolCallState> {
    return this.http.data<ToolCallState>({
      method: "POST",
      path: `/agents/${this.agentId}/artifact-requests`,
      body: {
        request_id: place.requestId,
        conversation_id: conversationId,
        user_id: place.userId,
        tool: place.tool,
        scope: place.scope,
        ...(place.deviceId ? { device_id: place.deviceId } : {}),
        payload,
      },
      repeatable: true,
      signal,
    });
  }

  async #look(
    ask: () => Promise<ToolCallState>,
    waiting: Deferred<Outcome>,
    signal: AbortSignal,
  ): Promise<void> {
    let isDone = false;
    waiting.promise.then(
      () => (isDone = true),
      () => (isDone = true),
    );
    while (!isDone && !signal.aborted) {
      await sleep(LOOK_INTERVAL_MS, signal).catch(() => {});
      if (isDone) return;
      try {
        const state = await ask();
        if (state.status !== "pending") waiting.resolve(state);
      } catch (error) {
        if (isFinal(error)) waiting.reject(error);
      }
    }
  }

  /** `executed` counts only with an envelope of the person asked, for exactly this request. */
  async #judge(
    conversationId: string,
    place: RequestPlace,
    content: Uint8Array,
    outcome: Outcome,
    isSealed: boolean,
  ): Promise<CallResult> {
    const { status, reason = null } = outcome;
    if (!isSealed) {
      const answered = outcome.payload ?? {};
      return resultOf(status, reason, answered);
    }
    try {
      const answered = await this.#openResponse(conversationId, place, content, outcome);
      return resultOf(status, reason, answered);
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      if (status === "executed") {
        return { status: "failed", reason: "unproven", result: null, message: null };
      }
      return resultOf(status, reason, {});
    }
  }

  async #openResponse(
    conversationId: string,
    place: RequestPlace,
    content: Uint8Array,
    outcome: Outcome,
  ): Promise<JsonObject> {
    const conversation = idBytes(conversationId);
    const agent = { type: "agent", id: this.agentId } as const;
    const digest = await requestDigest(conversation, agent, place, content);
    const shown = await this.session.open(conversationId, {
      sender: { type: "user", id: place.userId },
      place: {
        kind: Kind.response,
        digest,
        requestId: place.requestId,
        status: outcome.status,
        reason: outcome.reason,
      },
      envelope: envelopeOf(outcome.payload),
      createdAt: Date.now(),
      isLive: true,
    });
    return shown.opened!.content;
  }
}

/** A further look would be refused as well, or would find the same mistake. */
function isFinal(error: unknown): boolean {
  if (!(error instanceof BlindpipeError)) return true;
  return !error.retryable && error.status >= 400 && error.status < 500;
}

function resultOf(status: string, reason: string | null, content: JsonObject): CallResult {
  const known = status === "executed" || status === "denied" ? status : "failed";
  return {
    status: known,
    reason,
    result: known === "executed" ? (content["result"] ?? null) : null,
    message: typeof content["message"] === "string" ? content["message"] : null,
  };
}
