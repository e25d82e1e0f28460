/** Sends of an agent: exactly one message per id, whatever dies in between. */
import { equal, idBytes } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind } from "../e2ee/context.js";
import { DecryptError, KeyUnavailable } from "../e2ee/errors.js";
import { principalName } from "../e2ee/keys.js";
import type { OpenedMessage } from "../core/opened.js";
import type { Session } from "../core/session.js";
import type { Message, Sent } from "../core/types.js";
import { BlindpipeError, IdConflict } from "../errors.js";
import { IdempotencyConflict } from "../generated/errors.js";
import type { Http } from "../transport/http.js";

/** The server remembers ids for 24 hours; this leaves room for clocks and queues. */
const SAFE_REPEAT_MS = 20 * 3_600_000;
const HISTORY_PAGE_MESSAGES = 100;
const MAX_HISTORY_PAGES = 20;

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
    const re = answered?.opened.re;
    const content = re ? { ...draft.content, re } : draft.content;
    return this.session.sealPayload(
      conversationId,
      {
        kind: Kind.message,
        clientMessageId: draft.clientMessageId,
        inReplyTo: answered?.message.message_id,
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
    const earlier = await this.#sentAgesAgo(draft);
    if (earlier) return earlier;
    return this.sendPayload(draft, await this.payload(draft));
  }

  /** Sends bytes that are sealed already; they are the same at every try. */
  async sendPayload(draft: Draft, payload: JsonObject): Promise<Sent> {
    const { conversationId, clientMessageId, answered, to } = draft;
    const recipients = to?.length ? { recipients: to } : {};
    const inReplyTo = answered ? { in_reply_to: answered.message.message_id } : {};
    try {
      return await this.http.data<Sent>({
        method: "POST",
        path: `/agents/${this.agentId}/conversations/${conversationId}/messages`,
        body: { payload, client_message_id: clientMessageId, ...inReplyTo, ...recipients },
        repeatable: true,
        signal: draft.signal,
      });
    } catch (error) {
      if (error instanceof IdempotencyConflict) return this.#earlierRun(draft, error);
      throw error;
    }
  }

  /** After a day the server has forgotten the id, so the history must say. */
  async #sentAgesAgo(draft: Draft): Promise<Sent | null> {
    if (!this.isOld(draft)) return null;
    return this.find(draft.conversationId, draft.clientMessageId, draft.answered);
  }

  /** An earlier run sent it: a sealed repeat always differs, and so may a model's answer. */
  async #earlierRun(draft: Draft, conflict: BlindpipeError): Promise<Sent> {
    const { message_id, seq, payload } = conflict.params as Partial<Message>;
    if (message_id && payload) {
      const message = {
        message_id,
        seq: Number(seq),
        payload,
        conversation_id: draft.conversationId,
        client_message_id: draft.clientMessageId,
        in_reply_to: draft.answered?.message.message_id ?? null,
        sender: { type: "agent", id: this.agentId },
        hop: 0,
        created_at: new Date(draft.causedAt).toISOString(),
      } as Message;
      if (await this.#isOwn(message)) return sentOf(message);
    } else {
      const found = await this.find(draft.conversationId, draft.clientMessageId, draft.answered);
      if (found) return found;
    }
    throw new IdConflict();
  }

  /** Finds the agent's own message with this id, after the message that it answers. */
  async find(
    conversationId: string,
    clientMessageId: string,
    answered: Answered | null,
  ): Promise<Sent | null> {
    const wanted = idBytes(clientMessageId);
    let cursor = answered?.message.message_id;
    const direction = cursor ? "forward" : "backward";
    for (let page = 0; page < MAX_HISTORY_PAGES; page++) {
      const answer = await this.http.call<Message[]>({
        method: "GET",
        path: `/agents/${this.agentId}/conversations/${conversationId}/messages`,
        query: { direction, cursor, limit: HISTORY_PAGE_MESSAGES },
      });
      for (const message of answer.data) {
        const id = message.client_message_id;
        if (id && equal(idBytes(id), wanted) && (await this.#isOwn(message)))
          return sentOf(message);
      }
      if (!answer.nextCursor) return null;
      cursor = answer.nextCursor;
    }
    return null;
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
      if (message) return this.#openOwn(message);
      cursor = answer.nextCursor ?? undefined;
    }
    return null;
  }

  async #openOwn(message: Message): Promise<OpenedMessage | null> {
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
