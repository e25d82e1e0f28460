/** A conversation as a person sees it. */
import { newUlid } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { Kind } from "../e2ee/context.js";
import { DecryptError, KeyUnavailable } from "../e2ee/errors.js";
import type { FileContent } from "../e2ee/file.js";
import { downloadFile, type NewFile, uploadFile } from "../core/files.js";
import type { OpenedMessage } from "../core/opened.js";
import type { Session } from "../core/session.js";
import type {
  AgentInstance,
  Conversation as ConversationInfo,
  Message,
  Sent,
} from "../core/types.js";
import { type Rotator, needsRotation } from "./rotation.js";

export interface SendOptions {
  /** A client that repeats a send across processes keeps this id. */
  readonly clientMessageId?: string;
  readonly inReplyTo?: ReceivedMessage;
  /** Ids of `addressed` agents that can read it. */
  readonly to?: readonly string[];
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
    const payload = await this.#payload(body, clientMessageId, options);
    const sent = await this.#http.data<Sent>({
      method: "POST",
      path: `/conversations/${this.id}/messages`,
      body: {
        payload,
        client_message_id: clientMessageId,
        ...(answered ? { in_reply_to: answered.message.message_id } : {}),
        ...(options.to?.length ? { recipients: options.to } : {}),
      },
      repeatable: true,
    });
    await this.parts.session.sent(sent, payload);
    return sent;
  }

  async #payload(
    body: JsonObject,
    clientMessageId: string,
    options: SendOptions,
  ): Promise<JsonObject> {
    if (!(await this.#isToBeSealed())) return body;
    const { session } = this.parts;
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
      session.sealPayload(this.id, place, re ? { ...body, re } : body, {
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

  /** Answers an agent's question by one of its choices, or by a text. */
  answer(question: ReceivedMessage, answer: string | { readonly text: string }): Promise<Sent> {
    const isChoice = typeof answer === "string";
    const content: JsonObject = isChoice ? { choice: answer } : { text: answer.text };
    return this.send({ type: "answer", ...content }, { inReplyTo: question });
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
  async removeMember(principalId: string): Promise<void> {
    const path = `/groups/${this.id}/members/${principalId}`;
    await this.#http.data({ method: "DELETE", path });
    await this.parts.session.mustRotate(this.id);
    await this.rotate();
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
      const newestFirst: ReceivedMessage[] = [];
      // A message is known before the replies to it.
      for (const message of page.data.reverse())
        newestFirst.unshift(await this.open(message, false));
      yield* newestFirst;
      cursor = page.nextCursor ?? undefined;
    } while (cursor);
  }

  /** `isLive`: from the inbox, not from the history. */
  async open(message: Message, isLive: boolean): Promise<ReceivedMessage> {
    const { session } = this.parts;
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
