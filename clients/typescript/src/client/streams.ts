/** What agents write, while they write it. */
import type { JsonObject } from "../e2ee/content.js";
import { Kind, STATUS_NUMBER } from "../e2ee/context.js";
import { DecryptError } from "../e2ee/errors.js";
import { type Principal, principalName } from "../e2ee/keys.js";
import { Recent } from "../e2ee/native.js";
import type { Session } from "../core/session.js";
import type { Frame } from "../transport/socket.js";
import type { ClientEvent } from "./events.js";

/** Streams that are remembered: the agents of a person have a few each. */
const MAX_STREAMS = 1_000;
/** The wait for the pieces before the first one that came. Then it is shown without them. */
const SYNC_WAIT_MS = 2_000;

export interface StreamReaderParts {
  readonly session: Session;
  /** Writes a frame; false while there is no connection. */
  readonly send: (frame: Frame) => boolean;
  /** Something of a conversation does not open. */
  readonly tell: (reason: string, conversationId: string) => void;
}

/** What the frames of a stream have in common. */
interface StreamFrame {
  readonly conversationId: string;
  readonly streamId: string;
  readonly sender: Principal;
}

/**
 * Shows each piece once and in order. A stream that was joined in its middle is asked for. Nothing
 * of a stream counts once its message is there, or after five minutes.
 */
export class StreamReader {
  /** The number that a stream's next piece has at least: an earlier one was shown before. */
  readonly #nextPiece = new Recent<number>(MAX_STREAMS);
  /** When a stream was asked for that was joined in its middle. */
  readonly #askedAt = new Recent<number>(MAX_STREAMS);

  constructor(private readonly parts: StreamReaderParts) {}

  async read(frame: Frame): Promise<ClientEvent[]> {
    const { sender } = frame as { sender?: Principal };
    if (!sender) return [];
    const streamId = String(frame["stream_id"]);
    const conversationId = String(frame["conversation_id"]);
    const of: StreamFrame = { conversationId, streamId, sender };
    if (frame.type === "stream.cancel") {
      const { reason } = frame as { reason?: string };
      return [{ type: "stream_cancelled", ...of, reason: reason ?? null }];
    }
    if (this.parts.session.isRemembered(conversationId, sender, streamId)) return [];
    const n = Number(frame["n"]);
    switch (frame.type) {
      case "stream.begin":
        // Its agent has lost its node: what was shown may have a hole.
        if (frame["generation"]) this.#ask(streamId);
        return [];
      case "stream.delta":
        return this.#readDelta(frame, of, n);
      case "stream.checkpoint":
        return this.#readCheckpoint(frame, of, n);
      case "stream.status": {
        const { type, text } = await this.#open(frame, of, STATUS_NUMBER);
        if (type !== "status" || typeof text !== "string") return [];
        return [{ type: "status", ...of, text }];
      }
      default:
        return [];
    }
  }

  async #readDelta(frame: Frame, of: StreamFrame, n: number): Promise<ClientEvent[]> {
    const next = this.#nextPiece.get(nameOf(of));
    if (next !== undefined && n < next) return [];
    const { append } = await this.#open(frame, of, n);
    if (typeof append !== "string") return [];
    if (next === undefined && n > 0 && this.#waitsForThePast(of)) return [];
    this.#nextPiece.set(nameOf(of), n + 1);
    return [{ type: "delta", ...of, n, append }];
  }

  async #readCheckpoint(frame: Frame, of: StreamFrame, n: number): Promise<ClientEvent[]> {
    if (n + 1 < (this.#nextPiece.get(nameOf(of)) ?? 0)) return [];
    const { checkpoint: text } = await this.#open(frame, of, n);
    if (typeof text !== "string") return [];
    this.#nextPiece.set(nameOf(of), n + 1);
    return [{ type: "checkpoint", ...of, n, text }];
  }

  /** Asks once for a stream whose begin nobody here has seen. */
  #waitsForThePast(of: StreamFrame): boolean {
    const askedAt = this.#askedAt.get(nameOf(of));
    if (askedAt !== undefined) return Date.now() < askedAt + SYNC_WAIT_MS;
    this.#askedAt.set(nameOf(of), Date.now());
    this.#ask(of.streamId);
    return true;
  }

  #ask(streamId: string): void {
    this.parts.send({ type: "stream.sync", stream_id: streamId });
  }

  /** The content, or nothing where it does not open. */
  async #open(frame: Frame, of: StreamFrame, n: number): Promise<JsonObject> {
    const { conversationId, streamId, sender } = of;
    const { data } = frame as { data?: unknown };
    try {
      if (typeof data !== "string") throw new DecryptError("clear");
      const place = { kind: Kind.delta, streamId, n } as const;
      const shown = await this.parts.session.openText(conversationId, data, place, sender);
      return shown.opened!.content;
    } catch (error) {
      if (!(error instanceof DecryptError)) throw error;
      this.parts.tell(error.reason, conversationId);
      return {};
    }
  }
}

function nameOf({ sender, streamId }: StreamFrame): string {
  return `${principalName(sender)}:${streamId}`;
}
