/**
 * An agent: it opens and handles events in order, and answers each exactly once.
 *
 * Why: ADR 74.
 */
import { newUlid } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import type { Principal } from "../e2ee/keys.js";
import { UsageError } from "../e2ee/errors.js";
import type { Approval } from "../core/approvals.js";
import type { Conversation as ConversationInfo } from "../core/types.js";
import { Closed } from "../errors.js";
import { HookCaller, type Logger, CONSOLE } from "../hooks.js";
import { type ApproveOptions, approvalContent } from "./approvals.js";
import { Inbox } from "./inbox.js";
import { type AgentOptions, optionsFromEnv } from "./options.js";
import { type Handler, Handlers, type Middleware, Processor } from "./processor.js";
import { isShared } from "../stores/shared-store.js";
import { type Running, start } from "./startup.js";
import { type RequestOptions, request } from "../client/calls.js";
import type { Call } from "../transport/http.js";
import { checkAddress } from "../transport/address.js";
import type { Socket } from "../transport/socket.js";
import { type Delivered, SocketReader, readByPoll, receiver } from "./transports.js";
import { STOP_EVENT } from "./turns.js";
import type { WebhookHandler, WebhookSecrets } from "./webhook.js";

export interface RunOptions {
  /** `poll` for cron and serverless; `socket` is the default. */
  readonly transport?: "socket" | "poll";
  /** Ends the run as SIGTERM does. */
  readonly signal?: AbortSignal;
  /** Keeps keys warm and handles nothing until `activate()`. */
  readonly standby?: boolean;
  /**
   * All processes with it split the conversations of the group among them. Their `pins` must be a
   * `SharedStore`.
   */
  readonly shared?: boolean;
  /** `default` without it. */
  readonly group?: string;
}

export class Agent {
  readonly #options: AgentOptions;
  readonly #hooks: HookCaller;
  readonly #logger: Logger;
  readonly #handlers = new Handlers();
  readonly #processor: Processor;
  readonly #stopping = new AbortController();
  #isActivated = false;
  #running: Promise<Running> | null = null;
  #reader: SocketReader | null = null;
  #failure: unknown = null;

  constructor(options: AgentOptions) {
    checkAddress(options.url, options.allowHttp);
    this.#logger = options.logger ?? CONSOLE;
    this.#options = { ...options, logger: this.#logger };
    this.#hooks = new HookCaller(options.hooks ?? {}, this.#logger);
    this.#processor = new Processor(this.#options, this.#handlers, this.#hooks);
  }

  /** Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY`, `_PLAINTEXT` and `_PINS`. */
  static fromEnv(overrides: Partial<AgentOptions> = {}): Agent {
    return new Agent({ ...optionsFromEnv(process.env), ...overrides });
  }

  get agentId(): string {
    return this.#options.agentId;
  }

  /** `message`, or any name of the event catalogue. Handlers of a name run in their order. */
  on(name: string, handler: Handler): this {
    this.#handlers.add(name, handler);
    return this;
  }

  /** Answers to the questions with this tag. */
  onAnswer(tag: string, handler: Handler): this {
    this.#handlers.addAnswer(tag, handler);
    return this;
  }

  /** Told after a person has stopped what ran in a conversation. */
  onStop(handler: Handler): this {
    this.#handlers.add(STOP_EVENT, handler);
    return this;
  }

  /** Decisions about the approvals with this name, and their ends without one. */
  onDecision(name: string, handler: Handler): this {
    this.#handlers.addDecision(name, handler);
    return this;
  }

  /** As `Context.approve`, outside of a handler. Called again, it asks again. */
  async approve(
    conversationId: string,
    name: string,
    given: JsonObject = {},
    options: ApproveOptions = {},
  ): Promise<Approval> {
    const { parts, enter } = await this.#start();
    if (!(await enter(conversationId))) throw new Error("the store has failed");
    const content = approvalContent(name, given, options);
    const [clientMessageId, causedAt] = [newUlid(), Date.now()];
    const draft = { conversationId, content, clientMessageId, answered: null, causedAt };
    return parts.approvals.ask(draft, options);
  }

  /** An approval of this agent, as it stands. */
  async approval(approvalId: string): Promise<Approval> {
    return (await this.#start()).parts.approvals.read(approvalId);
  }

  /** Takes an approval back that nobody has decided. */
  async withdraw(approvalId: string): Promise<Approval> {
    return (await this.#start()).parts.approvals.withdraw(approvalId);
  }

  /** The approvals of this agent, newest first. */
  async *approvals(): AsyncGenerator<Approval> {
    const { http } = (await this.#start()).parts;
    yield* http.pages<Approval>(`/agents/${this.agentId}/approvals`);
  }

  /** The conversations of this agent, latest activity first. */
  async *conversations(): AsyncGenerator<ConversationInfo> {
    const { http } = (await this.#start()).parts;
    yield* http.pages<ConversationInfo>(`/agents/${this.agentId}/conversations`);
  }

  use(middleware: Middleware): this {
    this.#handlers.middleware.push(middleware);
    return this;
  }

  /** Any call of the API in this agent's name; answers all fields of the answer. */
  async request<T = unknown>(
    method: Call["method"],
    path: string,
    options: RequestOptions = {},
  ): Promise<T> {
    const { parts } = await this.#start();
    return request<T>(parts.http, method, path, options);
  }

  /** The tap: a person behind this agent takes the key for that principal's. */
  async trust(principal: Principal, keyId: string): Promise<void> {
    const { pins, save, enter, parts } = await this.#start();
    // Another process may have seen the key.
    if (!(await enter(null))) throw new Error("the store has failed");
    if (!pins.confirm(principal, keyId)) throw new UsageError("this key was never shown");
    parts.session.reconsider(principal);
    parts.session.options.onTrustChanged?.();
    await save();
  }

  /** Checks token and key, and registers a first key, without handling anything. */
  async check(): Promise<void> {
    await this.#start();
  }

  #start(): Promise<Running> {
    const socket = (): Socket | null => this.#reader?.socket ?? null;
    this.#running ??= start(this.#options, this.#hooks, socket, this.#stopping.signal);
    this.#running.catch(() => (this.#running = null));
    return this.#running;
  }

  /** Runs until SIGTERM, the signal or `stop()`; finishes what it began. */
  async run(options: RunOptions = {}): Promise<void> {
    const { shared = false, standby = false } = options;
    if (shared) this.#checkShared(options);
    const unwatch = this.#watchForStop(options.signal);
    try {
      const running = await this.#startUnlessStopped();
      if (!running) return;
      const inbox = this.#inbox(running, shared);
      const group = shared ? (options.group ?? "default") : null;
      const { signal } = this.#stopping;
      if (options.transport === "poll") await readByPoll(running.parts, inbox, signal);
      else await this.#runSocket(running, inbox, standby && !this.#isActivated, group);
      await running.save();
      if (this.#failure) throw this.#failure;
    } finally {
      unwatch();
    }
  }

  /** Null if the agent is stopped before it has started. */
  async #startUnlessStopped(): Promise<Running | null> {
    const { signal } = this.#stopping;
    if (signal.aborted) return null;
    try {
      return await this.#start();
    } catch (error) {
      if (signal.aborted && error instanceof Closed) return null;
      throw error;
    }
  }

  #checkShared({ transport = "socket", standby = false }: RunOptions): void {
    if (transport !== "socket" || standby) {
      throw new UsageError("a shared agent reads a socket, and is no standby");
    }
    // Each process would trust other keys, and handle again what another one has handled.
    if (!isShared(this.#options.pins)) {
      throw new UsageError("a shared agent needs pins that processes share: a SharedStore");
    }
  }

  #inbox({ parts, save, enter }: Running, isShared: boolean): Inbox {
    return new Inbox({
      options: this.#options,
      processor: this.#processor,
      hooks: this.#hooks,
      logger: this.#logger,
      parts,
      stopping: this.#stopping.signal,
      onFailure: (error) => {
        this.#failure = error;
        this.stop();
      },
      keep: save,
      enter,
      isShared,
      sendAck: (cursor) => this.#reader?.socket.send({ type: "ack", cursor }) ?? false,
    });
  }

  async #runSocket(
    { parts }: Running,
    inbox: Inbox,
    isStandby: boolean,
    group: string | null,
  ): Promise<void> {
    const closing = new AbortController();
    const { signal } = closing;
    const reader = new SocketReader(
      this.#options,
      this.#hooks,
      inbox,
      parts.http,
      signal,
      isStandby,
      group,
    );
    this.#reader = reader;
    const stopped = new Promise<void>((resolve) => {
      if (this.#stopping.signal.aborted) resolve();
      this.#stopping.signal.addEventListener("abort", () => resolve(), { once: true });
    });
    const ended = reader.socket.run();
    await Promise.race([stopped, ended]);
    await inbox.finish();
    closing.abort();
    await ended;
  }

  /**
   * Takes no more events, lets handlers end, acknowledges, and closes. It is final: a run that
   * begins after it ends at once.
   */
  stop(): void {
    this.#stopping.abort();
  }

  /** Ends a standby: this process handles the events from the last acknowledgement on. */
  activate(): void {
    this.#isActivated = true;
    this.#reader?.activate();
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

  /**
   * A receiver of deliveries. A handler has 9 s there; slow ones belong on a socket or a poll. A
   * delivery is answered 200 once its handler has ended. While the secret is rotated, give both.
   * Throws `UsageError` for a secret of less than 24 bytes.
   */
  webhook(secrets: WebhookSecrets): WebhookHandler {
    const started = async (): Promise<Delivered> => {
      const { parts, save, enter } = await this.#start();
      return { parts, processor: this.#processor, save, enter };
    };
    return receiver(secrets, started, this.#logger);
  }
}
