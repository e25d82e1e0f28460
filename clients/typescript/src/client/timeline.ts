/** From messages to what is shown: edits, reactions, and what was taken back. */
import { hex, idBytes } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import type { Principal } from "../e2ee/keys.js";
import { type Change, changeOf, contentView } from "../core/content.js";
import { isSameId } from "../core/opened.js";
import type { ReceivedMessage } from "./conversation.js";

/** The people and agents with one emoji, the earliest first. */
export interface Reactions {
  readonly emoji: string;
  readonly senders: readonly Principal[];
}

/** A message as it is shown. */
export interface TimelineItem {
  /** The message, as it was sent. */
  readonly received: ReceivedMessage;
  /** `deleted`: it was taken back, or its payload is gone. */
  readonly state: "shown" | "deleted" | "undecryptable";
  /** The content of its last edit; its own without any. Null unless it is shown. */
  readonly content: JsonObject | null;
  /** The number of its edits. */
  readonly edits: number;
  /** The earliest emoji first. */
  readonly reactions: readonly Reactions[];
}

/**
 * The view of messages and of those that refer to them, by rising `seq`. Their order plays no
 * part. A change of a message that is not there shows nothing.
 */
export function timeline(
  messages: Iterable<ReceivedMessage>,
  refs: Iterable<ReceivedMessage> = [],
): TimelineItem[] {
  const page = bySeq(messages);
  const known = new Map([...bySeq(refs), ...page]);
  const folds = new Map<string, Fold>();
  for (const received of sorted(page)) {
    if (!change(received)) folds.set(hex(idBytes(received.message.message_id)), new Fold(received));
  }
  for (const received of sorted(known)) {
    const found = change(received);
    if (found) folds.get(found.target.messageId)?.apply(found, senderOf(received));
  }
  return [...folds.values()].map((fold) => fold.item());
}

function bySeq(messages: Iterable<ReceivedMessage>): Map<number, ReceivedMessage> {
  return new Map([...messages].map((received) => [received.message.seq, received]));
}

function sorted(messages: Map<number, ReceivedMessage>): ReceivedMessage[] {
  return [...messages.values()].sort((one, other) => one.message.seq - other.message.seq);
}

function change({ opened }: ReceivedMessage): Change | null {
  return opened && changeOf(opened.content);
}

function senderOf({ message }: ReceivedMessage): Principal {
  return { type: message.sender.type, id: message.sender.id };
}

function isSame(one: Principal, other: Principal): boolean {
  return one.type === other.type && isSameId(one.id, other.id);
}

/** A message, and the changes that count up to now. */
class Fold {
  #state: TimelineItem["state"];
  #content: JsonObject | null;
  #edits = 0;
  /** Those that stand, the earliest first. */
  #standing: { emoji: string; sender: Principal }[] = [];

  constructor(private readonly received: ReceivedMessage) {
    const { message, opened } = received;
    this.#state = message.payload === null ? "deleted" : opened ? "shown" : "undecryptable";
    this.#content = this.#state === "shown" ? opened!.content : null;
  }

  apply(change: Change, sender: Principal): void {
    const { opened } = this.received;
    if (!this.#content || !opened || change.target.re !== opened.re) return;
    if (change.kind === "reaction") return this.#react(change, sender);
    if (!isSame(sender, senderOf(this.received))) return;
    if (change.kind === "delete") {
      this.#state = "deleted";
      this.#content = null;
      this.#edits = 0;
      this.#standing = [];
    } else if (contentView(change.content).kind === contentView(this.#content).kind) {
      this.#content = change.content;
      this.#edits++;
    }
  }

  #react({ emoji, isRemoved }: Change & { kind: "reaction" }, sender: Principal): void {
    const isOther = (each: { emoji: string; sender: Principal }): boolean =>
      each.emoji !== emoji || !isSame(each.sender, sender);
    this.#standing = this.#standing.filter(isOther);
    if (!isRemoved) this.#standing.push({ emoji, sender });
  }

  item(): TimelineItem {
    const byEmoji = new Map<string, Principal[]>();
    for (const { emoji, sender } of this.#standing) {
      byEmoji.set(emoji, [...(byEmoji.get(emoji) ?? []), sender]);
    }
    const reactions = [...byEmoji].map(([emoji, senders]) => ({ emoji, senders }));
    return {
      received: this.received,
      state: this.#state,
      content: this.#content,
      edits: this.#edits,
      reactions,
    };
  }
}
