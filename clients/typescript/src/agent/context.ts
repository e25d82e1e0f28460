/** The context that a handler gets. */
import type { JsonObject } from "../e2ee/content.js";
import type { FileContent } from "../e2ee/file.js";
import { UsageError } from "../e2ee/errors.js";
import { type Origin, originKey, replyId } from "../e2ee/replies.js";
import { downloadFile, type NewFile, uploadFile } from "../core/files.js";
import type { OpenedSender } from "../core/opened.js";
import type { EventObject, Grant, Message, Sent } from "../core/types.js";
import type { Answered, Draft } from "./outbox.js";
import { MessageStream } from "./stream.js";
import type { CallOptions, CallResult } from "./tool-calls.js";
import type { AgentParts } from "./parts.js";

export interface SendOptions {
  /** A name of this send within the event, instead of its number. */
  readonly key?: string;
  /** Ids of `addressed` agents that can read it too. */
  readonly to?: readonly string[];
}

export interface AskOptions extends SendOptions {
  /** Which `onAnswer` gets the answer. */
  readonly tag: string;
  readonly choices?: readonly string[];
  /** Comes back with the answer. Everybody who can read the question can read it. */
  readonly state?: JsonObject;
  /** Ids of who may answer; by default who was spoken to. */
  readonly for?: readonly string[];
}

/** An answer to a question of this agent. */
export interface QuestionAnswer {
  readonly choice: string | null;
  readonly text: string | null;
  readonly state: JsonObject;
  readonly question: string;
}

export interface ContextInput {
  readonly parts: AgentParts;
  readonly event: EventObject;
  readonly answered: Answered | null;
  readonly origin: Origin;
  readonly isReplayed: boolean;
  readonly signal: AbortSignal;
  readonly answer?: QuestionAnswer | null;
}

export class Context {
  readonly event: EventObject;
  /** The message as the server stores it; null for other events. */
  readonly message: Message | null;
  /** Whether it was in the inbox before this connection, or a webhook tries it again. */
  readonly replayed: boolean;
  /** For other systems' idempotency: a message can come again. */
  readonly key: string;
  /** Aborts when the handler is to end. */
  readonly signal: AbortSignal;
  readonly #input: ContextInput;
  #sends = 0;

  constructor(input: ContextInput) {
    this.#input = input;
    this.event = input.event;
    this.message = input.answered?.message ?? null;
    this.replayed = input.isReplayed;
    this.key = originKey(input.origin);
    this.signal = input.signal;
  }

  /** The conversation's id; throws for an event without one. */
  get conversation(): string {
    const id = this.message?.conversation_id ?? this.event.conversation_id;
    if (!id) throw new UsageError("this event has no conversation");
    return id;
  }

  /** The opened content, or the event's data. */
  get payload(): JsonObject {
    return this.#input.answered?.opened.content ?? this.event.data;
  }

  /** The text of a text message, else "". */
  get text(): string {
    const { type, text } = this.payload;
    return type === "text" && typeof text === "string" ? text : "";
  }

  get encrypted(): boolean {
    return this.#input.answered?.opened.encrypted ?? false;
  }

  get sender(): OpenedSender | null {
    return this.#input.answered?.opened.sender ?? null;
  }

  /** By the sender's clock, signed. */
  get sentAt(): Date | null {
    return this.#input.answered?.opened.sentAt ?? null;
  }

  /** In `onAnswer`: what was answered. */
  get answer(): QuestionAnswer {
    if (!this.#input.answer) throw new UsageError("this is no answer to a question");
    return this.#input.answer;
  }

  /** The next name, in the order of the handler's sends. */
  #name(key: string | undefined): string {
    return key ?? String(this.#sends++);
  }

  async #draft(
    conversationId: string,
    content: JsonObject,
    name: string,
    to?: readonly string[],
  ): Promise<Draft> {
    const { parts, origin, answered, event } = this.#input;
    const isHere = answered?.message.conversation_id === conversationId;
    return {
      conversationId,
      content,
      clientMessageId: await replyId(parts.agentId, origin, name),
      answered: isHere ? answered : null,
      causedAt: Date.parse(event.created_at),
      to,
      signal: this.signal,
    };
  }

  /** Answers in this conversation. Run again, it sends nothing twice. */
  reply(content: string | JsonObject, options: SendOptions = {}): Promise<Sent> {
    return this.send(this.conversation, content, options);
  }

  async send(
    conversationId: string,
    content: string | JsonObject,
    options: SendOptions = {},
  ): Promise<Sent> {
    const body = typeof content === "string" ? { type: "text", text: content } : content;
    const name = this.#name(options.key);
    const draft = await this.#draft(conversationId, body, name, options.to);
    return this.#input.parts.outbox.send(draft);
  }

  /** A message that is shown while it is written. */
  async #openStream(options: SendOptions): Promise<MessageStream> {
    const { parts } = this.#input;
    const base = await this.#draft(this.conversation, {}, this.#name(options.key), options.to);
    return new MessageStream({
      draft: (content) => ({ ...base, content }),
      outbox: parts.outbox,
      session: parts.session,
      socket: parts.socket(),
    });
  }

  /** Encrypted while it is written; `end()` makes it one durable message. */
  stream(options: SendOptions = {}): DeferredStream {
    return new DeferredStream(this.#openStream(options));
  }

  /** Tells the members that the agent writes. */
  typing(state: "started" | "stopped" = "started"): void {
    const frame = { type: "typing", conversation_id: this.conversation, state };
    this.#input.parts.socket()?.send(frame);
  }

  /** Asks the person's device to run a tool: it executes and signs, or nobody does. */
  async call(options: CallOptions): Promise<CallResult> {
    const { parts, origin } = this.#input;
    const requestId = await replyId(parts.agentId, origin, this.#name(options.key));
    const userId = options.user ?? (this.sender?.type === "user" ? this.sender.id : undefined);
    return parts.toolCalls.call(
      this.conversation,
      requestId,
      { ...options, user: userId },
      this.signal,
    );
  }

  /** A question that may wait for days: its state travels with it, and no process waits. */
  ask(text: string, options: AskOptions): Promise<Sent> {
    const asked = options.for ?? (this.sender?.type === "user" ? [this.sender.id] : []);
    const content: JsonObject = {
      type: "question",
      text,
      tag: options.tag,
      choices: [...(options.choices ?? [])],
      state: options.state ?? {},
      for: [...asked],
    };
    return this.send(this.conversation, content, options);
  }

  /** Asks the person for scopes in this conversation; `grant.decided` brings the answer. */
  requestGrant(scopes: readonly string[], options: { reason?: string } = {}): Promise<Grant> {
    const { http, agentId } = this.#input.parts;
    return http.data<Grant>({
      method: "POST",
      path: `/agents/${agentId}/grants/request`,
      body: { conversation_id: this.conversation, scopes, ...options },
    });
  }

  /** The file of this message, or of the content given. */
  file(content: JsonObject = this.payload): {
    readonly name: string;
    bytes(): Promise<Uint8Array>;
  } {
    const file = content as unknown as FileContent;
    if (file.type !== "file") throw new UsageError("this message is no file");
    return { name: file.name, bytes: () => downloadFile(this.#input.parts.http, file) };
  }

  /** Uploads a file and sends the message that names it. */
  async sendFile(file: NewFile, options: SendOptions = {}): Promise<Sent> {
    const { parts } = this.#input;
    const content = await uploadFile(
      parts.http,
      `/agents/${parts.agentId}/files`,
      this.conversation,
      file,
    );
    return this.reply(content as unknown as JsonObject, options);
  }

  /** Whether a first reply is in the history already: for handlers that cost money. */
  async answered(): Promise<boolean> {
    const { parts, origin, answered } = this.#input;
    const id = await replyId(parts.agentId, origin, "0");
    return (await parts.outbox.find(this.conversation, id, answered)) !== null;
  }
}

/** A stream that can be written to at once, while its id is still computed. */
export class DeferredStream {
  #written = "";
  #stream: MessageStream | null = null;

  constructor(private readonly opening: Promise<MessageStream>) {
    opening.then(
      (stream) => {
        this.#stream = stream;
        if (this.#written) stream.write(this.#written);
      },
      () => {},
    );
  }

  write(part: string): void {
    if (this.#stream) this.#stream.write(part);
    else this.#written += part;
  }

  /** Sends a durable, signed message: the text written, or another content. */
  async end(content?: JsonObject): Promise<Sent> {
    const stream = await this.opening;
    return stream.end(content);
  }

  async cancel(reason?: string): Promise<void> {
    (await this.opening).cancel(reason);
  }
}
