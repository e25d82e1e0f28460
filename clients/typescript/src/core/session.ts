/** The conversations of a principal: the secrets that open, and those that may seal. */
import { clearContent } from "../e2ee/approval.js";
import { type Bytes, base64, fromBase64, idBytes, idName, isId } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind, type Place } from "../e2ee/context.js";
import { envelopeHash, envelopeOf, payload, readHeader, seal } from "../e2ee/envelope.js";
import type { EpochKey } from "../e2ee/epoch.js";
import { DecryptError, KeyUnavailable } from "../e2ee/errors.js";
import { type KeyPair, type OpeningKeys, type Principal, principalName } from "../e2ee/keys.js";
import {
  type EpochMarks,
  type Incoming,
  NO_MARKS,
  Room,
  type Shown,
  mergedMarks,
  keptMessage,
} from "../e2ee/room.js";
import { Texts } from "../e2ee/texts.js";
import type { Notice, Trust } from "../e2ee/trust.js";
import { BlindpipeError } from "../errors.js";
import type { Logger } from "../hooks.js";
import type { Http } from "../transport/http.js";
import { Directory, type Recipient } from "./directory.js";
import { resolvedContent } from "./large.js";
import { Envelopes, type OpenedMessage, proof } from "./opened.js";
import type {
  Conversation,
  EventObject,
  KeyRotation,
  Member,
  Message,
  OwnGroupKeys,
  Sent,
} from "./types.js";

/** A message that was handled. */
export interface Handled {
  /** When it was handled, or signed if that is later; in Unix milliseconds. */
  readonly at: number;
  readonly conversationId: string;
  readonly sender: Principal;
  readonly clientMessageId: string;
}

export interface SessionOptions {
  readonly http: Http;
  readonly self: Principal;
  /** The keys that sign; null for a principal without keys, which speaks clear. */
  readonly signer: KeyPair | null;
  /** The keys that open wraps, the signer's own first. */
  readonly opening: readonly OpeningKeys[];
  readonly deviceId: string | null;
  readonly pins: Trust;
  readonly marks: ReadonlyMap<string, EpochMarks> | Texts<EpochMarks>;
  /** An agent's developer takes clear text. */
  readonly allowsClear: boolean;
  /** An agent's bound for the age of messages, in milliseconds. */
  readonly maxAgeMs?: number | undefined;
  readonly onNotice: (notice: Notice, conversationId: string | null) => void;
  /** Pins or marks have changed, which a store keeps. */
  readonly onTrustChanged?: (() => void) | undefined;
  /** A message was handled, which a store keeps too. */
  readonly onHandled?: ((handled: Handled) => void) | undefined;
}

/** A conversation as far as it is known. */
export interface Entry {
  /** Its id in the spelling that was met first. */
  readonly id: string;
  readonly room: Room;
  info: Conversation | null;
  recipients: readonly Recipient[];
  members: Map<string, Member>;
  /** Members or their keys have changed since they were read. */
  isStale: boolean;
  loading: Promise<void> | null;
  readonly envelopes: Envelopes;
}

/** The conversations in memory. Of all others, their marks and the handled messages are kept. */
export const MAX_ROOMS = 1_000;

/** How long an old secret goes on while the server refuses a fresh one. */
const ROTATION_GRACE_MS = 10 * 60_000;

/** The times since which the server's limit has refused rotations. */
export class RotationGrace {
  readonly #refusedAt = new Map<string, number>();

  /** The limit has refused a rotation. */
  refused(conversationId: string, now: number): void {
    if (!this.#refusedAt.has(conversationId)) this.#refusedAt.set(conversationId, now);
  }

  /** Whether a secret that is only old may seal. */
  holds(conversationId: string, now: number): boolean {
    const since = this.#refusedAt.get(conversationId);
    return since !== undefined && now - since < ROTATION_GRACE_MS && now >= since;
  }

  rotated(conversationId: string): void {
    this.#refusedAt.delete(conversationId);
  }
}

export class Session {
  readonly directory: Directory;
  readonly grace = new RotationGrace();
  /**
   * The rooms that were used last, by the bytes of their ids: another spelling is no other
   * conversation. A member that still has another one keeps it, and others find it there.
   */
  readonly #recent = new Map<string, Entry>();
  readonly #released = new Map<string, WeakRef<Entry>>();
  readonly #forgotten = new FinalizationRegistry<string>((name) => {
    if (!this.#released.get(name)?.deref()) this.#released.delete(name);
  });
  /** The marks of all conversations, each under one spelling of its id. */
  readonly #marks: Texts<EpochMarks>;
  /** The spellings that are not `idName`, by that. */
  readonly #spellings = new Map<string, string>();
  /** What was handled in conversations whose rooms are not in memory. */
  readonly #handled = new Map<string, string>();
  #changed = new Set<string>();

  constructor(readonly options: SessionOptions) {
    const { marks } = options;
    this.#marks = marks instanceof Texts ? marks : Texts.of(Object.fromEntries(marks));
    for (const id of this.#marks.names()) this.#spell(idName(id), id);
    this.directory = new Directory(options.http, options.pins, (notices) => {
      options.onTrustChanged?.();
      for (const notice of notices) {
        this.keysChanged(notice.about);
        options.onNotice(notice, null);
      }
    });
  }

  get hasKeys(): boolean {
    return this.options.signer !== null;
  }

  #spell(name: string, id: string): void {
    if (name === id) this.#spellings.delete(name);
    else this.#spellings.set(name, id);
  }

  #spelled(name: string): string {
    return this.#spellings.get(name) ?? name;
  }

  #entry(conversationId: string): Entry {
    const name = idName(conversationId);
    return this.#use(name, this.#inMemory(name) ?? this.#resumed(name, conversationId));
  }

  #inMemory(name: string): Entry | undefined {
    return this.#recent.get(name) ?? this.#released.get(name)?.deref();
  }

  *#entries(): Generator<Entry> {
    yield* this.#recent.values();
    for (const [name, released] of this.#released) {
      const entry = this.#recent.has(name) ? undefined : released.deref();
      if (entry) yield entry;
    }
  }

  #use(name: string, entry: Entry): Entry {
    this.#recent.delete(name);
    this.#recent.set(name, entry);
    if (this.#recent.size > MAX_ROOMS) this.#release();
    return entry;
  }

  #release(): void {
    const [name, entry] = this.#recent.entries().next().value!;
    this.#recent.delete(name);
    this.#released.set(name, new WeakRef(entry));
    this.#forgotten.register(entry, name);
    const { remembered } = entry.room;
    if (remembered) this.#handled.set(name, remembered);
  }

  #resumed(name: string, conversationId: string): Entry {
    const kept = this.#marks.get(this.#spelled(name));
    const id = kept ? this.#spelled(name) : conversationId;
    const marks = kept ?? NO_MARKS;
    const { allowsClear } = this.options;
    const room: Room = new Room(idBytes(id), allowsClear, marks, () =>
      this.#putMarks(name, id, room.marks),
    );
    room.rememberAll(this.#handled.get(name) ?? "");
    this.#handled.delete(name);
    return {
      id,
      room,
      info: null,
      recipients: [],
      members: new Map(),
      isStale: true,
      loading: null,
      envelopes: new Envelopes(),
    };
  }

  #putMarks(name: string, id: string, marks: EpochMarks): void {
    this.#spell(name, id);
    this.#marks.put(id, marks);
    this.#changed.add(name);
    this.options.onTrustChanged?.();
  }

  /** The keys of somebody changed: a person's rotation is due wherever those read, also after a restart. */
  keysChanged(of: Principal): void {
    for (const entry of this.#entries()) entry.room.keysChanged(of);
    if (this.options.self.type === "user") this.#noteChanged(of);
  }

  /** Of the rooms that are not in memory. */
  #noteChanged(who: Principal): void {
    const member = principalName(who);
    for (const id of this.#marks.names()) {
      const name = idName(id);
      if (this.#inMemory(name) || this.#spelled(name) !== id) continue;
      const marks = this.#marks.get(id)!;
      if (!marks.changed && marks.members && member in marks.members)
        this.#putMarks(name, id, { ...marks, changed: true });
    }
  }

  #known(conversationId: string): Entry | undefined {
    if (!isId(conversationId)) return undefined;
    const name = idName(conversationId);
    const isThere = this.#inMemory(name) !== undefined || this.#handled.has(name);
    return isThere ? this.#entry(conversationId) : undefined;
  }

  /** What a store keeps of conversations, also of those that were not used since. */
  marks(): Map<string, EpochMarks> {
    return new Map([...this.#marks.names()].map((id) => [id, this.#marks.get(id)!]));
  }

  /** The marks that have changed since the last question. */
  takeChanged(): { readonly names: ReadonlySet<string>; readonly marks: Record<string, EpochMarks> } {
    const names = this.#changed;
    this.#changed = new Set();
    const ids = [...names].map((name) => this.#spelled(name));
    return { names, marks: Object.fromEntries(ids.map((id) => [id, this.#marks.get(id)!])) };
  }

  /** Takes over what another process of this principal has stored. */
  takeOver(marks: Readonly<Record<string, EpochMarks>>, handled: readonly Handled[]): void {
    for (const [id, theirs] of Object.entries(marks)) {
      const name = idName(id);
      const own = this.#changed.has(name) ? this.#marks.get(this.#spelled(name)) : undefined;
      this.#spell(name, id);
      this.#marks.put(id, own ? mergedMarks(own, theirs) : theirs);
      // Its room begins anew with these marks when it is used.
      const entry = this.#inMemory(name);
      if (!entry) continue;
      this.#recent.delete(name);
      this.#released.delete(name);
      this.#handled.set(name, entry.room.remembered);
    }
    for (const { at, conversationId, sender, clientMessageId } of handled) {
      const name = idName(conversationId);
      const entry = this.#inMemory(name);
      const kept = keptMessage(sender, clientMessageId, at);
      if (entry) entry.room.rememberAll(kept);
      else this.#handled.set(name, (this.#handled.get(name) ?? "") + kept);
    }
  }

  /** A store did not keep what `takeChanged` gave. */
  notKept(names: Iterable<string>): void {
    for (const name of names) this.#changed.add(name);
  }

  /** The conversation with its members, their keys, and this member's newest wrap. */
  async load(conversationId: string): Promise<Entry> {
    const entry = this.#entry(conversationId);
    // A read that runs has its room half filled.
    await entry.loading;
    if (!entry.isStale) return entry;
    entry.loading ??= this.#read(conversationId, entry).finally(() => (entry.loading = null));
    await entry.loading;
    return entry;
  }

  async #read(conversationId: string, entry: Entry): Promise<void> {
    entry.isStale = false;
    try {
      const path = `/conversations/${conversationId}`;
      const info = await this.options.http.data<Conversation>({ method: "GET", path });
      const members = info.members ?? [];
      const named = new Map(members.map((member) => [principalName(principalOf(member)), member]));
      const isPair = info.type === "direct" || info.type === "agent";
      // Two people, or a person and an agent: nobody joins them.
      if (isPair && (named.size > 2 || !named.has(principalName(this.options.self)))) {
        throw new DecryptError("malformed");
      }
      entry.info = info;
      this.#serverEpoch(entry, info.epoch, info.rotation_required);
      entry.members = named;
      const shown = members.map((member) => ({
        principal: principalOf(member),
        visibility: member.visibility ?? ("all" as const),
      }));
      this.#tell(entry.room.members(shown), conversationId);
      if (!this.hasKeys) return;
      entry.recipients = await this.directory.recipients(conversationId);
      if (info.epoch > 0) await this.readWraps(conversationId, entry);
    } catch (error) {
      entry.isStale = true;
      throw error;
    }
  }

  #serverEpoch({ room }: Entry, epoch: number, rotationRequired: boolean): void {
    const messages = epoch === room.server.epoch ? room.server.messages : 0;
    room.serverEpoch({ epoch, rotationRequired, messages });
  }

  /** The server does not count the messages of an epoch, so those that pass here are counted. */
  #count({ room }: Entry, epoch: number): void {
    const { server } = room;
    if (epoch === server.epoch) room.serverEpoch({ ...server, messages: server.messages + 1 });
  }

  #tell(notices: readonly Notice[], conversationId: string): void {
    for (const notice of notices) this.options.onNotice(notice, conversationId);
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
    this.#serverEpoch(entry, found.current_epoch, found.rotation_required);
    await this.takeWraps(conversationId, entry, found.epoch, found.wrapped_keys);
  }

  /** Takes what opens; restored keys also open what was wrapped for the devices of before. */
  async takeWraps(
    conversationId: string,
    entry: Entry,
    epoch: number,
    wraps: readonly { device_id?: string | null; wrapped_key: string }[],
  ): Promise<void> {
    const { pins, opening } = this.options;
    for (const { wrapped_key } of wraps) {
      try {
        const taken = await entry.room.wrap(pins, opening, epoch, wrapped_key, Date.now());
        this.#tell(taken.notices, conversationId);
        if (taken.isNewest) this.options.onTrustChanged?.();
      } catch (error) {
        // A secret that does not open is found missing when it is needed.
        if (!(error instanceof DecryptError)) throw error;
      }
    }
  }

  /** A rotation of one's own has been accepted. */
  async rotated(conversationId: string, entry: Entry, epoch: number, own: string): Promise<void> {
    this.grace.rotated(conversationId);
    this.#serverEpoch(entry, epoch, false);
    await this.takeWraps(conversationId, entry, epoch, [{ wrapped_key: own }]);
  }

  /** The server cannot say what happened meanwhile, so everything is read again. */
  missedEvents(): void {
    for (const entry of this.#entries()) entry.isStale = true;
  }

  /** Takes note of what an event says about keys and members, before anybody handles it. */
  async observe(event: EventObject): Promise<void> {
    const { data } = event;
    switch (event.event) {
      case "key.rotated":
        return this.#observeRotation(data as unknown as KeyRotation);
      case "key.device_added":
      case "key.device_removed":
      case "agent.key_registered": {
        const principal = ownerOfKeys(event)!;
        for (const entry of this.#entries()) {
          if (entry.room.isMember(principal)) entry.isStale = true;
        }
        return;
      }
      case "member.added":
      case "member.removed":
      case "conversation.updated":
      case "relation.created":
      case "relation.revoked": {
        const id = event.conversation_id ?? (data["conversation_id"] as string | undefined);
        const entry = id && this.#known(id);
        if (entry) entry.isStale = true;
      }
    }
  }

  async #observeRotation(rotation: KeyRotation): Promise<void> {
    const entry = this.#known(rotation.conversation_id);
    // A rotator is judged by the members. A read that still fetches them is repeated: the events of
    // other conversations do not wait for it.
    if (entry?.loading) entry.isStale = true;
    // An epoch that was never read is read when it is needed.
    if (!entry || !this.hasKeys || entry.isStale) return;
    const { server } = entry.room;
    this.#serverEpoch(entry, Math.max(server.epoch, rotation.epoch), false);
    const rotator: Principal = { type: "user", id: rotation.by };
    if (!this.options.pins.isKnown(rotator) && entry.room.isMember(rotator)) {
      // The next read of the conversation brings the rotator's keys, and the wrap.
      entry.isStale = true;
      return;
    }
    await this.takeWraps(rotation.conversation_id, entry, rotation.epoch, rotation.wrapped_keys);
  }

  /**
   * Reads the keys that an event says have changed. Their conversations are stale since `observe`, and
   * read them by themselves: no other event need wait for this. Null if there is nothing to read.
   */
  keysRead(event: EventObject): Promise<void> | null {
    const principal = ownerOfKeys(event);
    if (!principal || !this.options.pins.isKnown(principal)) return null;
    return this.directory.changed(principal);
  }

  /** After a tap: what waited under the key is read again. */
  reconsider(principal: Principal): void {
    for (const entry of this.#entries()) {
      if (!entry.room.isMember(principal)) continue;
      entry.room.keysChanged(principal);
      entry.isStale = true;
    }
  }

  /** Members or keys have changed by one's own act, whose event comes later. */
  forget(conversationId: string): void {
    const entry = this.#known(conversationId);
    if (entry) entry.isStale = true;
  }

  /** As `forget`; nothing is sealed there before there is a fresh secret. */
  async mustRotate(conversationId: string): Promise<void> {
    const { room } = this.#entry(conversationId);
    room.mustRotate();
    this.forget(conversationId);
    await this.load(conversationId);
    // A wrap that was read meanwhile is of before.
    room.mustRotate();
  }

  /** Opens something that was found in a conversation. Throws `DecryptError`. */
  async open(conversationId: string, incoming: Incoming): Promise<Shown & { entry: Entry }> {
    const entry = await this.#found(conversationId);
    if (incoming.envelope) await this.#prepare(conversationId, entry, incoming);
    const shown = await entry.room.open(this.options.pins, incoming, Date.now());
    const { opened, pin, standing, notices } = shown;
    return { opened, pin, standing, notices, entry };
  }

  /** Something that names a conversation of others has no secret to open with. */
  async #found(conversationId: string): Promise<Entry> {
    try {
      return await this.load(conversationId);
    } catch (error) {
      const isForeign = error instanceof BlindpipeError && [403, 404].includes(error.status);
      throw isForeign ? new DecryptError("no_epoch_key") : error;
    }
  }

  /** From now on nothing goes in clear where this envelope came, whether it opens or not. */
  sawEnvelope({ conversation_id: id, payload }: Message): void {
    if (payload?.["type"] === "encrypted" && isId(id)) this.#entry(id).room.sawEnvelope();
  }

  /** As `isEncrypted`, for what was found there. Throws `DecryptError`. */
  async wasEncrypted(conversationId: string): Promise<boolean> {
    await this.#found(conversationId);
    return this.isEncrypted(conversationId);
  }

  /** Reads the secret and the key that an envelope names, where they are not in memory. */
  async #prepare(conversationId: string, entry: Entry, incoming: Incoming): Promise<void> {
    if (!this.hasKeys) return;
    const { epoch, sid, keyId } = readHeader(incoming.envelope!);
    if (!entry.room.secret(epoch, sid)) await this.readWraps(conversationId, entry, epoch);
    const isKnown = this.options.pins.find(incoming.sender, keyId) !== undefined;
    if (!isKnown) await this.directory.speaker(conversationId, incoming.sender);
  }

  /** `live`: from the inbox, not from the history. Throws `DecryptError`. */
  async openMessage(message: Message, isLive: boolean): Promise<OpenedMessage> {
    this.sawEnvelope(message);
    const sender: Principal = { type: message.sender.type, id: message.sender.id };
    const envelope = envelopeOf(message.payload);
    // A decision has no id of its own: it is named by the approval that it answers.
    const clientMessageId = message.client_message_id ?? message.in_reply_to;
    const named = [clientMessageId, message.conversation_id, sender.id];
    if (!clientMessageId || !named.every((id) => isId(id!))) throw new DecryptError("malformed");
    const place: Place = { kind: Kind.message, clientMessageId, inReplyTo: message.in_reply_to };
    const createdAt = Date.parse(message.created_at);
    const answered = this.#entry(message.conversation_id).envelopes.get(message.in_reply_to);
    const { maxAgeMs } = this.options;
    const incoming = { sender, place, envelope, createdAt, isLive, answered, maxAgeMs };
    const shown = await this.open(message.conversation_id, incoming);
    const { room } = shown.entry;
    const opened = shown.opened!;
    const re = await envelopeHash(envelope);
    this.#note(shown.entry, message.message_id, re);
    const { epoch } = opened.header;
    if (isLive) this.#count(shown.entry, epoch);
    const { content, source } = await resolvedContent(this.options.http, opened);
    const { authentic, pinned, verified } = proof(shown.pin!);
    // Field by field: a spread of several objects is a tenth of the time of an event.
    return {
      content,
      source,
      encrypted: true,
      sender: {
        type: sender.type,
        id: sender.id,
        deviceId: message.sender.device_id ?? null,
        authentic,
        pinned,
        verified,
        member: room.isMember(sender),
      },
      sentAt: new Date(opened.time),
      epoch,
      re,
      isReplay: isLive && room.isRemembered(sender, clientMessageId),
      notices: shown.notices,
    };
  }

  #note(entry: Entry, messageId: string, hash: string): void {
    // Only people are shown quotes.
    if (this.options.self.type === "user") entry.envelopes.note(messageId, hash);
  }

  /** A message of one's own is stored: replies to it are told by its envelope. */
  async sent({ conversation_id, message_id }: Sent, stored: JsonObject): Promise<void> {
    if (stored["type"] !== "encrypted") return;
    this.#note(this.#entry(conversation_id), message_id, await envelopeHash(envelopeOf(stored)));
  }

  /** A message that was handled is not handled again under another event; `sentAt` is signed. */
  remember(message: Message, sentAt: Date | null): void {
    const sender: Principal = { type: message.sender.type, id: message.sender.id };
    const { conversation_id: conversationId, client_message_id: clientMessageId } = message;
    if (!clientMessageId) return;
    const now = Date.now();
    const { room } = this.#entry(conversationId);
    // A time that no date holds is far in the future, so its date is none.
    const time = sentAt?.getTime() ?? now;
    const at = room.remember(sender, clientMessageId, isNaN(time) ? Infinity : time, now);
    if (at !== null) this.options.onHandled?.({ at, conversationId, sender, clientMessageId });
  }

  /** The messages that an earlier run has handled, oldest first. */
  resumeHandled(handled: Iterable<Handled>): void {
    // Most conversations have one: a list for each would be several times as large.
    const found = new Map<string, string | string[]>();
    for (const { at, conversationId, sender, clientMessageId } of handled) {
      const name = idName(conversationId);
      const before = found.get(name);
      const message = keptMessage(sender, clientMessageId, at);
      if (before === undefined) found.set(name, message);
      else if (typeof before === "string") found.set(name, [before, message]);
      else before.push(message);
    }
    for (const [name, all] of found)
      this.#handled.set(name, typeof all === "string" ? all : all.join(""));
  }

  /** Takes over what was learned before this session had keys. */
  takeFrom(before: Session): void {
    for (const [name, kept] of before.#handled) this.#handled.set(name, kept);
    for (const entry of before.#entries()) this.#handled.set(idName(entry.id), entry.room.remembered);
    this.notKept(before.takeChanged().names);
  }

  hasHandled({ conversation_id, client_message_id, sender }: Message): boolean {
    return this.isRemembered(conversation_id, sender, client_message_id ?? "");
  }

  /** Whether a sealed message with this id is known, such as that which ends a stream. */
  isRemembered(conversationId: string, sender: Principal, clientMessageId: string): boolean {
    const room = this.#known(conversationId)?.room;
    return isId(clientMessageId) && (room?.isRemembered(sender, clientMessageId) ?? false);
  }

  /** A message that came in clear: it is nobody's word but the server's. */
  clearMessage(message: Message): OpenedMessage {
    const sender: Principal = { type: message.sender.type, id: message.sender.id };
    const member = this.#entry(message.conversation_id).room.isMember(sender);
    const proof = { authentic: false, pinned: false, verified: false, member };
    return {
      content: message.payload ?? {},
      source: clearContent(message.payload ?? {}),
      encrypted: false,
      sender: { ...sender, deviceId: message.sender.device_id ?? null, ...proof },
      sentAt: null,
      epoch: 0,
      re: null,
      isReplay: false,
      notices: [{ kind: "not_encrypted", about: sender, keyId: null }],
    };
  }

  /** Whether a conversation has, or ever had, an epoch. */
  async isEncrypted(conversationId: string): Promise<boolean> {
    const { room } = await this.load(conversationId);
    return room.server.epoch > 0 || room.wasEncrypted;
  }

  /** Seals with the newest secret. Throws `KeyUnavailable`. */
  async seal(
    conversationId: string,
    place: Place,
    content: JsonObject | Bytes,
    options: { answering?: number | undefined; addressed?: readonly string[] | undefined } = {},
  ): Promise<Bytes> {
    const entry = await this.load(conversationId);
    if (entry.room.server.epoch > entry.room.marks.epoch) {
      await this.readWraps(conversationId, entry);
    }
    const secret = this.#sealable(conversationId, entry, options.answering ?? null);
    entry.room.sealed();
    if (place.kind === Kind.message) this.#count(entry, secret.epoch);
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

  #sealable(conversationId: string, { room }: Entry, answering: number | null): EpochKey {
    const now = Date.now();
    const sealing = room.sealing(this.options.self, answering, now);
    if ("with" in sealing) return sealing.with;
    const secret = room.sealable();
    // A person rotates before a send. Where the limit forbids that, an old secret goes on.
    const isInGrace = room.due(now) === "age" && this.grace.holds(conversationId, now);
    if (!secret || !isInGrace || (answering ?? 0) > secret.epoch) throw new KeyUnavailable();
    return secret;
  }

  /** The payload of a sealed thing. */
  async sealPayload(...parameters: Parameters<Session["seal"]>): Promise<JsonObject> {
    return payload(await this.seal(...parameters)) as unknown as JsonObject;
  }

  /** A delta's bare string. */
  async sealText(...parameters: Parameters<Session["seal"]>): Promise<string> {
    return base64(await this.seal(...parameters));
  }

  /** Opens a delta's bare string. */
  async openText(
    conversationId: string,
    text: string,
    place: Place,
    sender: Principal,
  ): Promise<Shown> {
    const envelope = fromBase64(text);
    const createdAt = Date.now();
    return this.open(conversationId, { sender, place, envelope, createdAt, isLive: true });
  }
}

/** Takes note of what an event says about keys and members. */
export async function observe(
  event: EventObject,
  session: Session,
  logger: Logger,
): Promise<void> {
  try {
    await session.observe(event);
  } catch (error) {
    warnOfUnread(error, logger);
  }
}

/** As `Session.keysRead`; it neither throws nor rejects. */
export function keysRead(
  event: EventObject,
  session: Session,
  logger: Logger,
): Promise<void> | null {
  const warn = (error: unknown): void => warnOfUnread(error, logger);
  try {
    return session.keysRead(event)?.catch(warn) ?? null;
  } catch (error) {
    // An event of another shape names nobody.
    warn(error);
    return null;
  }
}

/** A read that failed is repeated when something needs what it would have answered. */
function warnOfUnread(error: unknown, logger: Logger): void {
  logger.warn("an event could not be looked into", { name: (error as Error).name });
}

/** The principal whose list of keys an event says has changed. */
function ownerOfKeys({ event, data }: EventObject): Principal | null {
  switch (event) {
    case "key.device_added":
    case "key.device_removed":
      return { type: "user", id: String(data["user_id"]) };
    case "agent.key_registered":
      return { type: "agent", id: String(data["agent_id"]) };
    default:
      return null;
  }
}

function principalOf(member: Member): Principal {
  return { type: member.principal_type, id: member.principal_id };
}
