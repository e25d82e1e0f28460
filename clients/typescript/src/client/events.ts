/** Events of a person's socket, opened and in order. */
import { DecryptError } from "../e2ee/errors.js";
import type { Principal } from "../e2ee/keys.js";
import { isOfItsConversation } from "../core/opened.js";
import { type Session, keysRead, observe } from "../core/session.js";
import type { EventObject, Grant, MemberChange, Message, ToolCall } from "../core/types.js";
import { BlindpipeError, Closed } from "../errors.js";
import type { HookCaller, Logger } from "../hooks.js";
import { Load } from "../transport/load.js";
import { type Frame, Socket, type WebSocketFactory } from "../transport/socket.js";
import type { Account } from "./account.js";
import type { Conversation, ReceivedMessage } from "./conversation.js";
import { StreamReader } from "./streams.js";
import { type ConsentKeeper, type ToolRequest, openToolRequest, withdrawGrant } from "./tool-requests.js";

/** An event that `events()` yields. */
export type ClientEvent =
  | ({
      readonly type: "message";
      readonly event: EventObject;
      readonly conversation: Conversation;
    } & ReceivedMessage)
  | { readonly type: "tool_request"; readonly event: EventObject; readonly request: ToolRequest }
  | { readonly type: "event"; readonly event: EventObject }
  /** A piece of a message that an agent is writing. It is shown and never acted on. */
  | {
      readonly type: "delta";
      readonly conversationId: string;
      readonly streamId: string;
      /** Rises within a stream. A piece that was lost on the way leaves a hole. */
      readonly n: number;
      readonly append: string;
      readonly sender: Principal;
    }
  /** All that an agent has written so far, up to piece `n`. It replaces the pieces before. */
  | {
      readonly type: "checkpoint";
      readonly conversationId: string;
      readonly streamId: string;
      readonly n: number;
      readonly text: string;
      readonly sender: Principal;
    }
  /** What an agent does while it writes nothing, such as a search. The next piece ends it. */
  | {
      readonly type: "status";
      readonly conversationId: string;
      readonly streamId: string;
      readonly text: string;
      readonly sender: Principal;
    }
  /** What an agent was writing becomes no message. */
  | {
      readonly type: "stream_cancelled";
      readonly conversationId: string;
      readonly streamId: string;
      readonly reason: string | null;
      readonly sender: Principal;
    }
  | {
      readonly type: "typing";
      readonly conversationId: string;
      readonly sender: Principal;
      readonly state: string;
    }
  | { readonly type: "caught_up" };

export interface EventReaderParts {
  readonly session: Session;
  readonly hooks: HookCaller;
  readonly logger: Logger;
  readonly consents: ConsentKeeper;
  /** Null before this device has keys. */
  readonly conversation: (id: string) => Conversation | null;
  /** Writes a frame; false while there is no connection. */
  readonly send: (frame: Frame) => boolean;
  /** Keys are being read because of the event: it is not acknowledged before the end of that. */
  readonly onReading: (read: Promise<void>) => void;
}

export class EventReader {
  readonly #streams: StreamReader;

  constructor(private readonly parts: EventReaderParts) {
    const { session, send } = parts;
    const tell = (reason: string, id: string): void => this.#tell(reason, null, id);
    this.#streams = new StreamReader({ session, send, tell });
  }

  async read(frame: Frame): Promise<ClientEvent[]> {
    switch (frame.type) {
      case "event":
        return this.#readEvent(frame as unknown as EventObject);
      case "typing":
        return [
          {
            type: "typing",
            conversationId: String(frame["conversation_id"]),
            sender: frame["sender"] as Principal,
            state: String(frame["state"]),
          },
        ];
      case "caught_up":
        return [{ type: "caught_up" }];
      default:
        return frame.type.startsWith("stream.") ? this.#streams.read(frame) : [];
    }
  }

  /** As far as an event can be shown that fails to be read for good. */
  unread(frame: Frame, error: unknown): ClientEvent[] {
    const event = frame as unknown as EventObject;
    this.parts.logger.warn("an event could not be read", { name: (error as Error).name });
    if (frame.type !== "event") return [];
    const isRefused = error instanceof BlindpipeError;
    const fault = new DecryptError(isRefused ? "no_epoch_key" : "malformed");
    if (event.event !== "message.created" && event.event !== "artifact_request") {
      return [{ type: "event", event }];
    }
    this.#undecryptable(event, fault);
    const conversation = event.conversation_id && this.parts.conversation(event.conversation_id);
    if (event.event !== "message.created" || !conversation) return [];
    const message = event.data as unknown as Message | null;
    // Of something without a sender there is nothing to show.
    if (!message?.sender) return [];
    return [{ type: "message", event, conversation, message, opened: null, fault }];
  }

  async #readEvent(event: EventObject): Promise<ClientEvent[]> {
    const { session, logger, onReading } = this.parts;
    await observe(event, session, logger);
    const read = keysRead(event, session, logger);
    if (read) onReading(read);
    await this.#withdraw(event);
    if (event.event === "message.created") return this.#readMessage(event);
    if (event.event === "artifact_request") return this.#readToolRequest(event);
    return [{ type: "event", event }];
  }

  /** What ends an agent's rights ends what this device remembers of it. */
  async #withdraw({ event, data }: EventObject): Promise<void> {
    const { consents, logger } = this.parts;
    try {
      if (event === "relation.revoked") {
        await consents.withdraw(null, String(data["agent_id"]), null);
      } else if (event === "grant.revoked") {
        await withdrawGrant(consents, data as unknown as Grant);
      } else if (event === "member.removed") {
        const { conversation_id, member } = data as unknown as MemberChange;
        if (member.principal_type !== "agent") return;
        await consents.withdraw(conversation_id, member.principal_id, null);
      }
    } catch (error) {
      logger.error("a withdrawal could not be kept", { name: (error as Error).name });
    }
  }

  async #readMessage(event: EventObject): Promise<ClientEvent[]> {
    const message = event.data as unknown as Message;
    const conversation = this.parts.conversation(event.conversation_id ?? message.conversation_id);
    if (!conversation) return [{ type: "event", event }];
    const received: ReceivedMessage = isOfItsConversation(event)
      ? await conversation.open(message, true)
      : { message, opened: null, fault: new DecryptError("malformed") };
    if (received.fault) this.#undecryptable(event, received.fault);
    if (received.opened?.isReplay) return [];
    if (received.opened?.encrypted)
      this.parts.session.remember(message, received.opened.sentAt);
    return [{ type: "message", event, conversation, ...received }];
  }

  async #readToolRequest(event: EventObject): Promise<ClientEvent[]> {
    try {
      const call = event.data as unknown as ToolCall;
      const { session, consents: keeper, conversation } = this.parts;
      const prepare = async (id: string): Promise<void> => conversation(id)?.prepare();
      const request = await openToolRequest(call, { session, keeper, prepare });
      if (!request) {
        this.#tell("not_member", event.event_id, event.conversation_id ?? null);
        return [];
      }
      return [{ type: "tool_request", event, request }];
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      this.#undecryptable(event, error);
      return [];
    }
  }

  #undecryptable(event: EventObject, fault: DecryptError): void {
    this.#tell(fault.reason, event.event_id, event.conversation_id ?? null);
  }

  #tell(reason: string, event_id: string | null, conversation_id: string | null): void {
    this.parts.hooks.call("undecryptable", { reason, event_id, conversation_id });
  }
}

/** Frames in order, for the caller that asks next. */
export class FrameQueue implements AsyncIterable<Frame> {
  #frames: { readonly frame: Frame; readonly length: number }[] = [];
  readonly load = new Load();
  /** Frames before this one were taken. */
  #at = 0;
  #wake: (() => void) | null = null;
  #ended: { error: unknown } | null = null;

  push(frame: Frame, length: number): void {
    this.load.add(length);
    this.#frames.push({ frame, length });
    this.#wake?.();
  }

  end(error: unknown): void {
    this.#ended ??= { error };
    this.#wake?.();
    this.load.release();
  }

  #shift(): Frame | undefined {
    const next = this.#frames[this.#at];
    if (next === undefined) return undefined;
    this.#at += 1;
    if (this.#at * 2 > this.#frames.length) {
      this.#frames = this.#frames.slice(this.#at);
      this.#at = 0;
    }
    this.load.remove(next.length);
    return next.frame;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Frame> {
    for (;;) {
      const frame = this.#shift();
      if (frame) yield frame;
      else if (this.#ended) {
        const { error } = this.#ended;
        if (error && !(error instanceof Closed && error.closeCode === null)) throw error;
        return;
      } else {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        this.#wake = null;
      }
    }
  }
}

export interface EventSocketParts {
  readonly url: string;
  readonly webSocket: WebSocketFactory;
  readonly hooks: HookCaller;
  readonly account: Account;
  /** The devices that hold the places. */
  readonly holders: () => Promise<readonly string[]>;
  readonly missedEvents: () => void;
  readonly queue: FrameQueue;
  readonly signal: AbortSignal;
}

/** A socket that fills the queue, and leaves a backlog on the server while the queue is full. */
export function eventSocket(parts: EventSocketParts): Socket {
  const { account, hooks, queue } = parts;
  let received: string | null = null;
  let isDropped = false;
  const socket: Socket = new Socket({
    url: parts.url,
    webSocket: parts.webSocket,
    hooks,
    auth: async () => {
      await queue.load.room();
      const access_token = await account.token();
      return { type: "auth", access_token, ...(received ? { resume: received } : {}) };
    },
    renew: () => account.renew(),
    holders: parts.holders,
    onReady: () => (isDropped = false),
    onFrame: (frame, length) => {
      if (isDropped) return;
      if (frame.type === "event") received = String(frame["cursor"]);
      if (frame.type === "resync_required") {
        received = String(frame["head"]);
        parts.missedEvents();
        hooks.call("resync", { oldest: String(frame["oldest"]), head: received });
      }
      queue.push(frame, length);
      if (!queue.load.isFull) return;
      isDropped = true;
      socket.drop();
    },
    signal: parts.signal,
  });
  return socket;
}
