/** Where an envelope belongs: what the server could change there makes it fail. */
import { type Bytes, concat, idBytes, label, lp, u64 } from "./bytes.js";
import { type Principal, principalBytes } from "./keys.js";
import { sha256 } from "./primitives.js";

/** The kinds of envelopes. */
export const Kind = { message: 1, delta: 2, request: 3, response: 4 } as const;
export type Kind = (typeof Kind)[keyof typeof Kind];

export interface MessagePlace {
  readonly kind: typeof Kind.message;
  readonly clientMessageId: string;
  readonly inReplyTo?: string | null | undefined;
}

/** The number under which a status of a stream is sealed. */
export const STATUS_NUMBER = Number.MAX_SAFE_INTEGER;

/** Of a piece of a stream, of a checkpoint up to it, or of a status. */
export interface DeltaPlace {
  readonly kind: typeof Kind.delta;
  readonly streamId: string;
  readonly n: number;
}

export interface RequestPlace {
  readonly kind: typeof Kind.request;
  /** The user who is asked. */
  readonly userId: string;
  readonly requestId: string;
  readonly tool: string;
  readonly scope: string;
  readonly deviceId?: string | null | undefined;
}

export interface ResponsePlace {
  readonly kind: typeof Kind.response;
  readonly digest: Uint8Array;
  readonly requestId: string;
  readonly status: string;
  readonly reason?: string | null | undefined;
}

export type Place = MessagePlace | DeltaPlace | RequestPlace | ResponsePlace;

/** `ctx` of an envelope. */
export function contextBytes(place: Place): Bytes {
  switch (place.kind) {
    case Kind.message: {
      const answered = place.inReplyTo ? idBytes(place.inReplyTo) : new Uint8Array(16);
      return concat(idBytes(place.clientMessageId), answered);
    }
    case Kind.delta:
      return concat(lp(place.streamId), u64(place.n));
    case Kind.request:
      return concat(
        idBytes(place.userId),
        lp(place.requestId),
        lp(place.tool),
        lp(place.scope),
        lp(place.deviceId ?? ""),
      );
    case Kind.response:
      return concat(place.digest, lp(place.requestId), lp(place.status), lp(place.reason ?? ""));
  }
}

/** The hash of the request that a response agrees to, word for word. */
export function requestDigest(
  conversation: Uint8Array,
  agent: Principal,
  place: RequestPlace,
  content: Uint8Array,
): Promise<Bytes> {
  return sha256(
    label("request"),
    conversation,
    principalBytes(agent),
    contextBytes(place),
    content,
  );
}
