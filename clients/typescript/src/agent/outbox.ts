/** Sends of an agent: exactly one message per id, whatever dies in between. */
import { equal, idBytes } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind } from "../e2ee/context.js";
import { DecryptError, KeyUnavailable, UsageError } from "../e2ee/errors.js";
import { principalName } from "../e2ee/keys.js";
import { fittingContent } from "../core/large.js";
import { isSameId, type OpenedMessage } from "../core/opened.js";
import type { Session } from "../core/session.js";
import type { Message, Sent } from "../core/types.js";
import { BlindpipeError, IdConflict } from "../errors.js";
import { IdempotencyConflict } from "../generated/errors.js";
import type { Http } from "../transport/http.js";

/** The server remembers ids for 24 hours; this leaves room for clocks and queues. */
const SAFE_REPEAT_MS = 20 * 3_600_000;
const HISTORY_PAGE_MESSAGES = 100;
/** A question is looked for in so many pages. */
const MAX_HISTORY_PAGES = 20;
/** A reply to an event is not older than the event, but for this. */
const CLOCK_MARGIN_MS = 5 * 60_000;

/** The message that a send answers: a search for an earlier run begins there. */
export interface Answered {
  readonly message: Message;
  readonly opened: OpenedMessage;
}

export interface Draft {
  readonly conversationId: string;
  readonly content: JsonObject;
  readonly clientMessageId: string;
  readonly answered: Answered | null;
  /** The time of the event that caused this, in Unix milliseconds. */
  readonly causedAt: number;
  /** Ids of `addressed` agents that can read this. */
  readonly to?: readonly string[] | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Ids of the messages that a change is about. It is no reply to what is answered. */
  readonly refs?: readonly string[] | undefined;
}

function repliedTo({ answered, refs }: Draft): Answered | null {
  return refs?.length ? null : answered;
}

export class Outbox {
  constructor(
    private readonly http: Http,
    private readonly agentId: string,
    private readonly session: Session,
    private readonly allowsClear: boolean,
  ) {}

  /** The payload of a draft, sealed where the conversation is encrypted. */
  async payload(draft: Draft): Promise<JsonObject> {
    const { conversationId, answered } = draft;
    if (!(await this.isSealed(draft))) return draft.content;
    const replied = repliedTo(draft);
    const re = replied?.opened.re;
    const base = `/agents/${this.agentId}/files`;
    const fitting = await fittingContent(this.http, base, conversationId, draft.content);
    const content = re ? { ...fitting, re } : fitting;
    return this.session.sealPayload(
      conversationId,
      {
        kind: Kind.message,
        clientMessageId: draft.clientMessageId,
        inReplyTo: replied?.message.message_id,
      },
      content,
      { answering: answered?.opened.epoch, addressed: draft.to },
    );
  }

  /**
   * Whether a draft goes out sealed. Throws `KeyUnavailable` where it can neither be sealed nor may
   * go in clear.
   */
  async isSealed({ conversationId, answered }: Draft): Promise<boolean> {
    const { hasKeys } = this.session;
    if (await this.session.isEncrypted(conversationId)) {
      if (!hasKeys) throw new KeyUnavailable("this agent has no key for what is encrypted here");
      return true;
    }
    const isAnswerInClear = answered !== null && !answered.opened.encrypted;
    if (this.allowsClear && (!hasKeys || isAnswerInClear)) return false;
    throw new KeyUnavailable();
  }

  /** Whether the server may have forgotten what an earlier run sent. */
  isOld(draft: Draft): boolean {
    return Date.now() - draft.causedAt >= SAFE_REPEAT_MS;
  }

  async send(draft: Draft): Promise<Sent> {
    const earlier = await this.sentAgesAgo(draft);
    if (earlier) return earlier;
    return this.sendPayload(draft, await this.payload(draft));
  }

  /** Sends bytes that are sealed already; they are the same at every try. */
  async sendPayload(draft: Draft, payload: JsonObject): Promise<Sent> {
    const { conversationId, clientMessageId, to, refs } = draft;
    const answered = repliedTo(draft);
    const recipients = to?.length ? { recipients: to } : {};
    const about = refs?.length ? { refs } : {};
    const inReplyTo = answered ? { in_reply_to: answered.message.message_id } : {};
    try {
      return await this.http.data<Sent>({
        method: "POST",
        path: `/agents/${this.agentId}/conversations/${conversationId}/messages`,
        body: { payload, client_message_id: clientMessageId, ...inReplyTo, ...recipients, ...about },
        repeatable: true,
        signal: draft.signal,
      });
    } catch (error) {
      if (error instanceof IdempotencyConflict) return this.earlierRun(draft, error);
      throw error;
    }
  }

  /** After a day the server has forgotten the id, so the history must say. */
  async sentAgesAgo(draft: Draft): Promise<Sent | null> {
    if (!this.isOld(draft)) return null;
    return this.#findDraft(draft);
  }

  #findDraft({ conversationId, clientMessageId, answered, causedAt }: Draft): Promise<Sent | null> {
    return this.find(conversationId, clientMessageId, answered, causedAt);
  }

  /** An earlier run sent it: a sealed repeat always differs, and so may a model's answer. */
  async earlierRun(draft: Draft, conflict: BlindpipeError): Promise<Sent> {
    const { message_id, seq, payload } = conflict.params as Partial<Message>;
    if (message_id && payload) {
      const message = {
        message_id,
        seq: Number(seq),
        payload,
        conversation_id: draft.conversationId,
        client_message_id: draft.clientMessageId,
        in_reply_to: repliedTo(draft)?.message.message_id ?? null,
        sender: { type: "agent", id: this.agentId },
        hop: 0,
        created_at: new Date(draft.causedAt).toISOString(),
      } as Message;
      if (await this.#isOwn(message)) return sentOf(message);
    } else {
      const found = await this.#findDraft(draft);
      if (found) return found;
    }
    throw new IdConflict();
  }

  /**
   * Finds the agent's own message with this id, after the message that it answers, or after
   * `since`. The search ends where the message cannot be, and nowhere before: else it were sent
   * twice.
   */
  async find(
    conversationId: string,
    clientMessageId: string,
    answered: Answered | null,
    since: number,
  ): Promise<Sent | null> {
    const wanted = idBytes(clientMessageId);
    let cursor = answered?.message.message_id;
    const direction = cursor ? "forward" : "backward";
    for (;;) {
      const answer: { data: Message[]; nextCursor: string | null } = await this.http.call<
        Message[]
      >({
        method: "GET",
        path: `/agents/${this.agentId}/conversations/${conversationId}/messages`,
        query: { direction, cursor, limit: HISTORY_PAGE_MESSAGES },
      });
      for (const message of answer.data) {
        const isBefore = Date.parse(message.created_at) < since - CLOCK_MARGIN_MS;
        if (!answered && isBefore) return null;
        const id = message.client_message_id;
        if (id && equal(idBytes(id), wanted) && (await this.#isOwn(message)))
          return sentOf(message);
      }
      if (!answer.nextCursor) return null;
      cursor = answer.nextCursor;
    }
  }

  /** Opens the agent's own question; null if the history does not have it. */
  async question(
    conversationId: string,
    messageId: string,
    before: string,
  ): Promise<OpenedMessage | null> {
    let cursor: string | undefined = before;
    for (let page = 0; cursor && page < MAX_HISTORY_PAGES; page++) {
      const answer: { data: Message[]; nextCursor: string | null } = await this.http.call<
        Message[]
      >({
        method: "GET",
        path: `/agents/${this.agentId}/conversations/${conversationId}/messages`,
        query: { direction: "backward", cursor, limit: HISTORY_PAGE_MESSAGES },
      });
      const message = answer.data.find((each) =>
        equal(idBytes(each.message_id), idBytes(messageId)),
      );
      if (message) return this.openOwn(message);
      cursor = answer.nextCursor ?? undefined;
    }
    return null;
  }

  /** A message that this agent has sent, opened. Throws `UsageError` if it is not there. */
  async own(sent: Sent): Promise<Answered> {
    const path = `/agents/${this.agentId}/conversations/${sent.conversation_id}/messages`;
    for await (const message of this.http.pages<Message>(path, { limit: HISTORY_PAGE_MESSAGES })) {
      if (message.seq < sent.seq) break;
      if (message.payload === null || !isSameId(message.message_id, sent.message_id)) continue;
      const opened = await this.openOwn(message);
      if (opened) return { message, opened };
    }
    throw new UsageError("this agent has sent no such message");
  }

  /** Has the service forget the payload of a message of this agent. */
  async delete({ conversation_id, message_id }: Sent): Promise<void> {
    const path = `/agents/${this.agentId}/conversations/${conversation_id}/messages/${message_id}`;
    await this.http.data({ method: "DELETE", path, repeatable: true });
  }

  /** A message, opened if it is this agent's own. */
  async openOwn(message: Message): Promise<OpenedMessage | null> {
    if (!(await this.#isOwn(message))) return null;
    if (message.payload?.["type"] !== "encrypted") return this.session.clearMessage(message);
    return this.session.openMessage(message, false);
  }

  async #isOwn(message: Message): Promise<boolean> {
    const self = principalName({ type: "agent", id: this.agentId });
    if (principalName({ type: message.sender.type, id: message.sender.id }) !== self) return false;
    try {
      await this.session.openMessage(message, false);
      return true;
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      // An agent without a key, or in a conversation in clear, has only the server's word.
      return error.reason === "clear" && !(await this.#isEncrypted(message));
    }
  }

  async #isEncrypted(message: Message): Promise<boolean> {
    return this.session.hasKeys && this.session.isEncrypted(message.conversation_id);
  }
}

function sentOf(message: Message): Sent {
  return {
    message_id: message.message_id,
    conversation_id: message.conversation_id,
    seq: message.seq,
    created_at: message.created_at,
    client_message_id: message.client_message_id ?? null,
    duplicate: true,
  } as Sent;
}
