/** Ids that follow from an event: a handler that runs again sends nothing twice. */
import { type Bytes, concat, hex, idBytes, label, lp, ulid } from "./bytes.js";
import { type Principal, principalBytes } from "./keys.js";
import { sha256 } from "./primitives.js";

/** Where a reply comes from: a signed message, or any other event. */
export interface Origin {
  readonly hash: Bytes;
  /** Its first six bytes are the time in every id that follows. */
  readonly id: Bytes;
}

export async function messageOrigin(
  conversationId: string,
  sender: Principal,
  clientMessageId: string,
): Promise<Origin> {
  const id = idBytes(clientMessageId);
  const hash = await sha256(label("origin"), idBytes(conversationId), principalBytes(sender), id);
  return { hash, id };
}

export async function eventOrigin(eventId: string): Promise<Origin> {
  const id = idBytes(eventId);
  return { hash: await sha256(label("event"), id), id };
}

/** For other systems' idempotency keys. */
export function originKey(origin: Origin): string {
  return hex(origin.hash.subarray(0, 16));
}

/** The `client_message_id` of the send called `name`: its number from 0, or the key given. */
export async function replyId(agentId: string, origin: Origin, name: string): Promise<string> {
  const hash = await sha256(label("reply"), idBytes(agentId), origin.hash, lp(name));
  return ulid(concat(origin.id.subarray(0, 6), hash.subarray(0, 10)));
}
