/** A conversation as this client may believe it: events go in, decisions come out. */
import { type Bytes, concat, equal, fromBase64, hex, idBytes, isId, isZero, latin1 } from "./bytes.js";
import { Kind, type Place } from "./context.js";
import { type Opened, open, readHeader } from "./envelope.js";
import type { EpochKey } from "./epoch.js";
import { DecryptError, type DecryptReason } from "./errors.js";
import {
  type OpeningKeys,
  type Principal,
  isUsable,
  keyId,
  namedPrincipal,
  principalBytes,
  principalName,
} from "./keys.js";
import {
  type DirectoryKey,
  type Notice,
  type NoticeKind,
  type Pin,
  type Trust,
  type Standing,
  isAccepted,
  isRetired,
  notice,
  sortNotices,
} from "./trust.js";
import { type OpenedWrap, openWrap, wrapRecipient } from "./wrap.js";

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;
/** How far ahead a rotator's clock may be. */
const MAX_WRAP_AHEAD_MS = 10 * MINUTE_MS;
/** How old a secret may become before people rotate. */
const MAX_EPOCH_AGE_MS = 7 * DAY_MS;
/** How many messages are sealed with a secret before people rotate. */
const MAX_EPOCH_MESSAGES = 10_000;
/** How far a signed time may be from the server's without being shown. */
const MAX_TIME_APART_MS = 5 * MINUTE_MS;
/** How old a delta or a tool request may be. */
const MAX_MOMENT_MS = 5 * MINUTE_MS;
/** How far before or after now a message may be signed that a handler is given. */
export const MAX_MESSAGE_AGE_MS = 31 * DAY_MS;
/** 17 characters of the sender and 16 of the message. */
const NAME_LENGTH = 33;
const TIME_LENGTH = 6;

/** The messages that a member may read. */
export type Visibility = "all" | "addressed";

/** What outlives the program of a conversation, as JSON; people keep it for ever. */
export interface EpochMarks {
  /** The highest epoch of all newest secrets. */
  readonly epoch: number;
  /** The highest time of all newest secrets. */
  readonly time: number;
  /**
   * The members that the last seal was for, by `principalName`. Whoever joined since is named at
   * the next start.
   */
  readonly members?: Readonly<Record<string, Visibility>>;
  /** An envelope was seen: nothing goes in clear. */
  readonly encrypted?: boolean;
  /** Members or keys have changed since the newest secret, so a fresh one is due. */
  readonly changed?: boolean;
}

/** The marks of a conversation of which nothing is known. */
export const NO_MARKS: EpochMarks = { epoch: 0, time: 0 };

/** Joins what two processes have learned of a conversation at once. */
export function mergedMarks(one: EpochMarks, other: EpochMarks): EpochMarks {
  const members = one.members ?? other.members;
  return {
    epoch: Math.max(one.epoch, other.epoch),
    time: Math.max(one.time, other.time),
    ...(members && { members }),
    ...((one.encrypted || other.encrypted) && { encrypted: true }),
    ...((one.changed || other.changed) && { changed: true }),
  };
}

/** The epoch as the server tells it. */
export interface ServerEpoch {
  readonly epoch: number;
  readonly rotationRequired: boolean;
  /** Messages that were sent in it. */
  readonly messages: number;
}

/** The secret to seal with, or the act before it. An agent cannot rotate: it waits. */
export type Sealing =
  { readonly with: EpochKey } | { readonly rotate: number } | { readonly wait: true };

/** `ask_person`: somebody here does not speak `bp1`, and nobody chose to write in clear. */
export type Writing = "encrypted" | "clear" | "ask_person";

export interface WrapTaken {
  readonly epoch: number;
  readonly sid: Bytes;
  readonly rotator: Principal;
  readonly isNewest: boolean;
  readonly notices: readonly Notice[];
}

/** Something that came, and what the server says of it. */
export interface Incoming {
  readonly sender: Principal;
  readonly place: Place;
  /** Null if it came in clear. */
  readonly envelope: Bytes | null;
  /** The server's time, Unix milliseconds. */
  readonly createdAt: number;
  /** From the inbox, not from the history. */
  readonly isLive: boolean;
  /** The hash of the envelope that `in_reply_to` names, in base64, if this client knows it. */
  readonly answered?: string | null | undefined;
  /** An agent's own bound for the age of messages. */
  readonly maxAgeMs?: number | undefined;
}

/** Something that may be shown, with its notices. */
export interface Shown {
  /** Null if it came in clear. */
  readonly opened: Opened | null;
  readonly pin: Pin | null;
  readonly standing: Standing | null;
  readonly notices: Notice[];
}

export type Given = "secret" | "lane" | { readonly because: NoticeKind };

/** A refusal under which the person is told something. */
export class Refusal extends DecryptError {
  constructor(
    reason: DecryptReason,
    readonly notices: readonly Notice[],
  ) {
    super(reason);
  }
}

interface Newest {
  readonly secret: EpochKey;
  readonly time: number;
  readonly rotator: Principal;
  readonly maySeal: boolean;
}

interface Member {
  readonly principal: Principal;
  readonly visibility: Visibility;
}

export class Room {
  #members: Map<string, Member> | null;
  /** The members that the last seal was for. */
  #sealedFor: Map<string, Member> | null;
  readonly #held = new Map<string, EpochKey>();
  #newest: Newest | null = null;
  #marks: EpochMarks;
  #server: ServerEpoch = { epoch: 0, rotationRequired: false, messages: 0 };
  /** The messages that were handled, oldest first, each with the time of `remember`. */
  readonly #remembered = new Map<string, number>();

  constructor(
    readonly conversation: Bytes,
    /** An agent's developer said that it takes clear text. */
    private readonly allowsClear = false,
    marks: EpochMarks = NO_MARKS,
    /** The marks are others than before. */
    private readonly onMarks: () => void = () => {},
  ) {
    this.#marks = marks;
    this.#sealedFor = this.#members = marks.members ? restoreMembers(marks.members) : null;
  }

  get marks(): EpochMarks {
    return this.#marks;
  }

  #mark(changes: Partial<EpochMarks>): void {
    this.#marks = { ...this.#marks, ...changes };
    this.onMarks();
  }

  /** Whether anything here was ever encrypted. Such a conversation never goes back. */
  get wasEncrypted(): boolean {
    return this.#marks.epoch > 0 || this.#marks.encrypted === true;
  }

  /** An envelope came, whether it opens or not. */
  sawEnvelope(): void {
    if (!this.#marks.encrypted) this.#mark({ encrypted: true });
  }

  /** Keys or visibilities have changed since the newest secret. */
  get #hasChanged(): boolean {
    return this.#marks.changed === true;
  }

  set #hasChanged(changed: boolean) {
    if (changed !== this.#hasChanged) this.#mark({ changed });
  }

  /** Something is sealed for the members of now. */
  sealed(): void {
    const before = this.#sealedFor;
    const members = this.#members;
    if (before === members) return;
    this.#sealedFor = members;
    if (members && !isSameMembers(before, members)) this.#mark({ members: storeMembers(members) });
  }

  get server(): ServerEpoch {
    return this.#server;
  }

  get newest(): EpochKey | null {
    return this.#newest?.secret ?? null;
  }

  /** All secrets that are held for an epoch. */
  secrets(epoch: number): EpochKey[] {
    return [...this.#held.values()].filter((each) => each.epoch === epoch);
  }

  secret(epoch: number, sid: Uint8Array): EpochKey | undefined {
    return this.#held.get(secretName(epoch, sid));
  }

  /** The members as the person is shown them from now on. */
  members(list: readonly Member[]): Notice[] {
    const before = this.#members;
    this.#members = new Map(list.map((member) => [principalName(member.principal), member]));
    if (!before) return [];
    const notices: Notice[] = [];
    for (const { principal, visibility } of list) {
      const old = before.get(principalName(principal));
      if (!old) notices.push(notice("member_added", principal));
      else if (old.visibility === "addressed" && visibility === "all") {
        notices.push(notice("agent_sees_all", principal));
      } else if (old.visibility !== visibility) this.#hasChanged = true;
    }
    for (const { principal } of before.values()) {
      if (!this.isMember(principal)) notices.push(notice("member_removed", principal));
    }
    this.#hasChanged ||= notices.length > 0;
    return sortNotices(notices);
  }

  isMember(who: Principal): boolean {
    return this.#members?.has(principalName(who)) ?? false;
  }

  /** The keys of somebody changed, in the directory or by a tap. */
  keysChanged(of: Principal): void {
    this.#hasChanged ||= this.isMember(of);
  }

  serverEpoch(server: ServerEpoch): void {
    this.#server = server;
  }

  /** Takes a wrap. It replaces no secret that is held. Throws `DecryptError`. */
  async wrap(
    pins: Trust,
    keys: readonly OpeningKeys[],
    epoch: number,
    wrapped: string,
    now: number,
  ): Promise<WrapTaken> {
    const recipient = wrapRecipient(wrapped);
    const key = keys.find((each) => equal(each.keyId, recipient));
    if (!key) throw new DecryptError("no_epoch_key");
    const opened = await openWrap(wrapped, this.conversation, epoch, pins.me, key);
    const found = pins.find(opened.rotator, opened.rotatorKeyId);
    const pin = found?.standing === "waiting" ? undefined : found;
    const isSigned = pin !== undefined && (await opened.verify(pin));
    // The `sid` of a lane proves nothing, so its signature must.
    if (opened.secret.kind === 2 && !isSigned) {
      throw new DecryptError(pin ? "bad_signature" : "unknown_sender_key");
    }
    this.sawEnvelope();
    const isAbove = opened.epoch > this.#marks.epoch || opened.madeAt > this.#marks.time;
    const isNewest = isSigned && this.#becomesNewest(opened, now);
    // A later change is not mended by the secret of before, which a new start reads again.
    if (isNewest && isAbove) this.#hasChanged = false;
    if (isNewest) this.#setNewest(opened, isAccepted(pin, now) && this.isMember(opened.rotator));
    pins.heard(opened.rotator);
    return this.#hold(opened, isNewest);
  }

  #becomesNewest({ epoch, madeAt }: OpenedWrap, now: number): boolean {
    const isAbove = epoch > this.#marks.epoch || madeAt > this.#marks.time;
    // Marks outlive the program; the secret itself is read from the server again.
    const isMarked = !this.#newest && epoch === this.#marks.epoch && madeAt === this.#marks.time;
    return (isAbove || isMarked) && madeAt <= now + MAX_WRAP_AHEAD_MS;
  }

  #setNewest({ secret, epoch, madeAt, rotator }: OpenedWrap, maySeal: boolean): void {
    const { marks } = this;
    if (epoch > marks.epoch || madeAt > marks.time) {
      this.#mark({ epoch: Math.max(marks.epoch, epoch), time: Math.max(marks.time, madeAt) });
    }
    this.#newest = { secret, time: madeAt, rotator, maySeal };
  }

  #hold(wrap: OpenedWrap, isNewest: boolean): WrapTaken {
    const { epoch, sid, rotator, previousSid, rotatorKeyId } = wrap;
    const before = [...this.#held.values()].filter((held) => held.epoch + 1 === epoch);
    const isOther =
      !isZero(previousSid) &&
      before.length > 0 &&
      before.every((held) => !equal(held.sid, previousSid));
    const notices = isOther ? [notice("other_secret_before", rotator, hex(rotatorKeyId))] : [];
    const name = secretName(epoch, sid);
    if (!this.#held.has(name)) this.#held.set(name, wrap.secret);
    return { epoch, sid, rotator, isNewest, notices };
  }

  /** Members or keys were changed by one's own act, which the server may not show yet. */
  mustRotate(): void {
    this.#hasChanged = true;
  }

  /**
   * Why the newest secret is due for replacement: `change` is of members or keys, and is never
   * skipped; null if it is good, or if there is none that may seal.
   */
  due(now: number): "change" | "age" | null {
    const newest = this.#newest;
    if (!this.sealable() || !newest) return null;
    if (this.#hasChanged || this.#server.rotationRequired) return "change";
    const isOld =
      this.#server.messages >= MAX_EPOCH_MESSAGES || now - newest.time > MAX_EPOCH_AGE_MS;
    return isOld ? "age" : null;
  }

  /** Decides how `me` seals now. `answered` is the epoch of the message that is answered. */
  sealing(me: Principal, answered: number | null, now: number): Sealing {
    const rotate = { rotate: this.#server.epoch };
    const otherwise: Sealing = me.type === "user" ? rotate : { wait: true };
    const newest = this.#newest;
    if (!newest) return otherwise;
    const { epoch } = newest.secret;
    const isBelow = this.#server.epoch < epoch || (answered ?? 0) > epoch;
    if (!newest.maySeal || isBelow) return otherwise;
    return me.type === "user" && this.due(now) ? rotate : { with: newest.secret };
  }

  /** The newest secret if it may seal, also where a rotation is due for its age alone. */
  sealable(): EpochKey | null {
    const newest = this.#newest;
    return newest?.maySeal && this.#server.epoch >= newest.secret.epoch ? newest.secret : null;
  }

  /**
   * How to write here. `clearChosen`: the person chose to write in clear here; for an agent, it
   * answers what came in clear. A conversation that was encrypted never goes back.
   */
  writing(pins: Trust, clearChosen: boolean): Writing {
    const self = principalName(pins.me);
    const others = [...(this.#members ?? [])].filter(([name]) => name !== self);
    const doAllSpeak =
      this.#members !== null && others.every(([, { principal }]) => pins.speaks(principal));
    if (this.wasEncrypted || this.#server.epoch > 0 || doAllSpeak) return "encrypted";
    const mayBeClear = pins.me.type === "user" || this.allowsClear;
    return clearChosen && mayBeClear ? "clear" : "ask_person";
  }

  /** Decides what a key that the server lists is given at a rotation. */
  async give(
    pins: Trust,
    to: Principal,
    key: DirectoryKey,
    now: number = Date.now(),
  ): Promise<Given> {
    const member = this.#members?.get(principalName(to));
    if (!member) return { because: "not_member" };
    if (!(await isUsable(key))) return { because: "unusable_key" };
    const pin = pins.find(to, await keyId(key));
    if (pin && isRetired(pin, now)) return { because: "retired_key" };
    if (!pin || !isAccepted(pin, now)) return { because: "waiting_key" };
    return member.visibility === "all" ? "secret" : "lane";
  }

  /** Decides about a message or a delta; null if it was here before. Throws `DecryptError`. */
  async message(pins: Trust, incoming: Incoming, now: number): Promise<Shown | null> {
    if (!incoming.envelope) return this.clear(pins.me, incoming);
    const shown = await this.open(pins, incoming, now);
    const { place, sender } = incoming;
    if (place.kind === Kind.message) {
      const time = shown.opened?.time ?? now;
      if (this.remember(sender, place.clientMessageId, time, now) === null) return null;
    } else if (place.kind === Kind.delta && isId(place.streamId)) {
      if (this.isRemembered(sender, place.streamId)) return null;
    }
    return shown;
  }

  /** Opens what came, and says what is to be said of it; nothing is remembered. */
  async open(pins: Trust, incoming: Incoming, now: number): Promise<Shown> {
    const { sender, place, envelope } = incoming;
    if (!envelope) throw new DecryptError("clear");
    let opened: Opened;
    try {
      opened = await open({
        envelope,
        place,
        conversation: this.conversation,
        sender,
        secret: (epoch, sid) => this.secret(epoch, sid),
        senderKeys: (id) => pins.find(sender, id),
      });
    } catch (error) {
      throw error instanceof DecryptError ? this.#refusal(error, envelope) : error;
    }
    this.sawEnvelope();
    pins.heard(sender);
    const pin = pins.find(sender, opened.header.keyId)!;
    const notices = this.#judge(pins.me, pin, incoming, now);
    if (isStale(pins.me, incoming, opened.time, now)) throw new Refusal("stale", []);
    if (Math.abs(opened.time - incoming.createdAt) > MAX_TIME_APART_MS) {
      notices.push(notice("other_time", sender));
    }
    const isReply = place.kind === Kind.message && place.inReplyTo;
    if (isReply && !answers(opened, incoming)) notices.push(notice("no_quote", sender));
    return { opened, pin, standing: pin.standing, notices };
  }

  /** The notices about a sender's key; throws where nothing by it counts. */
  #judge(me: Principal, pin: Pin, incoming: Incoming, now: number): Notice[] {
    const { sender, place, isLive, createdAt } = incoming;
    const hasLeft = isRetired(pin, now);
    const notices: Notice[] = [];
    if (pin.standing === "waiting") notices.push(notice("waiting_key", sender, pin.keyId));
    if (hasLeft) notices.push(notice("retired_key", sender, pin.keyId));
    if (!this.isMember(sender)) notices.push(notice("not_member", sender));
    // A message that the server stored before the key left came in time.
    const wasInTime = pin.retiredAt !== null && createdAt <= pin.retiredAt;
    if (hasLeft && isLive && !wasInTime) throw new Refusal("retired_key", notices);
    const mayBeShown = place.kind === Kind.message && me.type === "user";
    if (pin.standing === "waiting" && !mayBeShown) throw new Refusal("unknown_sender_key", notices);
    return notices;
  }

  /** A message of the current epoch under an unknown secret: somebody was given something else. */
  #refusal(error: DecryptError, envelope: Bytes): Refusal {
    if (error.reason !== "no_epoch_key" || !this.#newest) return new Refusal(error.reason, []);
    const header = readHeader(envelope);
    const isOther =
      header.epoch === this.#newest.secret.epoch && !this.secret(header.epoch, header.sid);
    return new Refusal(error.reason, isOther ? [notice("other_secret", this.#newest.rotator)] : []);
  }

  /** Nothing in clear is taken for said where encryption is possible. */
  clear(me: Principal, { sender, place }: Incoming): Shown {
    const isAllowed = me.type === "user" || (this.allowsClear && this.#server.epoch === 0);
    if (this.wasEncrypted || place.kind !== Kind.message || !isAllowed) {
      throw new Refusal("clear", []);
    }
    return { opened: null, pin: null, standing: null, notices: [notice("not_encrypted", sender)] };
  }

  isRemembered(sender: Principal, clientMessageId: string): boolean {
    return this.#remembered.has(messageName(sender, clientMessageId));
  }

  /**
   * A message that was signed at `time`, and handled, is not handled again. Forgets those whose time
   * is more than 31 days before `now`: no handler is given these. Answers the time that a store is to
   * keep, in Unix milliseconds: `now`, or the signed one if that is later. Null if the message was
   * here before.
   */
  remember(sender: Principal, clientMessageId: string, time: number, now: number): number | null {
    const name = messageName(sender, clientMessageId);
    if (this.#remembered.has(name)) return null;
    const at = Math.min(Math.max(time, now), now + MAX_MESSAGE_AGE_MS);
    this.#remembered.set(name, at);
    for (const [oldest, its] of this.#remembered) {
      if (its >= now - MAX_MESSAGE_AGE_MS) break;
      this.#remembered.delete(oldest);
    }
    return at;
  }

  /** The messages that were handled, oldest first, for `rememberAll`. */
  get remembered(): string {
    return Array.from(this.#remembered, ([name, at]) => name + timeName(at)).join("");
  }

  /** The messages of `remembered`: a `keptMessage` each. */
  rememberAll(kept: string): void {
    for (let start = 0; start < kept.length; start += NAME_LENGTH + TIME_LENGTH) {
      const end = start + NAME_LENGTH;
      const name = kept.slice(start, end);
      const at = namedTime(kept.slice(end, end + TIME_LENGTH));
      if (!this.#remembered.has(name)) this.#remembered.set(name, at);
    }
  }
}

function storeMembers(members: ReadonlyMap<string, Member>): Record<string, Visibility> {
  return Object.fromEntries([...members].map(([name, { visibility }]) => [name, visibility]));
}

function restoreMembers(stored: Readonly<Record<string, Visibility>>): Map<string, Member> {
  return new Map(
    Object.entries(stored).map(([name, visibility]) => [
      name,
      { principal: namedPrincipal(name), visibility },
    ]),
  );
}

function isSameMembers(
  before: ReadonlyMap<string, Member> | null,
  now: ReadonlyMap<string, Member>,
): boolean {
  if (before?.size !== now.size) return false;
  return [...now].every(([name, { visibility }]) => before.get(name)?.visibility === visibility);
}

/** Handlers get no message of another time; nobody gets an old delta or tool request. */
function isStale(me: Principal, incoming: Incoming, time: number, now: number): boolean {
  switch (incoming.place.kind) {
    case Kind.delta:
    case Kind.request:
      return Math.abs(now - time) > MAX_MOMENT_MS;
    case Kind.message: {
      const maxAge = Math.min(incoming.maxAgeMs ?? MAX_MESSAGE_AGE_MS, MAX_MESSAGE_AGE_MS);
      // An id is forgotten in the end, so its time must have an end as well.
      const isFarOff = now - time > maxAge || time - now > MAX_MESSAGE_AGE_MS;
      return me.type === "agent" && incoming.isLive && isFarOff;
    }
    case Kind.response:
      return false;
  }
}

/** Whether `re` names the envelope that `inReplyTo` does. */
function answers({ content }: Opened, { answered }: Incoming): boolean {
  const re = content["re"];
  return typeof re === "string" && !!answered && sameBytes(re, answered);
}

function sameBytes(one: string, other: string): boolean {
  try {
    return equal(fromBase64(one), fromBase64(other));
  } catch {
    return false;
  }
}

function secretName(epoch: number, sid: Uint8Array): string {
  return `${epoch}:${hex(sid)}`;
}

/** A message of `Room.remembered`; `at` is the time of `Room.remember`. */
export function keptMessage(sender: Principal, clientMessageId: string, at: number): string {
  return messageName(sender, clientMessageId) + timeName(at);
}

/** A character per byte, the highest first. */
function timeName(at: number): string {
  const bytes = Array.from({ length: TIME_LENGTH }, (_, n) => Math.floor(at / 256 ** n) % 256);
  return String.fromCharCode(...bytes.reverse());
}

function namedTime(name: string): number {
  return [...name].reduce((time, byte) => time * 256 + byte.charCodeAt(0), 0);
}

/** A character per byte: thousands of these are remembered. */
function messageName(sender: Principal, clientMessageId: string): string {
  return latin1(concat(principalBytes(sender), idBytes(clientMessageId)));
}
