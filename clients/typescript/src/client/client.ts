/** A person's client. */
import { DecryptError } from "../e2ee/errors.js";
import { hex, newUlid } from "../e2ee/bytes.js";
import { Kind } from "../e2ee/context.js";
import type { EpochMarks } from "../e2ee/room.js";
import type { Principal } from "../e2ee/keys.js";
import { Pins, type StoredPins, type TrustPolicy } from "../e2ee/trust.js";
import { safetyNumber } from "../e2ee/safety.js";
import { Session } from "../core/session.js";
import type { Conversation as ConversationInfo, EventObject, Message, ToolCall } from "../core/types.js";
import { Closed } from "../errors.js";
import { HookCaller, type Hooks, type Logger, SILENT } from "../hooks.js";
import type { Fetch } from "../transport/http.js";
import { type Frame, Socket, type WebSocketFactory, defaultWebSocket } from "../transport/socket.js";
import { Account } from "./account.js";
import { Conversation, type ReceivedMessage } from "./conversation.js";
import { type DeviceKeys, Devices } from "./devices.js";
import { Rotator } from "./rotation.js";
import { type BegunStore, type ToolRequest, memoryBegunStore, openToolRequest } from "./tool-requests.js";

export interface ClientOptions {
  readonly url: string;
  /** This device's own id, which must outlive a reinstallation; a new one without it. */
  readonly deviceId?: string | undefined;
  readonly deviceName?: string | undefined;
  readonly platform?: string | undefined;
  readonly trust?: TrustPolicy | undefined;
  /** Pins and marks of an earlier run. */
  readonly pins?: StoredPins | undefined;
  readonly marks?: ReadonlyMap<string, EpochMarks> | undefined;
  /** Which tool requests were begun; kept in memory without it. */
  readonly begun?: BegunStore | undefined;
  readonly hooks?: Partial<Hooks> | undefined;
  readonly logger?: Logger | undefined;
  readonly fetch?: Fetch | undefined;
  readonly webSocket?: WebSocketFactory | undefined;
}

export interface PasswordLogin {
  readonly email: string;
  readonly password: string;
  readonly turnstileToken: string;
}

/** What `events()` yields. */
export type ClientEvent =
  | { readonly type: "message"; readonly event: EventObject; readonly conversation: Conversation } & ReceivedMessage
  | { readonly type: "tool_request"; readonly event: EventObject; readonly request: ToolRequest }
  | { readonly type: "event"; readonly event: EventObject }
  /** A piece of a message that an agent is writing. It is shown and never acted on. */
  | {
      readonly type: "delta";
      readonly conversationId: string;
      readonly streamId: string;
      readonly n: number;
      readonly append: string;
      readonly sender: Principal;
    }
  | { readonly type: "typing"; readonly conversationId: string; readonly sender: Principal; readonly state: string }
  | { readonly type: "caught_up" };

export class Client {
  readonly devices: Devices;
  #pins: Pins | null = null;
  #session: Session | null = null;
  #rotator: Rotator | null = null;
  readonly #clearChosen = new Set<string>();
  readonly #sending = new Map<string, Promise<unknown>>();
  readonly #begun: BegunStore;
  readonly #hooks: HookCaller;
  readonly #streams = new Map<string, string>();
  readonly #finished = new Set<string>();

  private constructor(
    readonly account: Account,
    private readonly options: ClientOptions,
  ) {
    this.#hooks = new HookCaller(options.hooks ?? {}, options.logger ?? SILENT);
    this.#begun = options.begun ?? memoryBegunStore();
    this.devices = new Devices(account, (keys) => this.#holdKeys(keys));
  }

  static #make(options: ClientOptions): Client {
    const hooks = new HookCaller(options.hooks ?? {}, options.logger ?? SILENT);
    const call = options.fetch ?? ((...parameters: Parameters<Fetch>) => fetch(...parameters));
    return new Client(new Account(options.url, call, hooks), options);
  }

  static async #signIn(options: ClientOptions, path: string, body: object): Promise<Client> {
    const client = Client.#make(options);
    const { deviceId = newUlid(), deviceName, platform } = options;
    await client.account.signIn(path, body, { deviceId, deviceName, platform });
    return client;
  }

  static login(options: ClientOptions & PasswordLogin): Promise<Client> {
    const { email, password, turnstileToken } = options;
    const body = { email, account_password: password, turnstile_token: turnstileToken };
    return Client.#signIn(options, "/auth/login", body);
  }

  static loginWithCode(options: ClientOptions & { email: string; code: string }): Promise<Client> {
    const { email, code } = options;
    return Client.#signIn(options, "/auth/login-code", { email, code });
  }

  static register(
    options: ClientOptions & PasswordLogin & { code: string; displayName: string; locale?: string },
  ): Promise<Client> {
    const body = {
      email: options.email,
      code: options.code,
      account_password: options.password,
      display_name: options.displayName,
      device_locale: options.locale ?? "en",
      turnstile_token: options.turnstileToken,
    };
    return Client.#signIn(options, "/auth/register", body);
  }

  /** Mails a code. */
  static async sendCode(
    options: ClientOptions & { email: string; scene: "register" | "login" | "reset"; turnstileToken: string },
  ): Promise<void> {
    const { email, scene, turnstileToken } = options;
    const body = { email, scene, turnstile_token: turnstileToken };
    const { http } = Client.#make(options).account;
    await http.data({ method: "POST", path: "/auth/send-code", body, isPublic: true });
  }

  /** What this device has learned about others' keys; `store()` gives what to keep for ever. */
  get pins(): Pins {
    const { trust, pins } = this.options;
    return (this.#pins ??= new Pins(this.self, trust, [], pins ?? null));
  }

  get self(): Principal {
    return { type: "user", id: this.account.userId };
  }

  async #holdKeys(keys: DeviceKeys): Promise<void> {
    this.pins.own(keys.opening.map((key) => hex(key.keyId)));
    this.#session = this.#makeSession(keys);
    this.#rotator = new Rotator(this.#session, this.self, keys.signer, this.pins, (id, who) => {
      const details = { type: who.because, principal_id: who.principal.id, key_id: null };
      this.#hooks.call("key_changed", details);
      this.options.logger?.warn("a member was given nothing", { conversation_id: id });
    });
  }

  #makeSession(keys: DeviceKeys | null): Session {
    return new Session({
      http: this.account.http,
      self: this.self,
      signer: keys?.signer ?? null,
      opening: keys?.opening ?? [],
      deviceId: this.account.deviceId,
      pins: this.pins,
      marks: this.options.marks ?? new Map(),
      allowsClear: false,
      onNotice: ({ kind, about, keyId }) =>
        this.#hooks.call("key_changed", { type: kind, principal_id: about.id, key_id: keyId }),
    });
  }

  /** The session; one without keys opens nothing. */
  get session(): Session {
    this.#session ??= this.#makeSession(null);
    return this.#session;
  }

  conversation(id: string): Conversation {
    if (!this.#rotator) throw new DecryptError("no_epoch_key");
    const parts = {
      session: this.session,
      rotator: this.#rotator,
      clearChosen: this.#clearChosen,
      sending: this.#sending,
    };
    return new Conversation(id, parts);
  }

  /** Latest activity first. */
  async *conversations(): AsyncGenerator<ConversationInfo> {
    let cursor: string | undefined;
    do {
      const page: { data: ConversationInfo[]; nextCursor: string | null } =
        await this.account.http.call<ConversationInfo[]>({
          method: "GET",
          path: "/conversations",
          query: { cursor },
        });
      yield* page.data;
      cursor = page.nextCursor ?? undefined;
    } while (cursor);
  }

  /** Opens a conversation, or finds the existing pair. */
  async open(
    what:
      | { readonly type: "agent"; readonly agent_id: string }
      | { readonly type: "direct"; readonly user_id: string }
      | { readonly type: "group"; readonly title?: string; readonly member_ids: readonly string[] },
  ): Promise<Conversation> {
    const info = await this.account.http.data<ConversationInfo>({
      method: "POST",
      path: "/conversations",
      body: what,
    });
    return this.conversation(info.conversation_id);
  }

  /** The tap: this person takes the key for that principal's. */
  confirm(principal: Principal, keyId: string): void {
    this.pins.confirm(principal, keyId);
    this.session.reconsider(principal);
  }

  /** 60 digits to compare with somebody, of this device's key and one of theirs. */
  async safetyNumber(principal: Principal, keyId: string): Promise<string> {
    const signer = this.session.options.signer;
    const other = this.pins.find(principal, keyId);
    if (!signer || !other) throw new DecryptError("unknown_sender_key");
    return safetyNumber({ principal: this.self, keys: signer }, { principal, keys: other });
  }

  /**
   * Events, over a socket that reconnects. An event is acknowledged when the next one is
   * asked for.
   */
  async *events(options: { signal?: AbortSignal } = {}): AsyncGenerator<ClientEvent> {
    const closing = new AbortController();
    const queue = new FrameQueue();
    options.signal?.addEventListener("abort", () => closing.abort(), { once: true });
    if (options.signal?.aborted) closing.abort();
    let received: string | null = null;
    const socket = new Socket({
      url: this.options.url,
      webSocket: this.options.webSocket ?? defaultWebSocket,
      hooks: this.#hooks,
      auth: async () => ({
        type: "auth",
        access_token: await this.account.token(),
        ...(received ? { resume: received } : {}),
      }),
      renew: () => this.account.renew(),
      holders: async () => [],
      onReady: () => {},
      onFrame: (frame) => {
        if (frame.type === "event") received = String(frame["cursor"]);
        if (frame.type === "resync_required") {
          received = String(frame["head"]);
          this.#hooks.call("resync", { oldest: String(frame["oldest"]), head: received });
        }
        queue.push(frame);
      },
      signal: closing.signal,
    });
    const ended = socket.run().then(
      () => queue.end(null),
      (error: unknown) => queue.end(error),
    );
    try {
      for await (const frame of queue) {
        for (const event of await this.#read(frame)) yield event;
        if (frame.type === "event") socket.send({ type: "ack", cursor: frame["cursor"] });
      }
    } finally {
      closing.abort();
      await ended;
    }
  }

  async #read(frame: Frame): Promise<ClientEvent[]> {
    switch (frame.type) {
      case "event":
        return this.#readEvent(frame as unknown as EventObject);
      case "stream.begin":
        this.#streams.set(String(frame["stream_id"]), String(frame["conversation_id"]));
        return [];
      case "stream.delta":
        return this.#readDelta(frame);
      case "typing":
        return [{
          type: "typing",
          conversationId: String(frame["conversation_id"]),
          sender: frame["sender"] as Principal,
          state: String(frame["state"]),
        }];
      case "caught_up":
        return [{ type: "caught_up" }];
      default:
        return [];
    }
  }

  async #readEvent(event: EventObject): Promise<ClientEvent[]> {
    await this.session.observe(event);
    if (event.event === "message.created" && this.#rotator) {
      const message = event.data as unknown as Message;
      const conversation = this.conversation(message.conversation_id);
      const received = await conversation.open(message, true);
      if (received.fault) this.#undecryptable(event, received.fault);
      if (received.opened?.isReplay) return [];
      if (message.client_message_id) this.#finished.add(message.client_message_id);
      if (received.opened?.encrypted) this.session.remember(message);
      return [{ type: "message", event, conversation, ...received }];
    }
    if (event.event === "artifact_request") return this.#readToolRequest(event);
    return [{ type: "event", event }];
  }

  async #readToolRequest(event: EventObject): Promise<ClientEvent[]> {
    try {
      const call = event.data as unknown as ToolCall;
      const request = await openToolRequest(call, this.session, this.#begun);
      return [{ type: "tool_request", event, request }];
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      this.#undecryptable(event, error);
      return [];
    }
  }

  #undecryptable(event: EventObject, fault: DecryptError): void {
    this.#hooks.call("undecryptable", {
      reason: fault.reason,
      event_id: event.event_id,
      conversation_id: event.conversation_id ?? null,
    });
  }

  /** A delta counts only while its message is not there, and only for some minutes. */
  async #readDelta(frame: Frame): Promise<ClientEvent[]> {
    const streamId = String(frame["stream_id"]);
    const conversationId = this.#streams.get(streamId);
    const { data, sender } = frame as { data?: unknown; sender?: Principal };
    if (!conversationId || !sender || this.#finished.has(streamId)) return [];
    if (typeof data !== "string") return [];
    const n = Number(frame["n"]);
    try {
      const place = { kind: Kind.delta, streamId, n } as const;
      const shown = await this.session.openText(conversationId, data, place, sender);
      const append = String(shown.opened!.content["append"] ?? "");
      return [{ type: "delta", conversationId, streamId, n, append, sender }];
    } catch (error) {
      if (error instanceof DecryptError) return [];
      throw error;
    }
  }
}

/** Frames in order, for whoever asks next. */
class FrameQueue implements AsyncIterable<Frame> {
  readonly #frames: Frame[] = [];
  #wake: (() => void) | null = null;
  #ended: { error: unknown } | null = null;

  push(frame: Frame): void {
    this.#frames.push(frame);
    this.#wake?.();
  }

  end(error: unknown): void {
    this.#ended = { error };
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Frame> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame) yield frame;
      else if (this.#ended) {
        if (this.#ended.error && !(this.#ended.error instanceof Closed && this.#ended.error.closeCode === null)) {
          throw this.#ended.error;
        }
        return;
      } else {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        this.#wake = null;
      }
    }
  }
}
