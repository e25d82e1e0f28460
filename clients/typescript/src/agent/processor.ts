/** Opens an event, and gives it to its handlers. */
import { equal, fromBase64, hex } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { DecryptError } from "../e2ee/errors.js";
import { Recent } from "../e2ee/native.js";
import { type Origin, eventOrigin, messageOrigin } from "../e2ee/replies.js";
import type { Approval } from "../core/approvals.js";
import { contentView } from "../core/content.js";
import { isGone, isOfItsConversation, isSameId } from "../core/opened.js";
import type { Session } from "../core/session.js";
import type { EventObject, Message } from "../core/types.js";
import type { HookCaller } from "../hooks.js";
import type { ApprovalResult } from "./approvals.js";
import { Context, type ContextInput, type QuestionAnswer } from "./context.js";
import type { AgentOptions } from "./options.js";
import type { Answered } from "./outbox.js";
import type { AgentParts } from "./parts.js";
import { Turns } from "./turns.js";

export type Handler = (context: Context) => unknown;
export type Middleware = (context: Context, next: () => Promise<void>) => unknown;

/** The handlers and the middleware that a developer has registered. */
export class Handlers {
  readonly #byEvent = new Map<string, Handler[]>();
  readonly #byTag = new Map<string, Handler>();
  /** By the name of an approval. */
  readonly #byDecision = new Map<string, Handler>();
  readonly middleware: Middleware[] = [];

  add(name: string, handler: Handler): void {
    const event = name === "message" ? "message.created" : name;
    this.#byEvent.set(event, [...(this.#byEvent.get(event) ?? []), handler]);
  }

  addAnswer(tag: string, handler: Handler): void {
    this.#byTag.set(tag, handler);
  }

  addDecision(name: string, handler: Handler): void {
    this.#byDecision.set(name, handler);
  }

  get takesDecisions(): boolean {
    return this.#byDecision.size > 0;
  }

  ofDecision(name: string): readonly Handler[] {
    const handler = this.#byDecision.get(name);
    return handler ? [handler] : [];
  }

  get takesAnswers(): boolean {
    return this.#byTag.size > 0;
  }

  ofEvent(event: string): readonly Handler[] {
    return this.#byEvent.get(event) ?? [];
  }

  ofAnswer(tag: string): readonly Handler[] {
    const handler = this.#byTag.get(tag);
    return handler ? [handler] : [];
  }

  async run(context: Context, handlers: readonly Handler[]): Promise<void> {
    const from = async (at: number): Promise<void> => {
      const middleware = this.middleware[at];
      if (middleware) await middleware(context, () => from(at + 1));
      else for (const handler of handlers) await handler(context);
    };
    await from(0);
  }
}

/** A first delivery of this is still handled: a later one finds out how that ended. */
export class AlreadyRunning extends Error {
  override readonly name = "AlreadyRunning";
  constructor() {
    super("another delivery of this is being handled");
  }
}

interface Found {
  readonly handlers: readonly Handler[];
  readonly answer: QuestionAnswer | null;
  readonly decision: ApprovalResult | null;
}

const APPROVAL_CLOSED = "approval.closed";
const MAX_HANDLED_EVENTS = 10_000;
const NOBODY: Found = { handlers: [], answer: null, decision: null };

export class Processor {
  constructor(
    private readonly options: AgentOptions,
    private readonly handlers: Handlers,
    private readonly hooks: HookCaller,
  ) {
    this.#turns = new Turns(options.busyPolicy ?? "queue");
  }

  readonly #turns: Turns;

  /** Looks at an event before its turn: a stop is heard while handlers run. */
  arrive(event: EventObject): void {
    this.#turns.arrive(event);
  }

  /** Origins of the events whose handlers run. */
  readonly #running = new Set<string>();
  /** Origins of what was handled and is no sealed message: those are remembered by their room. */
  readonly #handled = new Recent<true>(MAX_HANDLED_EVENTS);

  /**
   * Runs the handlers once. A message that does not open, or whose sender is no member,
   * goes to a hook, and is handled. Throws
   * `AlreadyRunning` while another delivery of the same thing is handled.
   */
  async process(
    event: EventObject,
    parts: AgentParts,
    isReplayed: boolean,
    /** The end of the time for the handlers. */
    ending: { readonly signal: AbortSignal },
  ): Promise<void> {
    let answered: Answered | null = null;
    if (event.event === "message.created") {
      // It was deleted, or purged, before anybody has handled it.
      if (isGone(event.data as unknown as Message)) return;
      try {
        if (!isOfItsConversation(event)) throw new DecryptError("malformed");
        answered = await this.#open(event, parts.session);
      } catch (error) {
        if (!(error instanceof DecryptError)) throw error;
        return this.#refused(event, error.reason);
      }
      if (!answered) return;
      if (!answered.opened.sender.member) return this.#refused(event, "not_member");
    }
    const found = await this.#findUnlessRefused(event, answered, parts);
    if (!found || found.handlers.length === 0) return;
    const { handlers, answer, decision } = found;
    const origin = await originOf(event, answered);
    const name = hex(origin.hash);
    if (this.#running.has(name)) throw new AlreadyRunning();
    const message = answered?.opened.encrypted ? answered.message : null;
    // Another delivery may have been handled since this one was opened.
    if (message ? parts.session.hasHandled(message) : this.#handled.get(name)) return;
    this.#running.add(name);
    try {
      const turn = this.#turns.begin(event);
      const open = (later: EventObject): Promise<Answered | null> => this.#steer(later, parts);
      if (turn) {
        // A spread of several objects takes a tenth of the time of an event.
        await this.#runTurn(
          { parts, event, answered, origin, isReplayed, ending, answer, decision, turn, open },
          handlers,
        );
      }
      if (message) parts.session.remember(message, answered!.opened.sentAt);
      else this.#handled.set(name, true);
    } finally {
      this.#running.delete(name);
    }
  }

  /** A message that a handler takes; null for one that is not handled. */
  async #steer(event: EventObject, { session }: AgentParts): Promise<Answered | null> {
    try {
      return await this.#open(event, session);
    } catch (error) {
      // Its own turn tells that it does not open.
      if (error instanceof DecryptError) return null;
      throw error;
    }
  }

  /** A turn that was stopped has been handled, however it ended. */
  async #runTurn(given: ContextInput, handlers: readonly Handler[]): Promise<void> {
    const { turn } = given;
    const { session } = given.parts;
    const context = new Context(given);
    try {
      await this.handlers.run(context, handlers);
    } catch (error) {
      if (!turn.isStopped) throw error;
    } finally {
      context.endStatus();
    }
    this.#turns.end(turn);
    for (const { answered } of turn.taken) {
      if (answered.opened.encrypted) session.remember(answered.message, answered.opened.sentAt);
    }
  }

  #refused(event: EventObject, reason: string): void {
    const conversation_id = event.conversation_id ?? null;
    const details = { reason, event_id: event.event_id, conversation_id };
    this.options.logger?.warn("a message was not handled", details);
    this.hooks.call("undecryptable", details);
  }

  /** The opened message; null if it was handled before. Throws `DecryptError`. */
  async #open(event: EventObject, session: Session): Promise<Answered | null> {
    const message = event.data as unknown as Message;
    const isSealed = message.payload?.["type"] === "encrypted";
    if (!isSealed) {
      // Where anything was ever encrypted, clear text can be the server's own.
      const isAllowed = this.options.plaintext === "allow";
      if (!isAllowed || (await session.wasEncrypted(message.conversation_id))) {
        throw new DecryptError("clear");
      }
    }
    if (!isSealed) return { message, opened: session.clearMessage(message) };
    if (!session.hasKeys) {
      session.sawEnvelope(message);
      throw new DecryptError("no_epoch_key");
    }
    const opened = await session.openMessage(message, true);
    if (opened.isReplay) return null;
    return { message, opened };
  }

  async #find(event: EventObject, answered: Answered | null, parts: AgentParts): Promise<Found> {
    const kind = answered && contentView(answered.opened.content).kind;
    // The words of a decision come with the end of its approval.
    if (kind === "decision") return NOBODY;
    if (!answered || kind !== "answer" || !this.handlers.takesAnswers) {
      const isChange = kind === "edit" || kind === "delete" || kind === "reaction";
      const handlers = this.handlers.ofEvent(isChange ? kind : event.event);
      return this.#withDecision(event, parts, handlers);
    }
    const question = await askedQuestion(answered, parts);
    if (!question) return NOBODY;
    const handlers = this.handlers.ofAnswer(String(question["tag"] ?? ""));
    return { handlers, answer: answerOf(question, answered.opened.content), decision: null };
  }

  async #withDecision(
    event: EventObject,
    parts: AgentParts,
    handlers: readonly Handler[],
  ): Promise<Found> {
    const takes = this.handlers.takesDecisions || this.handlers.takesAnswers;
    const isDecision = event.event === APPROVAL_CLOSED && takes;
    if (!isDecision) return { ...NOBODY, handlers };
    const decision = await parts.approvals.result(event.data as unknown as Approval);
    if (!decision) return { ...NOBODY, handlers };
    const { outcome, name, question, choice, text, state } = decision;
    const answer = outcome === "answered" ? { question, choice, text, state } : null;
    const byTag = answer ? this.handlers.ofAnswer(name) : [];
    const named = [...this.handlers.ofDecision(name), ...byTag];
    return { handlers: [...handlers, ...named], answer, decision };
  }

  /** Null if what the event says does not open, or is not proven. */
  async #findUnlessRefused(
    event: EventObject,
    answered: Answered | null,
    parts: AgentParts,
  ): Promise<Found | null> {
    try {
      return await this.#find(event, answered, parts);
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      this.#refused(event, error.reason);
      return null;
    }
  }
}

async function originOf(event: EventObject, answered: Answered | null): Promise<Origin> {
  const message = answered?.message;
  if (!answered?.opened.encrypted || !message?.client_message_id)
    return eventOrigin(event.event_id);
  const sender = { type: message.sender.type, id: message.sender.id };
  return messageOrigin(message.conversation_id, sender, message.client_message_id);
}

/** The question, if it opens as the agent's own, `re` fits it, and the sender may answer. */
async function askedQuestion(answered: Answered, parts: AgentParts): Promise<JsonObject | null> {
  const { message, opened } = answered;
  if (!message.in_reply_to) return null;
  const { conversation_id: conversation, in_reply_to: id, message_id: before } = message;
  const asked = await parts.outbox.question(conversation, id, before);
  if (!asked || asked.content["type"] !== "question") return null;
  if (asked.re !== null && !isSameHash(opened.content["re"], asked.re)) return null;
  const mayAnswer = asked.content["for"];
  const isMeant =
    Array.isArray(mayAnswer) && mayAnswer.some((id) => isSameId(id, opened.sender.id));
  return isMeant ? asked.content : null;
}

function isSameHash(one: unknown, other: string): boolean {
  try {
    return typeof one === "string" && equal(fromBase64(one), fromBase64(other));
  } catch {
    return false;
  }
}

function answerOf(question: JsonObject, { choice, text }: JsonObject): QuestionAnswer {
  const state = question["state"];
  const isObject = typeof state === "object" && state !== null && !Array.isArray(state);
  return {
    choice: typeof choice === "string" ? choice : null,
    text: typeof text === "string" ? text : null,
    state: isObject ? state : {},
    question: String(question["text"] ?? ""),
  };
}
