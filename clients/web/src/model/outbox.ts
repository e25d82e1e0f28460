/**
 * Messages on their way. They wait in memory while the line is away, and go in their order when it is back. Each has an
 * id of its own, under which the service takes it once.
 */
import { signal } from "@preact/signals";
import { type Conversation, IdempotencyConflict, isOutage, type ReceivedMessage } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { hasNetwork, waitForLine } from "./line.js";

export interface Waiting {
  /** Its `client_message_id`. */
  readonly id: string;
  readonly conversation: Conversation;
  readonly text: string;
  readonly inReplyTo: ReceivedMessage | null;
  readonly createdAt: string;
  /** `stored`: the service has it, and its event is still to come. */
  readonly state: "waiting" | "stored" | "failed";
  readonly fault: unknown;
}

/** In the order of their writing. */
export const outbox = signal<readonly Waiting[]>([]);

const sending = new Set<string>();

addEventListener("beforeunload", (event) => {
  // They are nowhere else.
  if (outbox.value.some(({ state }) => state !== "stored")) event.preventDefault();
});

export function post(conversation: Conversation, text: string, inReplyTo: ReceivedMessage | null): void {
  const createdAt = new Date().toISOString();
  const made = { id: newUlid(), conversation, text, inReplyTo, createdAt, state: "waiting", fault: null } as const;
  outbox.value = [...outbox.value, made];
  void send(conversation.id);
}

export function again({ id, conversation }: Waiting): void {
  change(id, { state: "waiting", fault: null });
  void send(conversation.id);
}

export function discard({ id, conversation }: Waiting): void {
  outbox.value = outbox.value.filter((one) => one.id !== id);
  void send(conversation.id);
}

/** The service has told of a message: it waits no longer. */
export function arrived(message: { readonly client_message_id?: string | null }): void {
  outbox.value = outbox.value.filter(({ id }) => id !== message.client_message_id);
}

export function clearOutbox(): void {
  outbox.value = [];
}

function change(id: string, to: Partial<Waiting>): void {
  outbox.value = outbox.value.map((one) => (one.id === id ? { ...one, ...to } : one));
}

/** One at a time: a message that fails for good holds up those behind it until the person decides. */
async function send(conversationId: string): Promise<void> {
  if (sending.has(conversationId)) return;
  sending.add(conversationId);
  try {
    for (;;) {
      const next = outbox.value.find(
        ({ conversation, state }) => conversation.id === conversationId && state !== "stored",
      );
      if (next?.state !== "waiting") return;
      await sendOne(next);
    }
  } finally {
    sending.delete(conversationId);
  }
}

async function sendOne({ id, conversation, text, inReplyTo }: Waiting): Promise<void> {
  // Without a network a try would only begin the waits between tries.
  if (!hasNetwork.peek()) return waitForLine();
  try {
    await conversation.send(text, { clientMessageId: id, ...(inReplyTo ? { inReplyTo } : {}) });
    change(id, { state: "stored" });
  } catch (error) {
    // An earlier try has arrived, though its answer has not.
    if (error instanceof IdempotencyConflict) change(id, { state: "stored" });
    else if (isOutage(error)) await waitForLine();
    else change(id, { state: "failed", fault: error });
  }
}
