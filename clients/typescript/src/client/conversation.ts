/** A conversation as a person sees it. */
import { newUlid } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind } from "../e2ee/context.js";
import { DecryptError, KeyUnavailable, UsageError } from "../e2ee/errors.js";
import type { FileContent } from "../e2ee/file.js";
import { MAX_SEARCH_TOKENS, searchWords } from "../e2ee/search.js";
import { readApproval } from "../core/approvals.js";
import { deleteContent, editContent, reactionContent, target } from "../core/content.js";
import { downloadFile, type NewFile, uploadFile } from "../core/files.js";
import { fittingContent } from "../core/large.js";
import { isGone, isSameId, type OpenedMessage } from "../core/opened.js";
import { epochTokens, messageTokens } from "../core/search.js";
import type { Session } from "../core/session.js";
import type {
  AgentInstance,
  Conversation as ConversationInfo,
  LiveStream,
  Message,
  Sent,
} from "../core/types.js";
import type { components } from "../generated/openapi.js";
import { ApprovalRequest } from "./approvals.js";
import type { Frame } from "../transport/socket.js";
import { type Rotator, needsRotation } from "./rotation.js";

export interface SendOptions {
  /** A client that repeats a send across processes keeps this id. */
  readonly clientMessageId?: string;
  readonly inReplyTo?: ReceivedMessage;
  /** Ids of `addressed` agents that can read it. */
  readonly to?: readonly string[];
  /** Ids of the messages that it concerns, in clear. */
  readonly refs?: readonly string[];
  /** The program's own keyed hashes of words, in place of those of `ClientOptions.searchable`. */
  readonly searchTokens?: readonly string[];
}

/** A page of the history, for `timeline(page.messages, page.refs)`. */
export interface HistoryPage {
  /** The newest first. */
  readonly messages: readonly ReceivedMessage[];
  /** The messages that refer to one of them, by rising `seq`. */
  readonly refs: readonly ReceivedMessage[];
  /** There are more of them. */
  readonly refsTruncated: boolean;
}

/** Whether its payload is gone. Then it is shown as deleted. */
export function isDeleted({ message }: ReceivedMessage): boolean {
  return isGone(message);
}

/** A message, opened if it opens. Nothing of what does not open is shown as said by anybody. */
export interface ReceivedMessage {
  readonly message: Message;
  readonly opened: OpenedMessage | null;
  /** Why it does not open. */
  readonly fault: DecryptError | null;
}

export interface ConversationParts {
  readonly session: Session;
  readonly rotator: Rotator;
  /** Conversations in clear that the person chose. */
  readonly clearChosen: Set<string>;
  /** The last send of each conversation: the next one begins after it. */
  readonly sending: Map<string, Promise<unknown>>;
  /** Sends tell the service keyed hashes of their words. */
  readonly isSearchable: boolean;
  /** Writes to the socket of `Client.events`; false while there is none. */
  readonly sendFrame: (frame: Frame) => boolean;
}

export class Conversation {
  constructor(
    readonly id: string,
    private readonly parts: ConversationParts,
  ) {}

  get #http(): Session["options"]["http"] {
    return this.parts.session.options.http;
  }

  async info(): Promise<ConversationInfo> {
    const { info, room } = await this.parts.session.load(this.id);
    const { epoch, rotationRequired } = room.server;
    return { ...info!, epoch, rotation_required: rotationRequired };
  }

  /** The person's visible choice to write in clear to somebody who does not speak `bp1`. */
  chooseClear(): void {
    this.parts.clearChosen.add(this.id);
  }

  /** Sends of a conversation are stored in the order in which they were called. */
  send(content: string | JsonObject, options: SendOptions = {}): Promise<Sent> {
    const { sending } = this.parts;
    const before = sending.get(this.id) ?? Promise.resolve();
    const sent = before.then(() => this.#send(content, options));
    sending.set(
      this.id,
      sent.catch(() => {}),
    );
    return sent;
  }

  async #send(content: string | JsonObject, options: SendOptions): Promise<Sent> {
    const body: JsonObject =
      typeof content === "string" ? { type: "text", text: content } : content;
    const clientMessageId = options.clientMessageId ?? newUlid();
    const answered = options.inReplyTo;
    const payload = await this.payload(body, clientMessageId, options);
    const searchTokens = options.searchTokens ?? (await this.#tokens(body, payload));
    const sent = await this.#http.data<Sent>({
      method: "POST",
      path: `/conversations/${this.id}/messages`,
      body: {
        payload,
        client_message_id: clientMessageId,
        ...(answered ? { in_reply_to: answered.message.message_id } : {}),
        ...(options.to?.length ? { recipients: options.to } : {}),
        ...(options.refs?.length ? { refs: options.refs } : {}),
        ...(searchTokens.length ? { search_tokens: searchTokens } : {}),
      },
      repeatable: true,
    });
    await this.parts.session.sent(sent, payload);
    return sent;
  }

  async #tokens(content: JsonObject, payload: JsonObject): Promise<readonly string[]> {
    const { session, isSearchable } = this.parts;
    return isSearchable ? messageTokens(session, this.id, content, payload) : [];
  }

  /**
   * The messages whose text has all these words, the newest first: those that clients with
   * `searchable` have sent in the newest eight epochs whose secrets this device holds. Each epoch
   * counts as a search. Throws `UsageError` without a word, or with more than 16.
   */
  async *search(text: string): AsyncGenerator<components["schemas"]["SearchHit"]> {
    const words = searchWords(text);
    if (words.length === 0 || words.length > MAX_SEARCH_TOKENS) {
      throw new UsageError(`a search takes 1 to ${MAX_SEARCH_TOKENS} words`);
    }
    for (const tokens of await epochTokens(this.parts.session, this.id, words)) {
      yield* this.#http.pages<components["schemas"]["SearchHit"]>("/search", {
        tokens: tokens.join(","),
      });
    }
  }

  /** The payload of a message with this id, sealed unless the conversation is in clear. */
  async payload(
    body: JsonObject,
    clientMessageId: string,
    options: SendOptions,
  ): Promise<JsonObject> {
    if (!(await this.#isToBeSealed())) return body;
    const { session } = this.parts;
    const content = await fittingContent(this.#http, "/files", this.id, body);
    const answered = options.inReplyTo;
    const epoch = answered?.opened?.epoch ?? null;
    await this.prepare(epoch);
    const re = answered?.opened?.re;
    const place = {
      kind: Kind.message,
      clientMessageId,
      inReplyTo: answered?.message.message_id,
    };
    const seal = (): Promise<JsonObject> =>
      session.sealPayload(this.id, place, re ? { ...content, re } : content, {
        answering: epoch ?? undefined,
        addressed: options.to,
      });
    try {
      return await seal();
    } catch (error) {
      if (!(error instanceof KeyUnavailable)) throw error;
      // Members or keys have changed between the two.
      await this.prepare(epoch);
      return seal();
    }
  }

  /** Makes a fresh secret if one is due before something is sealed, at least of this epoch. */
  async prepare(answering: number | null = null): Promise<void> {
    const { session, rotator } = this.parts;
    const isDue = needsRotation(await session.load(this.id), session.options.self, answering);
    if (isDue) await rotator.rotate(this.id);
  }

  /** Throws `KeyUnavailable` where a member speaks no `bp1` and nobody chose clear text. */
  async #isToBeSealed(): Promise<boolean> {
    const { session, clearChosen } = this.parts;
    const { room } = await session.load(this.id);
    const writing = room.writing(session.options.pins, clearChosen.has(this.id));
    if (writing === "ask_person") {
      throw new KeyUnavailable("somebody here does not speak bp1; chooseClear() writes in clear");
    }
    return writing === "encrypted";
  }

  /** Answers a message. */
  reply(
    message: ReceivedMessage,
    content: string | JsonObject,
    options: Omit<SendOptions, "inReplyTo"> = {},
  ): Promise<Sent> {
    return this.send(content, { ...options, inReplyTo: message });
  }

  /** Replaces the content of a text or a file that this person has sent. */
  async edit(
    message: ReceivedMessage,
    content: string | JsonObject,
    options: { readonly to?: readonly string[] } = {},
  ): Promise<Sent> {
    if (!this.#isOwn(message)) throw new UsageError("only the author edits a message");
    const body = typeof content === "string" ? { type: "text", text: content } : content;
    return this.#change(message, (target) => editContent(target, body), options);
  }

  /**
   * Takes a message back: its author says so, and the service forgets the payload. An owner or an
   * admin of a group can delete the messages of others.
   */
  async delete(message: ReceivedMessage): Promise<void> {
    if (message.opened && this.#isOwn(message)) await this.#change(message, deleteContent);
    const path = `/conversations/${this.id}/messages/${message.message.message_id}`;
    await this.#http.data({ method: "DELETE", path, repeatable: true });
  }

  /** Puts an emoji beside a message, or takes one's own away. */
  async react(
    message: ReceivedMessage,
    emoji: string,
    options: { readonly remove?: boolean } = {},
  ): Promise<Sent> {
    return this.#change(message, (target) => reactionContent(target, emoji, options));
  }

  #change(
    { message, opened }: ReceivedMessage,
    make: (target: JsonObject) => JsonObject,
    options: SendOptions = {},
  ): Promise<Sent> {
    if (!opened) throw new UsageError("a message that does not open cannot be changed");
    const content = make(target(message.message_id, opened.re));
    return this.send(content, { ...options, refs: [message.message_id] });
  }

  #isOwn({ message: { sender } }: ReceivedMessage): boolean {
    const { self } = this.parts.session.options;
    return sender.type === self.type && isSameId(sender.id, self.id);
  }

  /** Answers an agent's question by one of its choices, or by a text. */
  async answer(
    question: ReceivedMessage,
    answer: string | { readonly text: string },
  ): Promise<void> {
    if (question.opened?.content["type"] === "approval") {
      const { session } = this.parts;
      const approval = await readApproval(session, question.message.message_id);
      const userId = session.options.self.id;
      const request = await ApprovalRequest.open({ approval, conversation: this, session, userId });
      await request.answer(answer);
      return;
    }
    const isChoice = typeof answer === "string";
    const content: JsonObject = isChoice ? { choice: answer } : { text: answer.text };
    await this.send({ type: "answer", ...content }, { inReplyTo: question });
  }

  /** Uploads a file and sends the message that names it. */
  async sendFile(file: NewFile, options: SendOptions = {}): Promise<Sent> {
    const content = await uploadFile(this.#http, "/files", this.id, file);
    return this.send(content as unknown as JsonObject, options);
  }

  /** The bytes of a file message. */
  downloadFile(content: JsonObject): Promise<Uint8Array> {
    return downloadFile(this.#http, content as unknown as FileContent);
  }

  /**
   * Stops what agents do here: all of it, or an agent's, or the answer to a message. Answers the
   * number of agents that were told.
   */
  async stop(
    options: { readonly agentId?: string; readonly inReplyTo?: ReceivedMessage } = {},
  ): Promise<number> {
    const { agentId, inReplyTo } = options;
    const told = await this.#http.data<{ stopped: number }>({
      method: "POST",
      path: `/conversations/${this.id}/stop`,
      body: {
        ...(agentId ? { agent_id: agentId } : {}),
        ...(inReplyTo ? { in_reply_to: inReplyTo.message.message_id } : {}),
      },
      repeatable: true,
    });
    return told.stopped;
  }

  /**
   * The streams that agents are writing here now, oldest first. `Client.events` brings all that they
   * have written so far, and then goes on.
   */
  async streams(): Promise<LiveStream[]> {
    const path = `/conversations/${this.id}/streams`;
    const live = await this.#http.data<LiveStream[]>({ method: "GET", path });
    for (const { stream_id } of live) this.parts.sendFrame({ type: "stream.sync", stream_id });
    return live;
  }

  /** Makes a fresh secret at once. Throws `KeyUnavailable` where the server refuses one. */
  rotate(): Promise<void> {
    return this.parts.rotator.rotate(this.id);
  }

  /** Adds people to a group. The next send has a fresh secret for all. */
  async addMembers(...userIds: readonly string[]): Promise<void> {
    const path = `/groups/${this.id}/members`;
    await this.#http.data({ method: "POST", path, body: { user_ids: userIds } });
    this.parts.session.forget(this.id);
  }

  /** Another role for a member of a group. */
  async setRole(principalId: string, role: "owner" | "admin" | "member"): Promise<void> {
    const path = `/groups/${this.id}/members/${principalId}`;
    await this.#http.data({ method: "PATCH", path, body: { role } });
  }

  /** Another title, which the service reads. */
  setTitle(title: string): Promise<void> {
    return this.#update({ title });
  }

  /** From now on the service takes nothing in clear here. There is no way back. */
  requireEncryption(): Promise<void> {
    return this.#update({ encryption: "required" });
  }

  async #update(body: object): Promise<void> {
    await this.#http.data({ method: "PATCH", path: `/conversations/${this.id}`, body });
    this.parts.session.forget(this.id);
  }

  /** Removes an agent from a group, and rotates at once. */
  removeAgent(instanceId: string): Promise<void> {
    return this.#remove(`/groups/${this.id}/agent-instances/${instanceId}`);
  }

  /** Invites an agent to a group; an `addressed` one reads only what names it. */
  async addAgent(
    agentId: string,
    visibility: "addressed" | "all" = "addressed",
  ): Promise<AgentInstance> {
    const instance = await this.#http.data<AgentInstance>({
      method: "POST",
      path: `/groups/${this.id}/agent-instances`,
      body: { agent_id: agentId, visibility },
    });
    this.parts.session.forget(this.id);
    return instance;
  }

  /**
   * Removes somebody from a group, and rotates at once. Throws `KeyUnavailable` if the server
   * refuses the fresh secret: then nothing more is sent here before there is one.
   */
  removeMember(principalId: string): Promise<void> {
    return this.#remove(`/groups/${this.id}/members/${principalId}`);
  }

  async #remove(path: string): Promise<void> {
    await this.#http.data({ method: "DELETE", path });
    await this.parts.session.mustRotate(this.id);
    await this.rotate();
  }

  /** Asks the other person of a conversation of two for a fresh secret. */
  async requestRotation(): Promise<void> {
    const body = { conversation_id: this.id };
    await this.#http.data({ method: "POST", path: "/keys/rotation/request", body });
  }

  /**
   * Newest first, `limit` a page. A reply to a message that was not read yet stands under the
   * notice `no_quote`.
   */
  async *history(options: { limit?: number } = {}): AsyncGenerator<ReceivedMessage> {
    const path = `/conversations/${this.id}/messages`;
    let cursor: string | undefined;
    do {
      const query = { limit: options.limit ?? 50, cursor };
      const page = await this.#http.call<Message[]>({ method: "GET", path, query });
      yield* (await this.#openAll(page.data.reverse())).reverse();
      cursor = page.nextCursor ?? undefined;
    } while (cursor);
  }

  /** Pages of the history, the newest first, with the messages that refer to theirs. */
  async *pages(options: { limit?: number } = {}): AsyncGenerator<HistoryPage> {
    const path = `/conversations/${this.id}/messages`;
    let cursor: string | undefined;
    do {
      const query = { limit: options.limit ?? 50, cursor, include: "refs" };
      const page = await this.#http.call<Message[]>({ method: "GET", path, query });
      const messages = (await this.#openAll(page.data.reverse())).reverse();
      const refs = await this.#openAll((page.body["refs"] as Message[] | undefined) ?? []);
      yield { messages, refs, refsTruncated: page.body["refs_truncated"] === true };
      cursor = page.nextCursor ?? undefined;
    } while (cursor);
  }

  /** A message is known before the replies to it. */
  async #openAll(messages: readonly Message[]): Promise<ReceivedMessage[]> {
    const opened: ReceivedMessage[] = [];
    for (const message of messages) opened.push(await this.open(message, false));
    return opened;
  }

  /** `isLive`: from the inbox, not from the history. */
  async open(message: Message, isLive: boolean): Promise<ReceivedMessage> {
    const { session } = this.parts;
    if (isGone(message)) return { message, opened: null, fault: null };
    try {
      if (message.payload?.["type"] !== "encrypted") return await this.#openClear(message);
      const opened = await session.openMessage(message, isLive);
      return { message, opened, fault: null };
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      return { message, opened: null, fault: error };
    }
  }

  /** In a conversation that was encrypted, clear text can be the server's own. */
  async #openClear(message: Message): Promise<ReceivedMessage> {
    const { session, clearChosen } = this.parts;
    const isChosen = clearChosen.has(this.id) && !(await session.wasEncrypted(this.id));
    if (!isChosen) throw new DecryptError("clear");
    return { message, opened: session.clearMessage(message), fault: null };
  }

  async markRead(message: ReceivedMessage): Promise<void> {
    await this.#http.data({
      method: "POST",
      path: `/conversations/${this.id}/read`,
      body: { message_id: message.message.message_id },
    });
  }
}
