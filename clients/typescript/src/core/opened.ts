/** Messages that opened: their senders, and the envelopes that replies name. */
import { equal, hex, idBytes, isId } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import type { Principal } from "../e2ee/keys.js";
import type { Notice, Pin } from "../e2ee/trust.js";
import type { EventObject, Message } from "./types.js";

/** The sender of something, as far as it is proven. */
export interface OpenedSender extends Principal {
  /** By the server's word: a signature names a key, and no device. */
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

/** Events of a conversation are handled one after the other, so a message must be of the same. */
export function isOfItsConversation({ conversation_id, data }: EventObject): boolean {
  return isSameId(conversation_id, data["conversation_id"]);
}

/** Ids have several spellings, so their bytes are compared. */
export function isSameId(one: unknown, other: unknown): boolean {
  if (typeof one !== "string" || typeof other !== "string") return false;
  if (one === other) return isId(one);
  return isId(one) && isId(other) && equal(idBytes(one), idBytes(other));
}

/** Whether the service says that it has deleted or purged the payload. */
export function isGone({ payload, deleted_at, purged }: Message): boolean {
  return payload === null && (Boolean(deleted_at) || purged === true);
}

export interface OpenedMessage {
  readonly content: JsonObject;
  /** Its exact text, as it was sealed. In clear, names are sorted and there are no spaces. */
  readonly source: string;
  readonly encrypted: boolean;
  readonly sender: OpenedSender;
  /** Signed; null in clear. */
  readonly sentAt: Date | null;
  readonly epoch: number;
  /** The hash by which an answer names this envelope; null in clear. */
  readonly re: string | null;
  readonly isReplay: boolean;
  /** Notices that stand beside it when it is shown. */
  readonly notices: readonly Notice[];
}

export function proof(pin: Pin): { authentic: boolean; pinned: boolean; verified: boolean } {
  return {
    authentic: pin.standing !== "waiting",
    pinned: pin.fromStore,
    verified: pin.standing === "verified",
  };
}

/** The messages of a conversation whose envelopes are remembered. */
const MAX_ENVELOPES = 10_000;

/** The hash of each message's envelope. The first one counts: a person was shown that one. */
export class Envelopes {
  readonly #byId = new Map<string, string>();

  /** Notes the envelope of a message; the oldest one is forgotten. */
  note(messageId: string, hash: string): void {
    if (!isId(messageId)) return;
    const id = hex(idBytes(messageId));
    if (this.#byId.has(id)) return;
    this.#byId.set(id, hash);
    if (this.#byId.size > MAX_ENVELOPES) this.#byId.delete(this.#byId.keys().next().value!);
  }

  get(messageId: string | null | undefined): string | null {
    if (!messageId || !isId(messageId)) return null;
    return this.#byId.get(hex(idBytes(messageId))) ?? null;
  }
}
