/** A message that is shown while it is written. */
import { Kind, STATUS_NUMBER } from "../e2ee/context.js";
import type { JsonObject } from "../e2ee/content.js";
import type { Session } from "../core/session.js";
import type { Sent } from "../core/types.js";
import { BlindpipeError } from "../errors.js";
import type { Frame, Socket } from "../transport/socket.js";
import { sleep } from "../transport/wait.js";
import type { Draft, Outbox } from "./outbox.js";

/** Fewer than the server's 20 a second, so that a burst is never refused. */
const MAX_DELTAS_PER_SECOND = 15;
const DELTA_INTERVAL_MS = 1000 / MAX_DELTAS_PER_SECOND;
/** Characters of a delta: sealed and in base64 it stays below 16 KB. */
const MAX_DELTA_CHARACTERS = 2_500;
/** A checkpoint stays below 256 KB. Of a longer text, the end is shown. */
const MAX_CHECKPOINT_CHARACTERS = 40_000;
/** A status stays below 2 KB. */
const MAX_STATUS_CHARACTERS = 250;
/** The server keeps 256. */
const DELTAS_BETWEEN_CHECKPOINTS = 100;
/** The server ends a stream after 60 seconds without a sign. */
const SIGN_INTERVAL_MS = 20_000;
/** Readers take nothing of a stream that is older than five minutes. */
const CHECKPOINT_INTERVAL_MS = 120_000;
/** The wait before a stream begins again, and as much longer each time. */
const BEGIN_WAIT_MS = 2_000;
/** Between two looks whether the connection is another one. */
const NEWS_INTERVAL_MS = 1_000;
const END_TIMEOUT_MS = 10_000;
/** The refusals after which a stream begins again. After any other, only its end is sent. */
const LOST_CODES = ["NOT_FOUND", "VALIDATION_ERROR", "RATE_LIMITED", "SERVICE_UNAVAILABLE"];

export interface StreamParts {
  readonly draft: (content: JsonObject) => Draft;
  readonly outbox: Outbox;
  readonly session: Session;
  /** Null without a socket: then only the end is sent. */
  readonly socket: Socket | null;
}

/**
 * Writes are joined; the message at the end replaces everything that was shown. It goes on over
 * other connections and nodes.
 */
export class MessageStream {
  #text = "";
  /** The length of the text that was shown. */
  #shown = 0;
  #status: string | null = null;
  #hasNewStatus = false;
  #n = 0;
  #generation = -1;
  #connection = 0;
  /** The server has refused a frame. */
  #isLost = false;
  #isMute = false;
  #isEnded = false;
  #begunAt = 0;
  #signAt = 0;
  /** The number of deltas at the last checkpoint. */
  #checkpointN = 0;
  #checkpointAt = 0;
  #showing: Promise<void> | null = null;
  #wake: () => void = () => {};

  /** The ULID of the message that ends this stream. */
  readonly id: string;

  constructor(private readonly parts: StreamParts) {
    this.id = parts.draft({}).clientMessageId;
  }

  get text(): string {
    return this.#text;
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }

  get #isOpen(): boolean {
    return this.#generation >= 0;
  }

  /** Tells refusals of this generation from those of an earlier one. */
  get #reference(): string {
    return `${this.id}:${this.#generation}`;
  }

  /** Adds text. Never waits and never fails: what is shown meanwhile may be lost. */
  write(part: string): void {
    if (this.#isEnded) return;
    this.#text += part;
    this.#show();
  }

  /** Says what the agent does meanwhile, such as a search. The next text ends it. */
  status(text: string): void {
    if (this.#isEnded) return;
    this.#status = text.slice(0, MAX_STATUS_CHARACTERS);
    this.#hasNewStatus = true;
    this.#show();
  }

  #show(): void {
    this.#wake();
    const { socket } = this.parts;
    if (!socket || this.#showing) return;
    socket.watch(this.id, (frame) => this.#hear(frame));
    this.#showing = this.#showAll(socket);
  }

  /** A refusal, or an end that this stream has not said. */
  #hear(frame: Frame): void {
    const isCancel = frame.type === "stream.cancel";
    if (!isCancel && frame["ref"] !== this.#reference) return;
    this.#isLost = true;
    const { code } = (frame["error"] ?? {}) as { code?: string };
    const goesOn = isCancel ? frame["reason"] === "idle" : LOST_CODES.includes(code ?? "");
    if (!goesOn) this.#isMute = true;
  }

  async #showAll(socket: Socket): Promise<void> {
    while (!this.#isEnded && !this.#isMute) {
      let hasSaid = false;
      const woken = new Promise<void>((resolve) => (this.#wake = resolve));
      try {
        hasSaid = socket.isReady && (await this.#sayNext(socket));
      } catch {
        // The end carries everything, so a lost delta costs nothing but the show.
      }
      if (hasSaid) await sleep(DELTA_INTERVAL_MS);
      else {
        const stop = new AbortController();
        await Promise.race([woken, sleep(NEWS_INTERVAL_MS, stop.signal).catch(() => {})]);
        stop.abort();
      }
    }
  }

  /** Says what is due. False if nothing is. */
  async #sayNext(socket: Socket): Promise<boolean> {
    const now = Date.now();
    if (this.#isLost || !this.#isOpen) {
      if (now < this.#begunAt + BEGIN_WAIT_MS * (this.#generation + 1)) return false;
      this.#begunAt = now;
      await this.#begin(socket);
      // A begin is no delta, so the first one follows at once.
      if (this.#n > 0) return true;
    }
    if (socket.connection !== this.#connection) {
      // The last frames may be lost with the other connection.
      this.#connection = socket.connection;
      return this.#sign(socket, this.#n > 0);
    }
    if (this.#shown < this.#text.length) {
      if (this.#n - this.#checkpointN >= DELTAS_BETWEEN_CHECKPOINTS) return this.#sign(socket, true);
      const piece = this.#take();
      this.#status = null;
      await this.#say(socket, "stream.delta", { append: piece }, this.#n++);
      return true;
    }
    if (this.#hasNewStatus && this.#status !== null) {
      this.#hasNewStatus = false;
      const status = { type: "status", text: this.#status };
      await this.#say(socket, "stream.status", status, STATUS_NUMBER);
      return true;
    }
    if (now < this.#signAt + SIGN_INTERVAL_MS) return false;
    const isOld = now >= this.#checkpointAt + CHECKPOINT_INTERVAL_MS;
    return this.#sign(socket, this.#n > 0 && (isOld || this.#n > this.#checkpointN));
  }

  #take(): string {
    let end = Math.min(this.#text.length, this.#shown + MAX_DELTA_CHARACTERS);
    // Half a character is no text.
    if (end < this.#text.length && /[\uD800-\uDBFF]/.test(this.#text[end - 1]!)) end -= 1;
    const piece = this.#text.slice(this.#shown, end);
    this.#shown = end;
    return piece;
  }

  /** Begins, or begins again with the next generation where the text stands. */
  async #begin(socket: Socket): Promise<void> {
    const draft = this.parts.draft({});
    // Where nothing may be said in clear and no key is there, not even a begin is sent.
    await this.parts.outbox.isSealed(draft);
    this.#generation += 1;
    this.#isLost = false;
    this.#connection = socket.connection;
    const answered = draft.answered?.message.message_id;
    this.#send(socket, "stream.begin", {
      conversation_id: draft.conversationId,
      generation: this.#generation,
      ...(answered ? { in_reply_to: answered } : {}),
    });
    if (this.#n > 0) await this.#sign(socket, true);
    this.#hasNewStatus = this.#status !== null;
  }

  async #sign(socket: Socket, isCheckpoint: boolean): Promise<boolean> {
    if (!isCheckpoint) {
      this.#send(socket, "stream.keepalive", {});
      return true;
    }
    let shown = this.#text.slice(0, this.#shown);
    if (shown.length > MAX_CHECKPOINT_CHARACTERS) {
      shown = `…${shown.slice(-MAX_CHECKPOINT_CHARACTERS).replace(/^[\uDC00-\uDFFF]/, "")}`;
    }
    this.#checkpointN = this.#n;
    this.#checkpointAt = Date.now();
    await this.#say(socket, "stream.checkpoint", { checkpoint: shown }, this.#n - 1);
    return true;
  }

  async #say(socket: Socket, type: string, content: JsonObject, n: number): Promise<void> {
    const draft = this.parts.draft({});
    const { conversationId, answered } = draft;
    const isSealed = await this.parts.outbox.isSealed(draft);
    const place = { kind: Kind.delta, streamId: this.id, n } as const;
    const data = isSealed
      ? await this.parts.session.sealText(conversationId, place, content, {
          answering: answered?.opened.epoch,
        })
      : content;
    if (this.#isEnded) return;
    this.#send(socket, type, type === "stream.status" ? { data } : { n, data });
  }

  #send(socket: Socket, type: string, fields: JsonObject): void {
    this.#signAt = Date.now();
    socket.send({ type, ref: this.#reference, stream_id: this.id, ...fields });
  }

  #stop(): void {
    this.#isEnded = true;
    this.#wake();
    this.parts.socket?.watch(this.id, null);
  }

  /** Sends the durable, signed message. */
  async end(content: JsonObject = { type: "text", text: this.#text }): Promise<Sent> {
    this.#stop();
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
    this.#stop();
    const why = reason ? { reason } : {};
    if (this.#isOpen)
      this.parts.socket?.send({ type: "stream.cancel", stream_id: this.id, ...why });
  }
}
