/** What one member holds of a conversation: secrets, the newest of them, and what it has seen. */
import { type Bytes, equal, hex, idBytes, isZero } from "./bytes.js";
import { type EpochSecret } from "./epoch.js";
import { DecryptError, KeyUnavailable } from "./errors.js";
import { type OpeningKeys, type Principal, principalName } from "./keys.js";
import { type Pins } from "./trust.js";
import { type OpenedWrap, isNotGiven, openWrap, wrapRecipient } from "./wrap.js";

const MAX_AHEAD_MS = 10 * 60_000;
const MAX_REMEMBERED_MESSAGES = 10_000;

/** The age after which a signed message is handled no more. */
export const DEFAULT_MAX_AGE_MS = 31 * 24 * 3_600_000;
/** Deltas and tool requests are of the moment. */
export const MOMENT_MS = 5 * 60_000;

/** The highest epoch and time of all newest wraps; people keep them for ever. */
export interface EpochMarks {
  readonly epoch: number;
  readonly time: number;
}

export type WrapNotice =
  | { readonly type: "not_given"; readonly epoch: number }
  /** The rotator names another secret before than the one held: somebody was given something else. */
  | { readonly type: "other_previous_secret"; readonly epoch: number; readonly rotator: Principal };

export interface WrapOutcome {
  /** Why the wrap does not even open, if it does not. */
  readonly refused: DecryptError | null;
  readonly isNewest: boolean;
  readonly maySeal: boolean;
  readonly notices: readonly WrapNotice[];
}

interface SeenWrap {
  readonly wrap: OpenedWrap;
  /** As the member was shown when the wrap was first seen. */
  readonly rotatorWasMember: boolean;
  /** The rotator's key was retired when the wrap was first seen. */
  readonly keyWasRetired: boolean;
}

export interface WrapSight {
  readonly isMember: (principal: Principal) => boolean;
  /** Unix milliseconds. */
  readonly now: number;
}

export class ConversationKeys {
  readonly #held = new Map<string, EpochSecret>();
  readonly #seen = new Map<string, SeenWrap>();
  readonly #replays = new Set<string>();
  #newest: SeenWrap | null = null;
  #marks: EpochMarks;

  constructor(
    readonly conversation: Bytes,
    readonly self: Principal,
    /** Newest first; earlier ones open earlier wraps. */
    public keys: readonly OpeningKeys[],
    readonly pins: Pins,
    marks: EpochMarks = { epoch: 0, time: 0 },
  ) {
    this.#marks = marks;
  }

  get marks(): EpochMarks {
    return this.#marks;
  }

  get newestEpoch(): number {
    return this.#newest?.wrap.epoch ?? 0;
  }

  /** The `sid` for the next rotation's field of the epoch before. */
  get newestSid(): Bytes | null {
    return this.#newest?.wrap.sid ?? null;
  }

  get newestMadeAt(): number {
    return this.#newest?.wrap.madeAt ?? 0;
  }

  get newestRotator(): Principal | null {
    return this.#newest?.wrap.rotator ?? null;
  }

  /** Whether the conversation was ever encrypted, as far as this member knows. */
  get wasEncrypted(): boolean {
    return this.#held.size > 0 || this.#marks.epoch > 0;
  }

  /** Takes a wrap from the server: for opening if it opens, for sealing if it is the newest. */
  async take(epoch: number, wrapped: string, sight: WrapSight): Promise<WrapOutcome> {
    if (isNotGiven(wrapped)) {
      return { refused: null, isNewest: false, maySeal: false, notices: [{ type: "not_given", epoch }] };
    }
    try {
      return await this.#takeOpened(await this.#open(epoch, wrapped), sight);
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      return { refused: error, isNewest: false, maySeal: false, notices: [] };
    }
  }

  async #open(epoch: number, wrapped: string): Promise<OpenedWrap> {
    const recipient = wrapRecipient(wrapped);
    const keys = this.keys.find((each) => equal(each.keyId, recipient));
    if (!keys) throw new DecryptError("wrong_key");
    return openWrap(wrapped, this.conversation, epoch, this.self, keys);
  }

  async #takeOpened(wrap: OpenedWrap, sight: WrapSight): Promise<WrapOutcome> {
    const pin = this.pins.find(wrap.rotator, wrap.rotatorKeyId);
    const holds = pin !== undefined && (await wrap.verify(pin));
    // The `sid` of a lane proves nothing, so its signature must.
    if (wrap.secret.kind === 2 && !holds) throw new DecryptError(pin ? "bad_signature" : "unknown_sender_key");
    const name = secretName(wrap.epoch, wrap.sid);
    if (!this.#held.has(name)) this.#held.set(name, wrap.secret);
    if (!holds) return { refused: null, isNewest: false, maySeal: false, notices: [] };
    const notices = this.#previousDiffers(wrap);
    const seen = this.#seen.get(name) ?? {
      wrap,
      rotatorWasMember: sight.isMember(wrap.rotator),
      keyWasRetired: pin.retired,
    };
    this.#seen.set(name, seen);
    if (pin.trust !== "waiting") this.#consider(seen, sight.now);
    return { refused: null, isNewest: this.#newest === seen, maySeal: maySeal(seen), notices };
  }

  #previousDiffers(wrap: OpenedWrap): WrapNotice[] {
    if (isZero(wrap.previousSid)) return [];
    const before = [...this.#held.values()].filter((each) => each.epoch === wrap.epoch - 1);
    const differs = before.length > 0 && !before.some((each) => equal(each.sid, wrap.previousSid));
    return differs
      ? [{ type: "other_previous_secret", epoch: wrap.epoch, rotator: wrap.rotator }]
      : [];
  }

  #consider(seen: SeenWrap, now: number): void {
    const { epoch, madeAt } = seen.wrap;
    if (madeAt > now + MAX_AHEAD_MS) return;
    // The marks outlive the process; the newest itself is read from the server again.
    const isMarked = epoch === this.#marks.epoch && madeAt === this.#marks.time;
    const rises = epoch > this.#marks.epoch || madeAt > this.#marks.time;
    if (!rises && !(isMarked && !this.#newest)) return;
    this.#newest = seen;
    this.#marks = {
      epoch: Math.max(epoch, this.#marks.epoch),
      time: Math.max(madeAt, this.#marks.time),
    };
  }

  /** After a tap: wraps of the key that waited count from now on. */
  reconsider(now: number): void {
    for (const seen of this.#seen.values()) {
      const pin = this.pins.find(seen.wrap.rotator, seen.wrap.rotatorKeyId);
      if (pin && pin.trust !== "waiting") this.#consider(seen, now);
    }
  }

  /** The secret of this epoch and `sid`, if it is held. */
  secret(epoch: number, sid: Uint8Array): EpochSecret | undefined {
    return this.#held.get(secretName(epoch, sid));
  }

  holdsEpoch(epoch: number): boolean {
    return [...this.#held.values()].some((secret) => secret.epoch === epoch);
  }

  /**
   * The newest secret, if it may seal. `serverEpoch` is what the server calls current: below the
   * newest it proves a step back. `answering` is the epoch of the message that is answered.
   */
  sealingSecret(serverEpoch: number | null, answering = 0): EpochSecret {
    const newest = this.#newest;
    if (!newest) throw new KeyUnavailable("no key of this conversation has come yet");
    const { wrap } = newest;
    if (!maySeal(newest)) throw new KeyUnavailable("the newest key may not seal");
    if (wrap.epoch < this.#marks.epoch && wrap.madeAt < this.#marks.time) {
      throw new KeyUnavailable("a newer key than this was seen");
    }
    if (serverEpoch !== null && serverEpoch < wrap.epoch) {
      throw new KeyUnavailable("the server's epoch is below the newest");
    }
    if (wrap.epoch < answering) throw new KeyUnavailable("the message answered is of a newer epoch");
    return wrap.secret;
  }

  /** Whether this message was opened before. Only what has opened is remembered. */
  isReplay(sender: Principal, clientMessageId: string): boolean {
    return this.#replays.has(messageName(sender, clientMessageId));
  }

  remember(sender: Principal, clientMessageId: string): void {
    this.#replays.add(messageName(sender, clientMessageId));
    if (this.#replays.size > MAX_REMEMBERED_MESSAGES) {
      this.#replays.delete(this.#replays.values().next().value!);
    }
  }
}

function maySeal(seen: SeenWrap): boolean {
  return seen.rotatorWasMember && !seen.keyWasRetired;
}

function secretName(epoch: number, sid: Uint8Array): string {
  return `${epoch}:${hex(sid)}`;
}

function messageName(sender: Principal, clientMessageId: string): string {
  return `${principalName(sender)}:${hex(idBytes(clientMessageId))}`;
}
