/** A person's client. */
import { DecryptError, KeyUnavailable, UsageError } from "../e2ee/errors.js";
import { hex, newUlid } from "../e2ee/bytes.js";
import type { EpochMarks } from "../e2ee/room.js";
import type { Principal } from "../e2ee/keys.js";
import { type Notice, Trust, type StoredPins, type TrustPolicy } from "../e2ee/trust.js";
import { safetyNumber } from "../e2ee/safety.js";
import { isSameId } from "../core/opened.js";
import { Session } from "../core/session.js";
import type { Conversation as ConversationInfo, Grant } from "../core/types.js";
import { BlindpipeError, isOutage } from "../errors.js";
import { HookCaller, type Hooks, type Logger, SILENT } from "../hooks.js";
import { checkAddress } from "../transport/address.js";
import type { Fetch } from "../transport/http.js";
import {
  type Frame,
  Socket,
  type WebSocketFactory,
  defaultWebSocket,
} from "../transport/socket.js";
import { outageJitter, sleep } from "../transport/wait.js";
import { Account } from "./account.js";
import { Conversation } from "./conversation.js";
import { type DeviceKeys, Devices } from "./devices.js";
import { type ClientEvent, EventReader, FrameQueue } from "./events.js";
import { type NotGiven, type NotRotated, Rotator } from "./rotation.js";
import {
  ConsentKeeper,
  type ConsentStore,
  type DeviceTool,
  type ToolRequest,
  withdrawGrant,
} from "./tool-requests.js";

/** A removed device may know the secrets of the conversations that were active in this time. */
const ROTATED_AFTER_REVOCATION_MS = 7 * 24 * 3_600_000;

export interface ClientOptions {
  readonly url: string;
  /** Takes `http://` to another machine: anybody on the way reads passwords and tokens. */
  readonly allowHttp?: boolean | undefined;
  /** This device's own id, which must outlive a reinstallation; a new one without it. */
  readonly deviceId?: string | undefined;
  readonly deviceName?: string | undefined;
  readonly platform?: string | undefined;
  readonly trust?: TrustPolicy | undefined;
  /** Pins and marks of an earlier run. */
  readonly pins?: StoredPins | undefined;
  readonly marks?: ReadonlyMap<string, EpochMarks> | undefined;
  /** Pins or marks have changed: keep what `trust.store()` and `session.marks()` give now. */
  readonly onLearned?: (() => void) | undefined;
  /** The tools of this device, by name. A request for any other is answered as `unknown_tool`. */
  readonly tools?: Readonly<Record<string, DeviceTool>> | undefined;
  /** Keeps which requests were begun and approved; in memory without it. */
  readonly consents?: ConsentStore | undefined;
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

export class Client {
  readonly devices: Devices;
  #trust: Trust | null = null;
  #session: Session | null = null;
  #rotator: Rotator | null = null;
  readonly #clearChosen = new Set<string>();
  readonly #sending = new Map<string, Promise<unknown>>();
  readonly #consents: ConsentKeeper;
  readonly #hooks: HookCaller;

  private constructor(
    readonly account: Account,
    private readonly options: ClientOptions,
  ) {
    this.#hooks = new HookCaller(options.hooks ?? {}, options.logger ?? SILENT);
    this.#consents = new ConsentKeeper(options.tools ?? {}, options.consents ?? null);
    const onRevoked = (): Promise<void> => this.#rotateRecent();
    this.devices = new Devices(account, {
      onKeys: (keys) => this.#holdKeys(keys),
      onRevoked,
      onWithdraw: (agentId, scope) => this.#consents.withdraw(null, agentId, scope),
      onOldBackup: (key_id) => {
        const principal_id = this.account.userId;
        const details = { type: "old_backup", principal_id, key_id, conversation_id: null };
        this.#hooks.call("key_changed", details);
      },
    });
  }

  static #make(options: ClientOptions): Client {
    checkAddress(options.url, options.allowHttp);
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
    options: ClientOptions & {
      email: string;
      scene: "register" | "login" | "reset";
      turnstileToken: string;
    },
  ): Promise<void> {
    const { email, scene, turnstileToken } = options;
    const body = { email, scene, turnstile_token: turnstileToken };
    const { http } = Client.#make(options).account;
    await http.data({ method: "POST", path: "/auth/send-code", body, isPublic: true });
  }

  /** The keys of others that this device has learned. Keep what `store()` gives, for ever. */
  get trust(): Trust {
    const { trust, pins } = this.options;
    return (this.#trust ??= new Trust(this.self, trust, [], pins ?? null));
  }

  get self(): Principal {
    return { type: "user", id: this.userId };
  }

  get userId(): string {
    return this.account.userId;
  }

  #holdKeys(keys: DeviceKeys): void {
    this.trust.own(keys.opening.map((key) => hex(key.keyId)));
    this.#session = this.#makeSession(keys);
    const onNotGiven = (id: string, who: NotGiven): void => {
      const { because: type, principal } = who;
      const details = { type, principal_id: principal.id, key_id: null, conversation_id: id };
      this.#hooks.call("key_changed", details);
      this.options.logger?.warn("a member was given nothing", { conversation_id: id });
    };
    const onNotRotated = (conversation_id: string, because: NotRotated): void => {
      this.#hooks.call("not_rotated", { conversation_id, because });
      this.options.logger?.warn("a fresh secret was refused", { conversation_id, because });
    };
    this.#rotator = new Rotator(
      this.#session,
      this.self,
      keys.signer,
      this.trust,
      onNotGiven,
      onNotRotated,
    );
  }

  #makeSession(keys: DeviceKeys | null): Session {
    return new Session({
      http: this.account.http,
      self: this.self,
      signer: keys?.signer ?? null,
      opening: keys?.opening ?? [],
      deviceId: this.account.deviceId,
      pins: this.trust,
      marks: this.options.marks ?? new Map(),
      allowsClear: false,
      onNotice: (notice, conversationId) => this.#tell(notice, conversationId),
      onLearned: this.options.onLearned,
    });
  }

  #tell({ kind, about, keyId }: Notice, conversation_id: string | null): void {
    const details = { type: kind, principal_id: about.id, key_id: keyId, conversation_id };
    this.#hooks.call("key_changed", details);
  }

  /** Fresh secrets where a device that was removed could read what is sent now. */
  async #rotateRecent(): Promise<void> {
    if (!this.#rotator) return;
    const since = Date.now() - ROTATED_AFTER_REVOCATION_MS;
    for await (const { conversation_id: id, last_activity_at, epoch } of this.conversations()) {
      if (Date.parse(last_activity_at) < since) return;
      if (epoch === 0) continue;
      try {
        await this.session.mustRotate(id);
        await this.#rotator.rotate(id);
      } catch (error) {
        if (!(error instanceof BlindpipeError || error instanceof KeyUnavailable)) throw error;
        // The next send rotates: the server asks for it.
        this.options.logger?.warn("a conversation has no fresh secret yet", {
          conversation_id: id,
        });
      }
    }
  }

  /** The session; one without keys opens nothing. */
  get session(): Session {
    this.#session ??= this.#makeSession(null);
    return this.#session;
  }

  conversation(id: string): Conversation {
    if (!this.#rotator) {
      throw new KeyUnavailable("this device has no keys: devices.create() or devices.restore()");
    }
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
    yield* this.account.http.pages<ConversationInfo>("/conversations");
  }

  async #open(what: object): Promise<Conversation> {
    const info = await this.account.http.data<ConversationInfo>({
      method: "POST",
      path: "/conversations",
      body: what,
    });
    return this.conversation(info.conversation_id);
  }

  /**
   * Opens the conversation with an agent, or finds it. `keyId` is the key of a link from the
   * agent's own site: it verifies the agent.
   */
  async openAgent(
    agentId: string,
    { keyId }: { readonly keyId?: string } = {},
  ): Promise<Conversation> {
    if (keyId !== undefined) {
      const agent: Principal = { type: "agent", id: agentId };
      this.trust.link(agent, keyId.toLowerCase()).forEach((notice) => this.#tell(notice, null));
      this.options.onLearned?.();
    }
    return this.#open({ type: "agent", agent_id: agentId });
  }

  /** Opens the conversation with a person, or finds it. */
  openDirect(userId: string): Promise<Conversation> {
    return this.#open({ type: "direct", user_id: userId });
  }

  /** Opens a new group. */
  openGroup(
    memberIds: readonly string[],
    options: { readonly title?: string } = {},
  ): Promise<Conversation> {
    return this.#open({ type: "group", member_ids: memberIds, ...options });
  }

  /** The tap: this person takes the key for that principal's. */
  confirm(principal: Principal, keyId: string): void {
    if (!this.trust.confirm(principal, keyId)) throw new UsageError("this key was never shown");
    this.#reconsider(principal);
  }

  #reconsider(principal: Principal): void {
    this.session.reconsider(principal);
    this.options.onLearned?.();
  }

  /** People have compared the safety number of this key. */
  verify(principal: Principal, keyId: string): void {
    const isDone = this.trust.verify(principal, keyId);
    if (!isDone) throw new UsageError("this key was never shown, or it is retired");
    this.#reconsider(principal);
  }

  /** The scopes that agents hold or ask for. */
  async *grants(): AsyncGenerator<Grant> {
    yield* this.account.http.pages<Grant>("/grants");
  }

  /** This person's answer to an agent's request. */
  decideGrant(grantId: string, decision: "approve" | "deny"): Promise<Grant> {
    const path = `/grants/${grantId}/decision`;
    return this.account.http.data<Grant>({ method: "POST", path, body: { decision } });
  }

  /** Takes an approval back, at once; what this device remembers of its scopes goes as well. */
  async revokeGrant(grantId: string): Promise<void> {
    const path = `/grants/${grantId}`;
    const grant = await this.account.http.data<Grant>({ method: "DELETE", path });
    await withdrawGrant(this.#consents, grant);
  }

  /** 60 digits to compare with somebody, of this device's key and one of theirs. */
  async safetyNumber(principal: Principal, keyId: string): Promise<string> {
    const signer = this.session.options.signer;
    const other = this.trust.find(principal, keyId);
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
    const socket = this.#eventSocket(queue, closing.signal);
    const ended = socket.run().then(
      () => queue.end(null),
      (error: unknown) => queue.end(error),
    );
    const reader = new EventReader({
      session: this.session,
      hooks: this.#hooks,
      logger: this.options.logger ?? SILENT,
      consents: this.#consents,
      conversation: (id) => (this.#rotator ? this.conversation(id) : null),
    });
    try {
      await this.#checkOwnList();
      for await (const frame of queue) {
        const read = await this.#read(reader, frame, closing.signal);
        if (!read) return;
        for (const event of read) {
          yield event;
          if (event.type === "tool_request") await this.#answerUnknown(event.request);
        }
        if (frame.type === "event") socket.send({ type: "ack", cursor: frame["cursor"] });
      }
    } finally {
      closing.abort();
      queue.end(null);
      await ended;
    }
  }

  /** While the service is away, events wait in their order. Null at the end. */
  async #read(
    reader: EventReader,
    frame: Frame,
    signal: AbortSignal,
  ): Promise<ClientEvent[] | null> {
    for (let attempt = 0; ; attempt++) {
      try {
        return await reader.read(frame);
      } catch (error) {
        if (signal.aborted) return null;
        if (!isOutage(error)) return reader.unread(frame, error);
        const wait_ms = Math.round(outageJitter(attempt));
        this.#hooks.call("retry", { attempt: attempt + 1, wait_ms, route: "reading of an event" });
        await sleep(wait_ms, signal).catch(() => {});
      }
    }
  }

  /**
   * An agent need not wait for a tool that nobody knows. Without a device's name, another device
   * of this person may know it.
   */
  async #answerUnknown(request: ToolRequest): Promise<void> {
    const { device_id, user_id } = request.call;
    if (request.isKnown || !isSameId(user_id, this.userId)) return;
    try {
      if ((await request.decide()) === "repeated") return;
      const isAsked = device_id
        ? device_id === this.account.deviceId
        : (await this.devices.list()).length === 1;
      if (isAsked) await request.execute();
    } catch (error) {
      const { name } = error as Error;
      this.options.logger?.warn("a request for an unknown tool was not answered", { name });
    }
  }

  /** A device on one's own list that one did not add is an alarm, at every start. */
  async #checkOwnList(): Promise<void> {
    if (!this.#rotator) return;
    await this.session.directory.refresh(this.self).catch((error: unknown) => {
      this.options.logger?.warn("the list of devices was not read", {
        name: (error as Error).name,
      });
    });
  }

  /** A socket that fills the queue, and leaves a backlog on the server while the queue is full. */
  #eventSocket(queue: FrameQueue, signal: AbortSignal): Socket {
    let received: string | null = null;
    let isDropped = false;
    const socket: Socket = new Socket({
      url: this.options.url,
      webSocket: this.options.webSocket ?? defaultWebSocket,
      hooks: this.#hooks,
      auth: async () => {
        await queue.load.room();
        const access_token = await this.account.token();
        return { type: "auth", access_token, ...(received ? { resume: received } : {}) };
      },
      renew: () => this.account.renew(),
      holders: () => this.devices.online(),
      onReady: () => (isDropped = false),
      onFrame: (frame, length) => {
        if (isDropped) return;
        if (frame.type === "event") received = String(frame["cursor"]);
        if (frame.type === "resync_required") {
          received = String(frame["head"]);
          this.session.missedEvents();
          this.#hooks.call("resync", { oldest: String(frame["oldest"]), head: received });
        }
        queue.push(frame, length);
        if (!queue.load.isFull) return;
        isDropped = true;
        socket.drop();
      },
      signal,
    });
    return socket;
  }
}
