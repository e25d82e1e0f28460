/** The context that a handler gets. */
import type { JsonObject } from "../e2ee/content.js";
import type { FileContent } from "../e2ee/file.js";
import { UsageError } from "../e2ee/errors.js";
import { type Origin, originKey, replyId } from "../e2ee/replies.js";
import { deleteContent, editContent, reactionContent, target } from "../core/content.js";
import { downloadFile, type NewFile, uploadFile } from "../core/files.js";
import type { OpenedSender } from "../core/opened.js";
import type { EventObject, Grant, Message, Sent } from "../core/types.js";
import type { Approval } from "../core/approvals.js";
import {
  type ApprovalDraft,
  type ApprovalResult,
  type ApproveOptions,
  MAX_EXPIRY,
  approvalContent,
} from "./approvals.js";
import type { Answered, Draft } from "./outbox.js";
import { MessageStream } from "./stream.js";
import type { CallOptions, CallResult } from "./tool-calls.js";
import type { AgentParts } from "./parts.js";
import type { Turn } from "./turns.js";

/** The key of the stream that shows a status before there is any text. It becomes no message. */
const STATUS_KEY = ":status";

export interface SendOptions {
  /** A name of this send within the event, instead of its number. */
  readonly key?: string;
  /** Ids of `addressed` agents that can read it too. */
  readonly to?: readonly string[];
}

export interface AskOptions {
  /** Which `onAnswer` gets the answer. */
  readonly tag: string;
  /** A name of this send within the event, instead of its number. */
  readonly key?: string;
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
  readonly ending: { readonly signal: AbortSignal };
  readonly answer?: QuestionAnswer | null;
  readonly decision?: ApprovalResult | null;
  readonly turn: Turn;
  /** The message of an event; null for one that is not handled. */
  readonly open: (event: EventObject) => Promise<Answered | null>;
}

/** A message that arrived while a handler ran, and that the handler has taken. */
export interface SteerMessage {
  readonly message: Message;
  /** The text of a text message, else "". */
  readonly text: string;
  readonly payload: JsonObject;
  readonly sender: OpenedSender;
}

function textOf({ type, text }: JsonObject): string {
  return type === "text" && typeof text === "string" ? text : "";
}

export class Context {
  readonly event: EventObject;
  /** The message as the server stores it; null for other events. */
  readonly message: Message | null;
  /** Whether it was in the inbox before this connection, or a webhook tries it again. */
  readonly replayed: boolean;
  /** For other systems' idempotency: a message can come again. */
  readonly key: string;
  readonly #input: ContextInput;
  #stream: DeferredStream | null = null;
  #status: DeferredStream | null = null;
  #sends = 0;

  constructor(input: ContextInput) {
    this.#input = input;
    this.event = input.event;
    this.message = input.answered?.message ?? null;
    this.replayed = input.isReplayed;
    this.key = originKey(input.origin);
  }

  /** Aborts when the handler is to end. */
  get signal(): AbortSignal {
    return this.#input.ending.signal;
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
    return textOf(this.payload);
  }

  /** Aborts when a person has stopped this. The event is not handled again, however it ends. */
  get stopped(): AbortSignal {
    return this.#input.turn.stopped;
  }

  /**
   * The messages that have arrived here since the handler began, or since the last call. What is
   * taken here is handled by this handler, and by no other.
   */
  async steer(): Promise<SteerMessage[]> {
    const { turn, open } = this.#input;
    const found: SteerMessage[] = [];
    for (const event of turn.arrived.splice(0)) {
      const answered = await open(event);
      if (!answered?.opened.sender.member) continue;
      turn.taken.push({ event, answered });
      const { content: payload, sender } = answered.opened;
      found.push({ message: answered.message, text: textOf(payload), payload, sender });
    }
    return found;
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

  /** In `onDecision`: what was decided. */
  get decision(): ApprovalResult {
    if (!this.#input.decision) throw new UsageError("this is no decision about an approval");
    return this.#input.decision;
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

  /**
   * Answers in this conversation. Run again, it sends nothing twice. Replies that do not wait for each other arrive in any
   * order.
   */
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
    const sent = await this.#input.parts.outbox.send(draft);
    this.endStatus();
    return sent;
  }

  /** Replaces the content of a text or a file that this agent has sent. */
  async edit(
    sent: Sent,
    content: string | JsonObject,
    options: { readonly key?: string } = {},
  ): Promise<Sent> {
    const name = this.#name(options.key);
    const body = typeof content === "string" ? { type: "text", text: content } : content;
    const own = await this.#input.parts.outbox.own(sent);
    return this.#change(own, (target) => editContent(target, body), name);
  }

  /** Takes a message of this agent back: it says so, and the service forgets the payload. */
  async delete(sent: Sent, options: { readonly key?: string } = {}): Promise<void> {
    const { outbox } = this.#input.parts;
    const name = this.#name(options.key);
    try {
      await this.#change(await outbox.own(sent), deleteContent, name);
    } catch (error) {
      // An earlier run has deleted it.
      if (!(error instanceof UsageError)) throw error;
    }
    await outbox.delete(sent);
  }

  /** Puts an emoji beside this message, or takes the agent's own away. */
  async react(
    emoji: string,
    options: { readonly remove?: boolean; readonly key?: string } = {},
  ): Promise<Sent> {
    const { answered } = this.#input;
    if (!answered) throw new UsageError("this event brings no message");
    const make = (target: JsonObject): JsonObject => reactionContent(target, emoji, options);
    return this.#change(answered, make, this.#name(options.key));
  }

  async #change(
    about: Answered,
    make: (target: JsonObject) => JsonObject,
    name: string,
  ): Promise<Sent> {
    const { conversation_id, message_id } = about.message;
    const content = make(target(message_id, about.opened.re));
    const draft = await this.#draft(conversation_id, content, name);
    return this.#input.parts.outbox.send({ ...draft, answered: about, refs: [message_id] });
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
    this.endStatus();
    this.#stream = new DeferredStream(this.#openStream(options));
    return this.#stream;
  }

  /**
   * Says what the agent does meanwhile, such as a search: beside the stream, or before it. It ends
   * with the next text, with a reply, or with the handler.
   */
  status(text: string): void {
    if (!this.#stream || this.#stream.isEnded) {
      this.#status = this.stream({ key: STATUS_KEY });
    }
    this.#stream?.status(text);
  }

  /** Takes away what `status` shows before there is any text. */
  endStatus(): void {
    if (!this.#status) return;
    this.#status.cancel().catch(() => {});
    this.#status = this.#stream = null;
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
    const userId = options.user ?? this.#spokenTo();
    return parts.toolCalls.call(
      this.conversation,
      requestId,
      { ...options, user: userId },
      this.signal,
    );
  }

  /**
   * A question that may wait for 30 days: its state travels with it, and no process waits. It is an
   * approval that people answer: `onDecision(tag)` gets a refusal too, and the end of the time.
   */
  async ask(text: string, { tag, for: named, ...options }: AskOptions): Promise<Approval> {
    const spokenTo = this.#spokenTo();
    const of = named?.length ? named : spokenTo === undefined ? [] : [spokenTo];
    if (of.length === 0) throw new UsageError("name the users who are asked");
    return this.#ask(tag, {}, { ...options, text, of, expires: MAX_EXPIRY, kind: "ask" });
  }

  /** Who wrote, or who decided first. */
  #spokenTo(): string | undefined {
    const { decision } = this.#input;
    if (decision) return decision.approval.decisions[0]?.user_id;
    return this.sender?.type === "user" ? this.sender.id : undefined;
  }

  /**
   * Asks people of this conversation for an approval, and answers at once. `onDecision(name)` gets
   * the decision with `arguments` and `state`, perhaps days later, in any process.
   */
  async approve(
    name: string,
    given: JsonObject = {},
    options: ApproveOptions = {},
  ): Promise<Approval> {
    return this.#ask(name, given, options);
  }

  async #ask(name: string, given: JsonObject, options: ApprovalDraft): Promise<Approval> {
    const content = approvalContent(name, given, options);
    const draft = await this.#draft(this.conversation, content, this.#name(options.key));
    // A clear message is answered in clear. An approval is no reply to it.
    const isClear = draft.answered?.opened.encrypted === false;
    const asked = { ...draft, answered: isClear ? draft.answered : null };
    return this.#input.parts.approvals.ask(asked, options);
  }

  /**
   * Asks a person for scopes in this conversation; `grant.decided` brings the answer. `user` is asked, by
   * default the person who was spoken to. A group needs one of them.
   */
  requestGrant(
    scopes: readonly string[],
    { reason, user = this.#spokenTo() }: { readonly reason?: string; readonly user?: string } = {},
  ): Promise<Grant> {
    const { http, agentId } = this.#input.parts;
    return http.data<Grant>({
      method: "POST",
      path: `/agents/${agentId}/grants/request`,
      body: { conversation_id: this.conversation, user_id: user, scopes, reason },
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
    const { parts, origin, answered, event } = this.#input;
    const id = await replyId(parts.agentId, origin, "0");
    const since = Date.parse(event.created_at);
    return (await parts.outbox.find(this.conversation, id, answered, since)) !== null;
  }
}

/** A stream that can be written to at once, while its id is still computed. */
export class DeferredStream {
  #written = "";
  #status: string | null = null;
  #isEnded = false;
  #stream: MessageStream | null = null;

  constructor(private readonly opening: Promise<MessageStream>) {
    opening.then(
      (stream) => {
        this.#stream = stream;
        if (this.#written) stream.write(this.#written);
        if (this.#status !== null) stream.status(this.#status);
      },
      () => {},
    );
  }

  write(part: string): void {
    if (this.#stream) this.#stream.write(part);
    else this.#written += part;
  }

  /** Says what the agent does meanwhile. The next text ends it. */
  status(text: string): void {
    if (this.#stream) this.#stream.status(text);
    else this.#status = text;
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }

  /** Sends a durable, signed message: the text written, or another content. */
  async end(content?: JsonObject): Promise<Sent> {
    this.#isEnded = true;
    const stream = await this.opening;
    return stream.end(content);
  }

  async cancel(reason?: string): Promise<void> {
    this.#isEnded = true;
    (await this.opening).cancel(reason);
  }
}
