/** A person's client. */
import { DecryptError, KeyUnavailable, UsageError } from "../e2ee/errors.js";
import { hex, newUlid } from "../e2ee/bytes.js";
import type { EpochMarks } from "../e2ee/room.js";
import { Texts } from "../e2ee/texts.js";
import type { Principal } from "../e2ee/keys.js";
import { type Notice, Trust } from "../e2ee/trust.js";
import { isSameId } from "../core/opened.js";
import { Session } from "../core/session.js";
import type { Conversation as ConversationInfo, Grant } from "../core/types.js";
import { BlindpipeError, Closed, isOutage } from "../errors.js";
import type { components } from "../generated/openapi.js";
import { HookCaller, type Logger, CONSOLE } from "../hooks.js";
import { checkAddress } from "../transport/address.js";
import type { Fetch, Http } from "../transport/http.js";
import { type Frame, type Socket, defaultWebSocket } from "../transport/socket.js";
import { type DeviceState, restoreKeys } from "../stores/store.js";
import { outageJitter, sleep } from "../transport/wait.js";
import { type Approval, readApproval } from "../core/approvals.js";
import { Account, type StoredSession } from "./account.js";
import { Agents } from "./agents.js";
import { ApprovalRequest } from "./approvals.js";
import { AccountCalls } from "./calls.js";
import { Conversation } from "./conversation.js";
import { type DeviceKeys, Devices, importHeld } from "./devices.js";
import { Acks, Keeper, type EarlierRuns } from "./keeper.js";
import { type PasskeyOptions, answeredByPasskey, checkSupport, createdPasskey } from "./passkeys.js";
import { type Proof, Sessions, proofBody } from "./sessions.js";
import { type ClientEvent, EventReader, FrameQueue, eventSocket } from "./events.js";
import { type NotGiven, type NotRotated, Rotator } from "./rotation.js";
import type { ClientOptions, PasswordLogin } from "./options.js";
import { ConsentKeeper, type ToolRequest, withdrawGrant } from "./tool-requests.js";

/** A removed device may know the secrets of the conversations that were active in this time. */
const ROTATED_AFTER_REVOCATION_MS = 7 * 24 * 3_600_000;

export class Client extends AccountCalls {
  readonly devices: Devices;
  /** The agents of this person. */
  readonly agents: Agents;
  readonly sessions: Sessions;
  #trust: Trust | null = null;
  /** The knowledge of earlier runs. */
  #earlier: EarlierRuns | null = null;
  #marks: Texts<EpochMarks> | null = null;
  #session: Session | null = null;
  #rotator: Rotator | null = null;
  /** The socket of the newest `events()`. */
  #socket: Socket | null = null;
  readonly #clearChosen = new Set<string>();
  readonly #sending = new Map<string, Promise<unknown>>();
  readonly #consents: ConsentKeeper;
  readonly #hooks: HookCaller;
  readonly #logger: Logger;

  private constructor(
    readonly account: Account,
    private readonly options: ClientOptions,
    private readonly keeper: Keeper,
  ) {
    super();
    this.agents = new Agents(account.http);
    this.#logger = options.logger ?? CONSOLE;
    this.#hooks = new HookCaller(options.hooks ?? {}, this.#logger);
    const consents = options.store ?? options.consents ?? null;
    const onFailed = (): void => this.#hooks.call("store_failed");
    this.#consents = new ConsentKeeper(options.tools ?? {}, consents, onFailed);
    const onRevoked = (): Promise<void> => this.#rotateRecent();
    this.sessions = new Sessions(account);
    this.devices = new Devices(account, {
      onKeys: (keys) => this.#holdKeys(keys),
      onPrivateKeys: (keys) => keeper.keepKeys(keys),
      onRevoked,
      introducedBy: async (deviceId) => {
        await this.session.directory.refresh(this.self);
        return this.trust.introducedBy(this.self, deviceId);
      },
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
    const { fetch: own, hooks: called = {}, logger = CONSOLE, onSession, store = null } = options;
    const hooks = new HookCaller(called, logger);
    const call = own ?? ((...parameters: Parameters<Fetch>) => fetch(...parameters));
    const keeper = new Keeper(store, hooks, logger);
    const keepSession = async (session: StoredSession): Promise<void> => {
      await onSession?.(session);
      await keeper.keepSession(session);
    };
    return new Client(new Account(options.url, call, hooks, keepSession), options, keeper);
  }

  static async #signIn(options: ClientOptions, path: string, body: object): Promise<Client> {
    const client = Client.#make(options);
    const kept = await client.keeper.device();
    const { deviceName, platform } = options;
    const deviceId = options.deviceId ?? kept?.session.deviceId ?? newUlid();
    await client.account.signIn(path, body, { deviceId, deviceName, platform });
    return client.#begin(kept);
  }

  /**
   * Goes on with the sign-in of an earlier run, which the store or `onSession` has kept. In a browser
   * the cookie is enough. Keys that the store has not kept are given to `devices.hold`. Throws
   * `Closed` if the sign-in has ended.
   */
  static async resume(
    options: ClientOptions,
    session: StoredSession | null = null,
  ): Promise<Client> {
    const client = Client.#make(options);
    const kept = await client.keeper.device();
    const known = session ?? kept?.session ?? null;
    // The renewal makes the cookie that is kept useless, so the store is asked before.
    if (known) client.#earlier = await client.keeper.load(known);
    if (!(await client.account.resume(known))) throw new Closed("the sign-in has ended");
    return client.#begin(kept);
  }

  /**
   * Goes on like `resume`, and asks nothing: for a program that shows what it has kept while the
   * service is away. The first call renews the sign-in. `events` throws `Closed` if it has ended.
   */
  static async resumeOffline(
    options: ClientOptions,
    session: StoredSession | null = null,
  ): Promise<Client> {
    const client = Client.#make(options);
    const kept = await client.keeper.device();
    const known = session ?? kept?.session;
    if (!known) throw new Closed("no sign-in was kept");
    client.account.resumeOffline(known);
    return client.#begin(kept);
  }

  /** Takes over what earlier runs of this device have kept. */
  async #begin(kept: DeviceState | null): Promise<this> {
    this.#earlier ??= await this.keeper.load(this.account);
    if (kept?.keys) this.devices.useKeys(await importHeld(restoreKeys(kept.keys)));
    return this;
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

  /** The challenge of a sign-in with a passkey; `public_key` is for `navigator.credentials.get`. */
  static beginPasskeyLogin(
    options: ClientOptions,
  ): Promise<components["schemas"]["LoginChallenge"]> {
    const { http } = Client.#make(options).account;
    return http.data({ method: "POST", path: "/auth/passkey/begin", isPublic: true });
  }

  /** Signs in with the credential that answers a challenge, as WebAuthn's JSON. */
  static loginWithPasskey(
    options: ClientOptions & { readonly challengeId: string; readonly credential: unknown },
  ): Promise<Client> {
    const { challengeId, credential } = options;
    const body = { challenge_id: challengeId, credential };
    return Client.#signIn(options, "/auth/passkey/complete", body);
  }

  /**
   * Signs in with a passkey that the person chooses in this browser; null if they choose none, or the
   * signal aborts. Throws `UsageError` where `supportsPasskeys()` is false.
   */
  static async signInWithPasskey(options: ClientOptions & PasskeyOptions): Promise<Client | null> {
    const challenge = () => Client.beginPasskeyLogin(options);
    const answer = await answeredByPasskey(challenge, options);
    return answer && Client.loginWithPasskey({ ...options, ...answer });
  }

  /** Sets a password by a code that was mailed for the scene `reset`. Every session ends. */
  static resetPassword(
    options: ClientOptions & {
      readonly email: string;
      readonly code: string;
      readonly newPassword: string;
    },
  ): Promise<components["schemas"]["PasswordReset"]> {
    const { http } = Client.#make(options).account;
    const { email, code, newPassword } = options;
    const body = { email, code, new_account_password: newPassword };
    return http.data({ method: "POST", path: "/auth/reset-password", body, isPublic: true });
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
    return (this.#trust ??= new Trust(this.self, trust, [], this.#earlier?.pins ?? pins ?? null));
  }

  get self(): Principal {
    return { type: "user", id: this.userId };
  }

  get userId(): string {
    return this.account.userId;
  }

  #holdKeys(keys: DeviceKeys): void {
    this.#warnWithoutStore();
    this.trust.own(keys.opening.map((key) => hex(key.keyId)));
    this.#session = this.#makeSession(keys);
    const onNotGiven = (id: string, who: NotGiven): void => {
      const { because: type, principal } = who;
      const details = { type, principal_id: principal.id, key_id: null, conversation_id: id };
      this.#hooks.call("key_changed", details);
      this.#logger.warn("a member was given nothing", { conversation_id: id });
    };
    const onNotRotated = (conversation_id: string, because: NotRotated): void => {
      this.#hooks.call("not_rotated", { conversation_id, because });
      this.#logger.warn("a fresh secret was refused", { conversation_id, because });
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
    const marks = this.#earlier?.marks ?? Object.fromEntries(this.options.marks ?? []);
    this.#marks ??= Texts.of(marks);
    const session = new Session({
      http: this.account.http,
      self: this.self,
      signer: keys?.signer ?? null,
      opening: keys?.opening ?? [],
      deviceId: this.account.deviceId,
      pins: this.trust,
      marks: this.#marks,
      allowsClear: false,
      onNotice: (notice, conversationId) => this.#tell(notice, conversationId),
      onTrustChanged: () => this.#onTrustChanged(),
      onHandled: (handled) => this.keeper.showing(handled),
    });
    if (this.#session) session.takeFrom(this.#session);
    else if (this.#earlier) {
      session.resumeHandled(this.#earlier.handled);
      // The session has them now.
      this.#earlier = { ...this.#earlier, handled: [] };
    }
    this.keeper.lessons.hold(this.trust, session);
    return session;
  }

  #onTrustChanged(): void {
    this.options.onTrustChanged?.();
    this.keeper.lessons.soon();
  }

  #tell({ kind, about, keyId }: Notice, conversation_id: string | null): void {
    const details = { type: kind, principal_id: about.id, key_id: keyId, conversation_id };
    this.#hooks.call("key_changed", details);
  }

  /**
   * Fresh secrets where a device that was removed could read what is sent now. Elsewhere the next send
   * rotates: that is noted here, and needs no word of the server.
   */
  async #rotateRecent(): Promise<void> {
    if (!this.#rotator) return;
    this.session.keysChanged(this.session.options.self);
    const since = Date.now() - ROTATED_AFTER_REVOCATION_MS;
    try {
      for await (const { conversation_id: id, last_activity_at, epoch } of this.conversations()) {
        if (Date.parse(last_activity_at) < since) return;
        if (epoch > 0) await this.#rotateAway(id);
      }
    } catch (error) {
      if (!(error instanceof BlindpipeError)) throw error;
      this.#logger.warn("some conversations have no fresh secret yet");
    }
  }

  async #rotateAway(conversation_id: string): Promise<void> {
    try {
      await this.session.mustRotate(conversation_id);
      await this.#rotator!.rotate(conversation_id);
    } catch (error) {
      if (!(error instanceof BlindpipeError || error instanceof KeyUnavailable)) throw error;
      this.#logger.warn("a conversation has no fresh secret yet", { conversation_id });
    }
  }

  protected get http(): Http {
    return this.account.http;
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
      isSearchable: this.options.searchable ?? false,
      sendFrame: (frame: Frame) => this.#socket?.send(frame) ?? false,
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
   * agent's own site: it verifies the agent. While the service does not list that key, all keys
   * that nobody verified wait.
   */
  async openAgent(
    agentId: string,
    { keyId }: { readonly keyId?: string } = {},
  ): Promise<Conversation> {
    if (keyId !== undefined) {
      const agent: Principal = { type: "agent", id: agentId };
      this.#compared(agent, this.trust.link(agent, keyId.toLowerCase()));
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
    this.#onTrustChanged();
  }

  /**
   * 60 digits to compare with somebody: of all accepted keys of both, as the service lists them
   * now. Where a side has none, of those that wait.
   */
  async safetyNumber(principal: Principal): Promise<string> {
    for (const one of [this.self, principal]) await this.session.directory.refresh(one);
    const number = await this.trust.safetyNumber(principal);
    if (number === null) throw new DecryptError("unknown_sender_key");
    return number;
  }

  /** People have compared these digits: all keys of theirs that they stand for are verified. */
  async verify(principal: Principal, number: string): Promise<void> {
    const notices = await this.trust.verifyNumber(principal, number);
    if (!notices) throw new UsageError("these are not the digits of now");
    this.#compared(principal, notices);
  }

  /**
   * People have compared this key alone, for example by its id. All other keys of theirs wait from
   * now on, but for those that it introduced. The hook `key_changed` names them.
   */
  verifyKey(principal: Principal, keyId: string): void {
    const notices = this.trust.verify(principal, keyId.toLowerCase());
    if (!notices) throw new UsageError("this key was never shown, or it is retired");
    this.#compared(principal, notices);
  }

  #compared(principal: Principal, notices: readonly Notice[]): void {
    for (const notice of notices) this.#tell(notice, null);
    this.#reconsider(principal);
  }

  /**
   * Proves the person's identity anew. For ten minutes this session may then do what the service
   * refuses with `REAUTH_REQUIRED`.
   */
  async reauth(proof: Proof): Promise<void> {
    const body = proofBody(proof);
    await this.account.http.data({ method: "POST", path: "/auth/reauth", body });
  }

  /** As `reauth`, with a passkey of this browser. False if the person chooses none. */
  async reauthWithPasskey(options: PasskeyOptions = {}): Promise<boolean> {
    const answer = await answeredByPasskey(() => Client.beginPasskeyLogin(this.options), options);
    if (answer) await this.reauth(answer);
    return answer !== null;
  }

  /**
   * Makes a passkey in this browser, and adds it to the account. Null if the person changed their mind.
   * It needs a sign-in of the last 10 minutes. Throws `UsageError` where `supportsPasskeys()` is false.
   */
  async registerPasskey(
    name?: string,
  ): Promise<components["schemas"]["EnrolledPasskey"] | null> {
    checkSupport();
    const challenge = await this.beginPasskey();
    const credential = await createdPasskey(challenge);
    return credential ? this.addPasskey(challenge.challenge_id, credential, name) : null;
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

  /** What this person is asked to approve in all conversations, the newest first. */
  async *approvals(state: "open" | "closed" = "open"): AsyncGenerator<ApprovalRequest> {
    const path = "/approvals";
    for await (const approval of this.account.http.pages<Approval>(path, { state })) {
      yield await this.approvalRequest(approval);
    }
  }

  /** An approval with its question. */
  async approval(approvalId: string): Promise<ApprovalRequest> {
    return this.approvalRequest(await readApproval(this.session, approvalId));
  }

  /** Opens the question of an approval, such as that of an event. */
  approvalRequest(approval: Approval): Promise<ApprovalRequest> {
    const conversation = this.conversation(approval.conversation_id);
    const { session, userId } = this;
    return ApprovalRequest.open({ approval, conversation, session, userId });
  }

  /** Takes an approval back, at once; what this device remembers of its scopes goes as well. */
  async revokeGrant(grantId: string): Promise<void> {
    const path = `/grants/${grantId}`;
    const grant = await this.account.http.data<Grant>({ method: "DELETE", path });
    await withdrawGrant(this.#consents, grant);
  }

  /**
   * Events, over a socket that reconnects. An event is acknowledged when the next one is
   * asked for, and what it taught is kept. While the store fails, none is acknowledged.
   */
  async *events(options: { signal?: AbortSignal } = {}): AsyncGenerator<ClientEvent> {
    const closing = new AbortController();
    const queue = new FrameQueue();
    options.signal?.addEventListener("abort", () => closing.abort(), { once: true });
    if (options.signal?.aborted) closing.abort();
    const socket = eventSocket({
      url: this.options.url,
      webSocket: this.options.webSocket ?? defaultWebSocket,
      hooks: this.#hooks,
      account: this.account,
      holders: () => this.devices.online(),
      missedEvents: () => this.session.missedEvents(),
      queue,
      signal: closing.signal,
    });
    const ended = socket.run().then(
      () => queue.end(null),
      (error: unknown) => queue.end(error),
    );
    const reader = new EventReader({
      session: this.session,
      hooks: this.#hooks,
      logger: this.#logger,
      consents: this.#consents,
      conversation: (id) => (this.#rotator ? this.conversation(id) : null),
      send: (frame) => socket.send(frame),
      onReading: (read) => acks.after(read),
    });
    this.#socket = socket;
    const acks = new Acks(
      () => this.#isKept(),
      (cursor) => socket.send({ type: "ack", cursor }),
    );
    try {
      // An answer that comes late holds up no event.
      void this.#checkOwnList();
      for await (const frame of queue) {
        const read = await this.#read(reader, frame, closing.signal);
        if (!read) return;
        for (const event of read) {
          yield event;
          if (event.type === "tool_request") acks.after(this.#answerUnknown(event.request));
        }
        this.keeper.shown();
        if (frame.type === "event") acks.add(String(frame["cursor"]));
      }
    } finally {
      await acks.end();
      closing.abort();
      queue.end(null);
      await ended;
    }
  }

  async #isKept(): Promise<boolean> {
    const isConsentKept = this.#consents.save().then(
      () => true,
      () => false,
    );
    return (await this.keeper.save()) && (await isConsentKept);
  }

  #warnWithoutStore(): void {
    const { store, pins, tools, consents } = this.options;
    if (store) return;
    if (pins === undefined) {
      this.#logger.warn("no store is given: this start is a first contact with everybody");
    }
    if (tools && !consents) {
      this.#logger.warn("no store of consents: what was executed is known until the end of the program");
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
      this.#logger.warn("a request for an unknown tool was not answered", { name });
    }
  }

  /** A device on one's own list that one did not add is an alarm, at every start. */
  async #checkOwnList(): Promise<void> {
    if (!this.#rotator) return;
    await this.session.directory.refresh(this.self).catch((error: unknown) => {
      this.#logger.warn("the list of devices was not read", {
        name: (error as Error).name,
      });
    });
  }
}
