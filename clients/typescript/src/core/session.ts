/** One principal's conversations: what it can open, and what it may seal with. */
import { type Bytes, base64, idBytes } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind, type Place } from "../e2ee/context.js";
import {
  ConversationKeys,
  DEFAULT_MAX_AGE_MS,
  type EpochMarks,
  type WrapNotice,
} from "../e2ee/conversation.js";
import { type Opened, envelopeHash, envelopeOf, open, payload, seal } from "../e2ee/envelope.js";
import type { EpochSecret } from "../e2ee/epoch.js";
import { DecryptError } from "../e2ee/errors.js";
import { type KeyPair, type OpeningKeys, type Principal, principalName } from "../e2ee/keys.js";
import type { KeyNotice, Pin, Pins } from "../e2ee/trust.js";
import { BlindpipeError } from "../errors.js";
import type { Http } from "../transport/http.js";
import { Directory, type Recipient } from "./directory.js";
import type { Conversation, EventObject, KeyRotation, Member, Message, OwnGroupKeys } from "./types.js";

export interface SessionOptions {
  readonly http: Http;
  readonly self: Principal;
  /** What signs; null for a principal without keys, which speaks clear. */
  readonly signer: KeyPair | null;
  /** What opens wraps, the signer's own key first. */
  readonly opening: readonly OpeningKeys[];
  readonly deviceId: string | null;
  readonly pins: Pins;
  readonly marks: ReadonlyMap<string, EpochMarks>;
  readonly onKeyNotice: (notice: KeyNotice) => void;
  readonly onWrapNotice: (conversationId: string, notice: WrapNotice) => void;
}

/** Who said something, as far as it is proven. */
export interface OpenedSender extends Principal {
  readonly deviceId: string | null;
  /** An accepted key has signed it. */
  readonly authentic: boolean;
  /** The key was known before this start of the program. */
  readonly pinned: boolean;
  /** People have compared the key. */
  readonly verified: boolean;
  /** The server shows the sender as a member. */
  readonly member: boolean;
}

export interface OpenedMessage {
  readonly content: JsonObject;
  readonly encrypted: boolean;
  readonly sender: OpenedSender;
  /** Signed; null in clear. */
  readonly sentAt: Date | null;
  readonly epoch: number;
  /** The hash by which an answer names this envelope; null in clear. */
  readonly re: string | null;
  readonly isReplay: boolean;
}

interface Entry {
  readonly keys: ConversationKeys;
  info: Conversation | null;
  recipients: readonly Recipient[];
  members: Map<string, Member>;
  /** What the server calls the current epoch. */
  serverEpoch: number | null;
  rotationRequired: boolean;
  /** Members or their keys have changed since they were read. */
  isStale: boolean;
  /** Members or their keys have changed since the newest epoch was made. */
  hasChanged: boolean;
  loading: Promise<void> | null;
}

export class Session {
  readonly directory: Directory;
  readonly #entries = new Map<string, Entry>();
  /** The newest inbox number that was seen. */
  position: number | null = null;

  constructor(readonly options: SessionOptions) {
    this.directory = new Directory(options.http, options.pins, options.onKeyNotice);
  }

  get hasKeys(): boolean {
    return this.options.signer !== null;
  }

  #entry(conversationId: string): Entry {
    let entry = this.#entries.get(conversationId);
    if (!entry) {
      const { self, opening, pins, marks } = this.options;
      const id = idBytes(conversationId);
      entry = {
        keys: new ConversationKeys(id, self, opening, pins, marks.get(conversationId)),
        info: null,
        recipients: [],
        members: new Map(),
        serverEpoch: null,
        rotationRequired: false,
        isStale: true,
        hasChanged: false,
        loading: null,
      };
      this.#entries.set(conversationId, entry);
    }
    return entry;
  }

  /** Epochs and times that a store keeps. */
  marks(): Map<string, EpochMarks> {
    return new Map([...this.#entries].map(([id, entry]) => [id, entry.keys.marks]));
  }

  /** The conversation with its members, their keys, and this member's newest wrap. */
  async load(conversationId: string): Promise<Entry> {
    const entry = this.#entry(conversationId);
    if (!entry.isStale) return entry;
    entry.loading ??= this.#read(conversationId, entry).finally(() => (entry.loading = null));
    await entry.loading;
    return entry;
  }

  async #read(conversationId: string, entry: Entry): Promise<void> {
    entry.isStale = false;
    try {
      const path = `/conversations/${conversationId}`;
      entry.info = await this.options.http.data<Conversation>({ method: "GET", path });
      entry.rotationRequired = entry.info.rotation_required;
      entry.serverEpoch = Math.max(entry.info.epoch, 0);
      const members = entry.info.members ?? [];
      entry.members = new Map(members.map((member) => [nameOf(member), member]));
      if (!this.hasKeys) return;
      const others = members.filter((member) => !this.#isSelf(member) || member.principal_type === "user");
      entry.recipients = await this.directory.recipients(conversationId, others, this.position);
      if (entry.info.epoch > 0) await this.readWraps(conversationId, entry);
    } catch (error) {
      entry.isStale = true;
      throw error;
    }
  }

  #isSelf(member: Member): boolean {
    return nameOf(member) === principalName(this.options.self);
  }

  /** Reads this member's wraps of an epoch; of the current one without a number. */
  async readWraps(conversationId: string, entry: Entry, epoch?: number): Promise<void> {
    let found: OwnGroupKeys;
    try {
      const path = `/keys/groups/${conversationId}`;
      found = await this.options.http.data<OwnGroupKeys>({ method: "GET", path, query: { epoch } });
    } catch (error) {
      // A wrap that is not there is an answer; a read that failed is none.
      if (error instanceof BlindpipeError && error.status === 404) return;
      throw error;
    }
    entry.serverEpoch = found.current_epoch;
    entry.rotationRequired = found.rotation_required;
    await this.takeWraps(conversationId, entry, found.epoch, found.wrapped_keys);
  }

  async takeWraps(
    conversationId: string,
    entry: Entry,
    epoch: number,
    wraps: readonly { device_id?: string | null; wrapped_key: string }[],
  ): Promise<void> {
    const sight = {
      isMember: (principal: Principal) => entry.members.has(principalName(principal)),
      now: Date.now(),
    };
    for (const { device_id, wrapped_key } of wraps) {
      const outcome = await entry.keys.take(epoch, wrapped_key, sight);
      // Restored keys also open what was wrapped for the devices of before; those get no notice.
      if (device_id && device_id !== this.options.deviceId) continue;
      outcome.notices.forEach((notice) => this.options.onWrapNotice(conversationId, notice));
    }
  }

  /** Takes note of what an event says about keys and members, before anybody handles it. */
  async observe(event: EventObject): Promise<void> {
    this.position = event.seq;
    const data = event.data;
    switch (event.event) {
      case "key.rotated": {
        const rotation = data as unknown as KeyRotation;
        const entry = this.#entries.get(rotation.conversation_id);
        // What was never looked at is read when it is needed.
        if (!entry || !this.hasKeys) return;
        entry.hasChanged = false;
        if (!entry.isStale) {
          entry.serverEpoch = Math.max(entry.serverEpoch ?? 0, rotation.epoch);
          entry.rotationRequired = false;
          await this.#ensureRotator(entry, rotation.by);
        }
        return this.takeWraps(rotation.conversation_id, entry, rotation.epoch, rotation.wrapped_keys);
      }
      case "key.device_added":
      case "key.device_removed":
        return this.#principalChanged({ type: "user", id: String(data["user_id"]) });
      case "agent.key_registered":
        return this.#principalChanged({ type: "agent", id: String(data["agent_id"]) });
      case "member.added":
      case "member.removed":
      case "conversation.updated":
      case "relation.created":
      case "relation.revoked": {
        const id = event.conversation_id ?? (data["conversation_id"] as string | undefined);
        const entry = id && this.#entries.get(id);
        if (entry) entry.isStale = entry.hasChanged = true;
      }
    }
  }

  async #ensureRotator(entry: Entry, userId: string): Promise<void> {
    const rotator: Principal = { type: "user", id: userId };
    if (!this.options.pins.isKnown(rotator) && entry.members.has(principalName(rotator))) {
      await this.directory.refresh(rotator, this.position);
    }
  }

  async #principalChanged(principal: Principal): Promise<void> {
    const name = principalName(principal);
    for (const entry of this.#entries.values()) {
      if (entry.members.has(name)) entry.isStale = entry.hasChanged = true;
    }
    if (this.options.pins.isKnown(principal)) await this.directory.refresh(principal, this.position);
  }

  /** Opens something that was found in a conversation. Throws `DecryptError`. */
  async open(
    conversationId: string,
    envelope: Bytes,
    place: Place,
    sender: Principal,
  ): Promise<{ opened: Opened; pin: Pin; member: boolean; entry: Entry }> {
    const entry = await this.load(conversationId);
    let pin: Pin | undefined;
    const opened = await open({
      envelope,
      place,
      conversation: entry.keys.conversation,
      sender,
      secret: (epoch, sid) => this.#secret(conversationId, entry, epoch, sid),
      senderKeys: async (keyId) => (pin = await this.#senderKey(conversationId, sender, keyId)),
    });
    const member = entry.members.has(principalName(sender));
    this.options.pins.noteSpeaks(sender);
    return { opened, pin: pin!, member, entry };
  }

  async #secret(
    conversationId: string,
    entry: Entry,
    epoch: number,
    sid: Bytes,
  ): Promise<EpochSecret | undefined> {
    const held = entry.keys.secret(epoch, sid);
    if (held || !this.hasKeys) return held;
    await this.readWraps(conversationId, entry, epoch);
    return entry.keys.secret(epoch, sid);
  }

  async #senderKey(
    conversationId: string,
    sender: Principal,
    keyId: Bytes,
  ): Promise<Pin | undefined> {
    const known = this.options.pins.find(sender, keyId);
    if (known) return known;
    await this.directory.speaker(conversationId, sender, this.position);
    return this.options.pins.find(sender, keyId);
  }

  /**
   * Opens a message. `live` is its number in the inbox; null for history, where keys that have left
   * still verify. Throws `DecryptError`.
   */
  async openMessage(message: Message, live: number | null): Promise<OpenedMessage> {
    if (message.payload === null) throw new DecryptError("clear");
    const sender: Principal = { type: message.sender.type, id: message.sender.id };
    const envelope = envelopeOf(message.payload);
    if (!message.client_message_id) throw new DecryptError("malformed");
    const place: Place = {
      kind: Kind.message,
      clientMessageId: message.client_message_id,
      inReplyTo: message.in_reply_to,
    };
    const { opened, pin, member, entry } = await this.open(
      message.conversation_id,
      envelope,
      place,
      sender,
    );
    refuseRetired(pin, live);
    const isReplay = live !== null && entry.keys.isReplay(sender, message.client_message_id);
    return {
      content: opened.content,
      encrypted: true,
      sender: { ...sender, deviceId: message.sender.device_id ?? null, ...proof(pin), member },
      sentAt: new Date(opened.time),
      epoch: opened.header.epoch,
      re: await envelopeHash(envelope),
      isReplay,
    };
  }

  /** After a tap: what waited under the key counts from now on. */
  reconsider(): void {
    for (const entry of this.#entries.values()) entry.keys.reconsider(Date.now());
  }

  /** A message that was handled is not handled again under another event. */
  remember(message: Message): void {
    const sender: Principal = { type: message.sender.type, id: message.sender.id };
    const entry = this.#entry(message.conversation_id);
    if (message.client_message_id) entry.keys.remember(sender, message.client_message_id);
  }

  /** What came in clear: nobody's word but the server's. */
  clearMessage(message: Message): OpenedMessage {
    const sender: Principal = { type: message.sender.type, id: message.sender.id };
    const proof = { authentic: false, pinned: false, verified: false, member: true };
    return {
      content: message.payload ?? {},
      encrypted: false,
      sender: { ...sender, deviceId: message.sender.device_id ?? null, ...proof },
      sentAt: null,
      epoch: 0,
      re: null,
      isReplay: false,
    };
  }

  /** Whether a conversation has, or ever had, an epoch. */
  async isEncrypted(conversationId: string): Promise<boolean> {
    const entry = await this.load(conversationId);
    return (entry.serverEpoch ?? 0) > 0 || entry.keys.wasEncrypted;
  }

  /** Seals with the newest secret. Throws `KeyUnavailable`. */
  async seal(
    conversationId: string,
    place: Place,
    content: JsonObject | Bytes,
    options: { answering?: number | undefined; addressed?: readonly string[] | undefined } = {},
  ): Promise<Bytes> {
    const entry = await this.load(conversationId);
    if ((entry.serverEpoch ?? 0) > entry.keys.newestEpoch) {
      await this.readWraps(conversationId, entry);
    }
    const secret = entry.keys.sealingSecret(entry.serverEpoch, options.answering ?? 0);
    return seal({
      secret,
      place,
      sender: this.options.self,
      keys: this.options.signer!,
      content,
      time: Date.now(),
      addressed: secret.kind === 1 ? options.addressed?.map(idBytes) : undefined,
    });
  }

  /** The payload of a sealed thing. */
  async sealPayload(...parameters: Parameters<Session["seal"]>): Promise<JsonObject> {
    return payload(await this.seal(...parameters)) as unknown as JsonObject;
  }

  /** A delta's bare string. */
  async sealText(...parameters: Parameters<Session["seal"]>): Promise<string> {
    return base64(await this.seal(...parameters));
  }

  isTooOld(opened: OpenedMessage, maxAgeMs = DEFAULT_MAX_AGE_MS): boolean {
    return opened.sentAt !== null && Date.now() - opened.sentAt.getTime() > maxAgeMs;
  }
}

/** Live messages later in the inbox than their key's leaving are nobody's. */
function refuseRetired(pin: Pin, live: number | null): void {
  if (live === null || !pin.retired) return;
  if (pin.retiredAt === null || live > pin.retiredAt) throw new DecryptError("retired_key");
}

function proof(pin: Pin): { authentic: boolean; pinned: boolean; verified: boolean } {
  return {
    authentic: pin.trust !== "waiting",
    pinned: pin.fromStore,
    verified: pin.trust === "verified",
  };
}

function nameOf(member: Member): string {
  return principalName({ type: member.principal_type, id: member.principal_id });
}

export type { Entry };
