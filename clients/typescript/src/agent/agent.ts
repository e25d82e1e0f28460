/** An agent: what comes is opened and handled in order, and answered exactly once. */
import { base64, equal, fromBase64, hex } from "../e2ee/bytes.js";
import { DEFAULT_MAX_AGE_MS } from "../e2ee/conversation.js";
import { DecryptError } from "../e2ee/errors.js";
import { type KeyPair, type Principal } from "../e2ee/keys.js";
import { type Origin, eventOrigin, messageOrigin } from "../e2ee/replies.js";
import { sign } from "../e2ee/primitives.js";
import { Pins } from "../e2ee/trust.js";
import { Session } from "../core/session.js";
import type { EventObject, Message, ToolCallOutcome } from "../core/types.js";
import { BlindpipeError, Closed } from "../errors.js";
import { AgentKeysMismatch, CursorExpired, RateLimited } from "../generated/errors.js";
import { HookCaller, SILENT } from "../hooks.js";
import { Http } from "../transport/http.js";
import { type Frame, Socket, defaultWebSocket } from "../transport/socket.js";
import { deferred, sleep } from "../transport/wait.js";
import { Context, type QuestionAnswer } from "./context.js";
import { Dispatcher } from "./dispatcher.js";
import { type AgentOptions, DEFAULT_RETRY_DELAYS_MS, optionsFromEnv, seedsOf } from "./options.js";
import { type Answered, Outbox } from "./outbox.js";
import type { AgentParts } from "./parts.js";
import { type PinStore, filePins } from "./pin-store.js";
import { ToolCalls } from "./tool-calls.js";
import { type WebhookHandler, readDelivery, verifyDelivery } from "./webhook.js";

export type Handler = (context: Context) => unknown;
export type Middleware = (context: Context, next: () => Promise<void>) => unknown;

export interface RunOptions {
  /** `poll` for cron and serverless; `socket` is the default. */
  readonly transport?: "socket" | "poll";
  /** Ends the run as SIGTERM does. */
  readonly signal?: AbortSignal;
  /** Keeps keys warm and handles nothing until `activate()`. */
  readonly standby?: boolean;
}

const DEFAULT_CONCURRENCY = 8;
const ACK_INTERVAL_MS = 200;
const STOP_GRACE_MS = 25_000;
const WEBHOOK_DEADLINE_MS = 9_000;
const WEBHOOK_RETRY_S = 5;
const POLL_WAIT_S = 25;
const MAX_PENDING_EVENTS = 2_000;
const RESUME_BELOW_EVENTS = 200;

/** What a started agent holds. */
interface Running {
  readonly parts: AgentParts;
  readonly pins: Pins;
  readonly store: PinStore | null;
}

export class Agent {
  readonly #options: AgentOptions;
  readonly #hooks: HookCaller;
  readonly #handlers = new Map<string, Handler[]>();
  readonly #answerHandlers = new Map<string, Handler>();
  readonly #middleware: Middleware[] = [];
  readonly #stopping = new AbortController();
  /** Aborts handlers that did not end in time. */
  readonly #handlerStop = new AbortController();
  readonly #closing = new AbortController();
  #running: Promise<Running> | null = null;
  #socket: Socket | null = null;
  #dispatcher: Dispatcher;
  #intake: Promise<void> = Promise.resolve();
  /** The cursor of the last event taken in. */
  #received: string | null = null;
  #ackable: string | null = null;
  #ackTimer: ReturnType<typeof setTimeout> | null = null;
  #replayedTo = 0;
  #isStandby = false;
  #isDropped = false;
  #onRoom: (() => void)[] = [];
  #failure: unknown = null;

  constructor(options: AgentOptions) {
    this.#options = options;
    this.#hooks = new HookCaller(options.hooks ?? {}, options.logger ?? SILENT);
    this.#dispatcher = new Dispatcher({
      concurrency: options.concurrency ?? DEFAULT_CONCURRENCY,
      handle: (event) => this.#handle(event),
      onProgress: (cursor) => this.#progress(cursor),
    });
  }

  /** Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY` and `_PINS`. */
  static fromEnv(overrides: Partial<AgentOptions> = {}): Agent {
    return new Agent({ ...optionsFromEnv(process.env), ...overrides });
  }

  get agentId(): string {
    return this.#options.agentId;
  }

  get #self(): Principal {
    return { type: "agent", id: this.agentId };
  }

  /** `message`, or any name of the event catalogue. Handlers of a name run in their order. */
  on(name: string, handler: Handler): this {
    const event = name === "message" ? "message.created" : name;
    this.#handlers.set(event, [...(this.#handlers.get(event) ?? []), handler]);
    return this;
  }

  /** Answers to the questions with this tag. */
  onAnswer(tag: string, handler: Handler): this {
    this.#answerHandlers.set(tag, handler);
    return this;
  }

  use(middleware: Middleware): this {
    this.#middleware.push(middleware);
    return this;
  }

  /** The tap: a person behind this agent takes the key for that principal's. */
  async trust(principal: Principal, keyId: string): Promise<void> {
    const { pins, store, parts } = await this.#start();
    pins.confirm(principal, keyId);
    await this.#save(store, pins, parts.session);
  }

  /** Whether `AgentKeysMismatch` and the like would stop a run: starts without handling. */
  async check(): Promise<void> {
    await this.#start();
  }

  #start(): Promise<Running> {
    this.#running ??= this.#begin();
    this.#running.catch(() => (this.#running = null));
    return this.#running;
  }

  async #begin(): Promise<Running> {
    const options = this.#options;
    const http = new Http({
      url: options.url,
      fetch: options.fetch ?? ((...parameters) => fetch(...parameters)),
      hooks: this.#hooks,
      token: () => options.token,
    });
    const held = await Promise.all(seedsOf(options.key).map((seed) => seed.keys()));
    const keys = await this.#checkKeys(http, held);
    const { pins, store, marks } = await this.#loadPins();
    await pins.observe(this.#self, keys);
    for (const pair of keys) pins.markVerified(this.#self, hex(pair.keyId));
    const session = new Session({
      http,
      self: this.#self,
      signer: keys[0] ?? null,
      opening: keys,
      deviceId: null,
      pins,
      marks,
      onKeyNotice: (notice) => {
        const keyId = "keyId" in notice ? notice.keyId : null;
        const details = { type: notice.type, principal_id: notice.principal.id, key_id: keyId };
        this.#hooks.call("key_changed", details);
        void this.#save(store, pins, session);
      },
      onWrapNotice: (conversationId, notice) =>
        this.#log("warn", "a key of a conversation is odd", {
          type: notice.type,
          conversation_id: conversationId,
        }),
    });
    const allowsClear = keys.length === 0 || options.plaintext === "allow";
    const outbox = new Outbox(http, this.agentId, session, allowsClear);
    const toolCalls = new ToolCalls(http, this.agentId, session, allowsClear);
    const parts = {
      agentId: this.agentId,
      http,
      session,
      outbox,
      toolCalls,
      socket: () => this.#socket,
    };
    return { parts, pins, store };
  }

  /** Checks the keys that are held. A key is never replaced in silence. */
  async #checkKeys(http: Http, held: readonly KeyPair[]): Promise<KeyPair[]> {
    if (held.length === 0) return [];
    let expected: readonly string[] = [];
    for (const pair of held) {
      try {
        await http.data({
          method: "POST",
          path: `/agents/${this.agentId}/keys/check`,
          body: { key_id: hex(pair.keyId) },
          repeatable: true,
        });
        // What fits signs; the others open what was wrapped for them.
        return [pair, ...held.filter((each) => each !== pair)];
      } catch (error) {
        if (!(error instanceof AgentKeysMismatch)) throw error;
        expected = (error.params["expected_key_ids"] as readonly string[] | undefined) ?? [];
        if (expected.length > 0 && pair === held.at(-1)) throw error;
      }
    }
    await this.#registerKey(http, held[0]!);
    return [...held];
  }

  async #registerKey(http: Http, pair: KeyPair): Promise<void> {
    const publicKey = base64(pair.publicKey);
    const signingPublicKey = base64(pair.signingPublicKey);
    const timestamp = new Date().toISOString();
    const text = ["keys-register", this.agentId, publicKey, signingPublicKey, timestamp].join("|");
    await http.data({
      method: "POST",
      path: `/agents/${this.agentId}/keys/register`,
      body: {
        public_key: publicKey,
        signing_public_key: signingPublicKey,
        timestamp,
        signature: base64(await sign(pair.signing, new TextEncoder().encode(text))),
        schemes: ["bp1"],
      },
      repeatable: true,
    });
  }

  async #loadPins(): Promise<{
    pins: Pins;
    store: PinStore | null;
    marks: Map<string, { epoch: number; time: number }>;
  }> {
    const { pins: where, trust } = this.#options;
    const store = typeof where === "string" ? filePins(where) : (where ?? null);
    if (!store) {
      const text = "no pin store: this start is a first contact with everybody";
      if (this.#options.key !== undefined) this.#log("warn", text, {});
      return { pins: new Pins(trust), store, marks: new Map() };
    }
    const stored = await store.load();
    const pins = stored ? Pins.restore(stored.pins, trust) : new Pins(trust);
    return { pins, store, marks: new Map(Object.entries(stored?.marks ?? {})) };
  }

  async #save(store: PinStore | null, pins: Pins, session: Session): Promise<void> {
    if (!store) return;
    const marks = Object.fromEntries(session.marks());
    await store.save({ pins: pins.store(), marks }).catch(() => {
      this.#log("error", "the pins could not be stored", {});
    });
  }

  #log(level: "info" | "warn" | "error", message: string, fields: object): void {
    (this.#options.logger ?? SILENT)[level](message, fields);
  }

  /** Runs until SIGTERM or the signal; finishes what it began. */
  async run(options: RunOptions = {}): Promise<void> {
    this.#isStandby = options.standby ?? false;
    const unwatch = this.#watchForStop(options.signal);
    try {
      const running = await this.#start();
      if (options.transport === "poll") await this.#runPoll(running);
      else await this.#runSocket(running);
      if (this.#failure) throw this.#failure;
    } finally {
      unwatch();
      const { store, pins, parts } = await this.#start().catch(() => ({}) as Partial<Running>);
      if (store && pins && parts) await this.#save(store, pins, parts.session);
    }
  }

  /** Takes no more events, lets handlers end, acknowledges, and closes. */
  stop(): void {
    this.#stopping.abort();
  }

  /** Ends a standby: this process handles the events from the last acknowledgement on. */
  activate(): void {
    if (!this.#isStandby) return;
    this.#isStandby = false;
    this.#received = null;
    this.#isDropped = true;
    this.#socket?.drop();
  }

  #watchForStop(signal: AbortSignal | undefined): () => void {
    const stop = (): void => this.stop();
    if (signal) {
      if (signal.aborted) stop();
      signal.addEventListener("abort", stop, { once: true });
      return () => signal.removeEventListener("abort", stop);
    }
    if (typeof process === "undefined" || typeof process.once !== "function") return () => {};
    process.once("SIGTERM", stop).once("SIGINT", stop);
    return () => {
      process.off("SIGTERM", stop).off("SIGINT", stop);
    };
  }

  async #runSocket(running: Running): Promise<void> {
    const socket = new Socket({
      url: this.#options.url,
      webSocket: this.#options.webSocket ?? defaultWebSocket,
      hooks: this.#hooks,
      auth: () => this.#authFrame(),
      renew: async () => false,
      holders: () => this.#holders(running.parts.http),
      onReady: (frame) => this.#begun(frame),
      onFrame: (frame) => this.#takeFrame(frame, running),
      signal: this.#closing.signal,
    });
    this.#socket = socket;
    const stopped = new Promise<void>((resolve) => {
      if (this.#stopping.signal.aborted) resolve();
      this.#stopping.signal.addEventListener("abort", () => resolve(), { once: true });
    });
    const ended = socket.run();
    await Promise.race([stopped, ended]);
    await this.#finish();
    this.#flushAck();
    this.#closing.abort();
    await ended;
  }

  async #authFrame(): Promise<Frame> {
    await this.#room();
    const { agentId, token } = this.#options;
    const resume = this.#received && !this.#isStandby ? { resume: this.#received } : {};
    return { type: "auth", agent_id: agentId, token, ...resume };
  }

  /** Resolves when few enough events wait, so that a backlog stays on the server. */
  #room(): Promise<void> {
    if (this.#dispatcher.pending < MAX_PENDING_EVENTS) return Promise.resolve();
    return new Promise((resolve) => this.#onRoom.push(resolve));
  }

  async #holders(http: Http): Promise<readonly string[]> {
    const agent = await http.data<{ connections?: { connection_id: string }[] }>({
      method: "GET",
      path: `/agents/${this.agentId}`,
    });
    return (agent.connections ?? []).map((connection) => connection.connection_id);
  }

  #begun(frame: Frame): void {
    this.#isDropped = false;
    // What could not be told to the last connection is told to this one.
    this.#flushAck();
    this.#replayedTo = Number((frame["replay"] as { to?: number } | undefined)?.to ?? 0);
  }

  #takeFrame(frame: Frame, running: Running): void {
    if (this.#isDropped) return;
    if (frame.type === "event") this.#takeEvent(frame as unknown as EventObject, running);
    if (frame.type === "resync_required") {
      this.#received = String(frame["head"]);
      const details = { oldest: String(frame["oldest"]), head: String(frame["head"]) };
      this.#hooks.call("resync", details);
    }
    if (this.#dispatcher.pending >= MAX_PENDING_EVENTS) {
      // The rest waits on the server, and comes when there is room.
      this.#isDropped = true;
      this.#socket?.drop();
    }
  }

  /** Takes an event in, in the order of the inbox. */
  #takeEvent(event: EventObject, { parts }: Running): void {
    if (this.#stopping.signal.aborted) return;
    if (!this.#isStandby) this.#received = event.cursor;
    if (event.event === "artifact_response") {
      parts.toolCalls.deliver(event.data as unknown as ToolCallOutcome);
    }
    const isStandby = this.#isStandby;
    this.#intake = this.#intake.then(async () => {
      await this.#observe(event, parts.session);
      if (!isStandby && !this.#stopping.signal.aborted) this.#dispatcher.push(event);
    });
  }

  async #observe(event: EventObject, session: Session): Promise<void> {
    try {
      await session.observe(event);
    } catch (error) {
      // A read that failed is repeated when something needs what it would have answered.
      this.#log("warn", "an event could not be looked into", { name: (error as Error).name });
    }
  }

  #progress(cursor: string): void {
    this.#ackable = cursor;
    this.#ackTimer ??= setTimeout(() => this.#flushAck(), ACK_INTERVAL_MS);
    if (this.#dispatcher.pending <= RESUME_BELOW_EVENTS) {
      this.#onRoom.splice(0).forEach((resolve) => resolve());
    }
  }

  #flushAck(): void {
    if (this.#ackTimer) clearTimeout(this.#ackTimer);
    this.#ackTimer = null;
    const cursor = this.#ackable;
    if (cursor && this.#socket?.send({ type: "ack", cursor })) this.#ackable = null;
  }

  /** Lets handlers end, for a while. */
  async #finish(): Promise<void> {
    this.#dispatcher.stop();
    const grace = new AbortController();
    await Promise.race([
      this.#dispatcher.idle(),
      sleep(STOP_GRACE_MS, grace.signal).catch(() => {}),
    ]);
    grace.abort();
    this.#handlerStop.abort(new Closed());
  }

  async #runPoll(running: Running): Promise<void> {
    const { http } = running.parts;
    const path = `/agents/${this.agentId}/messages/poll`;
    let cursor: string | undefined;
    while (!this.#stopping.signal.aborted) {
      try {
        const page = await http.call<EventObject[]>({
          method: "GET",
          path,
          query: { cursor, wait: POLL_WAIT_S, limit: 100 },
          signal: this.#stopping.signal,
        });
        for (const event of page.data) this.#takeEvent(event, running);
        await this.#intake;
        await this.#settled();
        cursor = this.#ackable ?? cursor ?? page.nextCursor ?? undefined;
      } catch (error) {
        if (error instanceof Closed) break;
        if (error instanceof CursorExpired) {
          cursor = String(error.params["head"]);
          this.#hooks.call("resync", { oldest: String(error.params["oldest"]), head: cursor });
        } else if (!(error instanceof RateLimited) && !isPassing(error)) {
          throw error;
        }
      }
    }
    await this.#finish();
    if (this.#ackTimer) clearTimeout(this.#ackTimer);
    const seq = this.#ackable?.split("-").at(-1);
    if (this.#ackable && seq) await this.#ackByRest(http, Number(seq));
  }

  async #ackByRest(http: Http, seq: number): Promise<void> {
    const body = { up_to_seq: seq };
    await http.data({ method: "POST", path: `/agents/${this.agentId}/ack`, body, repeatable: true });
  }

  /** All events taken in are handled, or the agent stops. */
  async #settled(): Promise<void> {
    const stopped = deferred<void>();
    const stop = (): void => stopped.resolve();
    this.#stopping.signal.addEventListener("abort", stop, { once: true });
    await Promise.race([this.#dispatcher.idle(), stopped.promise]);
    this.#stopping.signal.removeEventListener("abort", stop);
  }

  /**
   * A receiver of deliveries. A handler has 9 s there; slow ones belong on a socket or a poll. A
   * delivery is answered 200 once its handler has ended.
   */
  webhook(secret: string): WebhookHandler {
    return async (request) => {
      const body = new Uint8Array(await request.arrayBuffer());
      if (!(await verifyDelivery(secret, request.headers, body))) {
        return new Response("not genuine", { status: 401 });
      }
      const delivery = readDelivery(body);
      if (delivery.type === "challenge") return Response.json({ challenge: delivery.challenge });
      if (delivery.type === "test") return Response.json({});
      return this.#deliver(delivery.event);
    };
  }

  async #deliver(event: EventObject): Promise<Response> {
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(new Closed("too slow")), WEBHOOK_DEADLINE_MS);
    const tooSlow = new Promise<"too slow">((resolve) => {
      deadline.signal.addEventListener("abort", () => resolve("too slow"), { once: true });
    });
    try {
      const outcome = await Promise.race([this.#deliverNow(event, deadline.signal), tooSlow]);
      if (outcome !== "too slow") return Response.json({});
      const headers = { "retry-after": String(WEBHOOK_RETRY_S) };
      return new Response("not in time", { status: 503, headers });
    } catch (error) {
      this.#log("error", "a handler has failed", { name: (error as Error).name });
      return new Response("the handler has failed", { status: 500 });
    } finally {
      clearTimeout(timer);
    }
  }

  async #deliverNow(event: EventObject, signal: AbortSignal): Promise<void> {
    const running = await this.#start();
    if (event.event === "artifact_response") {
      running.parts.toolCalls.deliver(event.data as unknown as ToolCallOutcome);
    }
    await this.#observe(event, running.parts.session);
    await this.#process(event, signal);
  }

  /** Runs the handlers of an event until they succeed, or the last try has failed. */
  async #handle(event: EventObject): Promise<void> {
    const delays = this.#options.retryDelays ?? DEFAULT_RETRY_DELAYS_MS;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#process(event, this.#handlerStop.signal);
      } catch (error) {
        if (this.#stopping.signal.aborted) throw error;
        const delay = delays[attempt];
        if (delay === undefined) return this.#deadLetter(event, error);
        const route = `handler of ${event.event}`;
        this.#hooks.call("retry", { attempt: attempt + 1, wait_ms: delay, route });
        await sleep(delay, this.#stopping.signal);
      }
    }
  }

  #deadLetter(event: EventObject, error: unknown): void {
    this.#hooks.call("dead_letter", { event_id: event.event_id, event: event.event, error });
    if (this.#options.onDeadLetter !== "stop") return;
    this.#failure = error;
    this.stop();
    throw error;
  }

  async #process(event: EventObject, signal: AbortSignal): Promise<void> {
    const { parts } = await this.#start();
    let answered: Answered | null = null;
    if (event.event === "message.created") {
      try {
        answered = await this.#open(event, parts.session);
      } catch (error) {
        if (!(error instanceof DecryptError)) throw error;
        return this.#undecryptable(event, error);
      }
      if (!answered) return;
    }
    const found = await this.#handlersOf(event, answered, parts);
    if (found.handlers.length === 0) return;
    const origin = await this.#origin(event, answered);
    const isReplayed = event.seq !== undefined && event.seq <= this.#replayedTo;
    const context = new Context({
      parts,
      event,
      answered,
      origin,
      isReplayed,
      signal,
      answer: found.answer,
    });
    await this.#runHandlers(context, found.handlers);
    if (answered?.opened.encrypted) this.#remember(parts.session, answered.message);
  }

  #remember(session: Session, message: Message): void {
    session.remember(message);
  }

  #undecryptable(event: EventObject, error: DecryptError): void {
    this.#hooks.call("undecryptable", {
      reason: error.reason,
      event_id: event.event_id,
      conversation_id: event.conversation_id ?? null,
    });
  }

  /** The opened message; null if it was handled before. Throws `DecryptError`. */
  async #open(event: EventObject, session: Session): Promise<Answered | null> {
    const message = event.data as unknown as Message;
    if (message.payload?.["type"] !== "encrypted") {
      if (session.hasKeys && this.#options.plaintext !== "allow") throw new DecryptError("clear");
      return { message, opened: session.clearMessage(message) };
    }
    if (!session.hasKeys) return { message, opened: session.clearMessage(message) };
    const opened = await session.openMessage(message, event.seq ?? null);
    if (opened.isReplay) return null;
    if (!opened.sender.authentic) throw new DecryptError("unknown_sender_key");
    const maxAge = this.#options.maxAge ?? DEFAULT_MAX_AGE_MS;
    if (session.isTooOld(opened, maxAge)) throw new DecryptError("stale");
    return { message, opened };
  }

  async #origin(event: EventObject, answered: Answered | null): Promise<Origin> {
    const message = answered?.message;
    if (!answered?.opened.encrypted || !message?.client_message_id) {
      return eventOrigin(event.event_id);
    }
    const sender = { type: message.sender.type, id: message.sender.id };
    return messageOrigin(message.conversation_id, sender, message.client_message_id);
  }

  async #handlersOf(
    event: EventObject,
    answered: Answered | null,
    parts: AgentParts,
  ): Promise<{ handlers: readonly Handler[]; answer: QuestionAnswer | null }> {
    if (answered?.opened.content["type"] === "answer" && this.#answerHandlers.size > 0) {
      const taken = await this.#question(answered, parts);
      const handler = taken && this.#answerHandlers.get(taken.tag);
      return handler ? { handlers: [handler], answer: taken.answer } : { handlers: [], answer: null };
    }
    return { handlers: this.#handlers.get(event.event) ?? [], answer: null };
  }

  /** An answer counts if the question opens as the agent's own, fits, and names the sender. */
  async #question(
    answered: Answered,
    parts: AgentParts,
  ): Promise<{ tag: string; answer: QuestionAnswer } | null> {
    const { message, opened } = answered;
    if (!message.in_reply_to) return null;
    const asked = await parts.outbox.question(message.conversation_id, message.in_reply_to, message.message_id);
    if (!asked || asked.content["type"] !== "question") return null;
    const re = opened.content["re"];
    if (asked.re !== null && (typeof re !== "string" || !sameHash(re, asked.re))) return null;
    const mayAnswer = (asked.content["for"] as unknown[] | undefined) ?? [];
    if (!mayAnswer.includes(opened.sender.id)) return null;
    const { choice, text } = opened.content;
    const state = asked.content["state"];
    const answer = {
      choice: typeof choice === "string" ? choice : null,
      text: typeof text === "string" ? text : null,
      state: typeof state === "object" && state && !Array.isArray(state) ? state : {},
      question: String(asked.content["text"] ?? ""),
    };
    return { tag: String(asked.content["tag"] ?? ""), answer };
  }

  async #runHandlers(context: Context, handlers: readonly Handler[]): Promise<void> {
    const run = async (at: number): Promise<void> => {
      const middleware = this.#middleware[at];
      if (middleware) {
        await middleware(context, () => run(at + 1));
        return;
      }
      for (const handler of handlers) await handler(context);
    };
    await run(0);
  }
}

function sameHash(one: string, other: string): boolean {
  try {
    return equal(fromBase64(one), fromBase64(other));
  } catch {
    return false;
  }
}

function isPassing(error: unknown): boolean {
  return error instanceof BlindpipeError && error.retryable;
}

