/** A message that is shown while it is written. */
import { Kind } from "../e2ee/context.js";
import type { JsonObject } from "../e2ee/content.js";
import type { Session } from "../core/session.js";
import type { Sent } from "../core/types.js";
import { BlindpipeError } from "../errors.js";
import type { Socket } from "../transport/socket.js";
import { sleep } from "../transport/wait.js";
import type { Draft, Outbox } from "./outbox.js";

/** Fewer than the server's 20 a second, so that a burst is never refused. */
const MAX_DELTAS_PER_SECOND = 15;
const DELTA_INTERVAL_MS = 1000 / MAX_DELTAS_PER_SECOND;
/** Characters of a delta: sealed and in base64 it stays below 16 KB. */
const MAX_DELTA_CHARACTERS = 2_500;
const END_TIMEOUT_MS = 10_000;

export interface StreamParts {
  readonly draft: (content: JsonObject) => Draft;
  readonly outbox: Outbox;
  readonly session: Session;
  /** Null without a socket: then only the end is sent. */
  readonly socket: Socket | null;
}

/** Writes are joined; the message at the end replaces everything that was shown. */
export class MessageStream {
  #text = "";
  #pending = "";
  #n = 0;
  #isOpen = false;
  #isEnded = false;
  #flushing: Promise<void> | null = null;

  /** The ULID of the message that ends this stream. */
  readonly id: string;

  constructor(private readonly parts: StreamParts) {
    this.id = parts.draft({}).clientMessageId;
  }

  get text(): string {
    return this.#text;
  }

  /** Adds text. Never waits and never fails: what is shown meanwhile may be lost. */
  write(part: string): void {
    if (this.#isEnded) return;
    this.#text += part;
    this.#pending += part;
    this.#flushing ??= this.#flush().finally(() => (this.#flushing = null));
  }

  async #flush(): Promise<void> {
    while (this.#pending && !this.#isEnded) {
      const piece = this.#take();
      try {
        await this.#show(piece);
      } catch {
        // The end carries everything, so a lost delta costs nothing but the show.
        return;
      }
      await sleep(DELTA_INTERVAL_MS);
    }
  }

  #take(): string {
    let end = Math.min(this.#pending.length, MAX_DELTA_CHARACTERS);
    // Half a character is no text.
    if (end < this.#pending.length && /[\uD800-\uDBFF]/.test(this.#pending[end - 1]!)) end -= 1;
    const piece = this.#pending.slice(0, end);
    this.#pending = this.#pending.slice(end);
    return piece;
  }

  async #show(piece: string): Promise<void> {
    const { socket, session } = this.parts;
    if (!socket?.isReady) return;
    const draft = this.parts.draft({});
    const { conversationId, answered } = draft;
    const n = this.#n++;
    const isSealed = await this.parts.outbox.isSealed(draft);
    const place = { kind: Kind.delta, streamId: this.id, n } as const;
    const data = isSealed
      ? await session.sealText(
          conversationId,
          place,
          { append: piece },
          {
            answering: answered?.opened.epoch,
          },
        )
      : { append: piece };
    if (this.#isEnded) return;
    if (!this.#isOpen) this.#begin(draft, socket);
    socket.send({ type: "stream.delta", stream_id: this.id, n, data });
  }

  #begin(draft: Draft, socket: Socket): void {
    this.#isOpen = true;
    const answered = draft.answered?.message.message_id;
    socket.send({
      type: "stream.begin",
      stream_id: this.id,
      conversation_id: draft.conversationId,
      ...(answered ? { in_reply_to: answered } : {}),
    });
  }

  /** Sends the durable, signed message. */
  async end(content: JsonObject = { type: "text", text: this.#text }): Promise<Sent> {
    this.#isEnded = true;
    const { outbox, socket } = this.parts;
    const draft = this.parts.draft(content);
    if (!this.#isOpen || !socket?.isReady || outbox.isOld(draft)) return outbox.send(draft);
    const payload = await outbox.payload(draft);
    try {
      const answer = await socket.request(
        {
          type: "stream.end",
          stream_id: this.id,
          conversation_id: draft.conversationId,
          payload,
          client_message_id: draft.clientMessageId,
          ...(draft.answered ? { in_reply_to: draft.answered.message.message_id } : {}),
          ...(draft.to?.length ? { recipients: draft.to } : {}),
        },
        END_TIMEOUT_MS,
      );
      return answer["data"] as Sent;
    } catch (error) {
      if (!(error instanceof BlindpipeError)) throw error;
      // Unknown, refused or lost: the same bytes go by REST, where one id is one message.
      return outbox.sendPayload(draft, payload);
    }
  }

  /** Ends without a message. */
  cancel(reason?: string): void {
    this.#isEnded = true;
    const why = reason ? { reason } : {};
    if (this.#isOpen)
      this.parts.socket?.send({ type: "stream.cancel", stream_id: this.id, ...why });
  }
}
