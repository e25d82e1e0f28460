/** The newest messages of a conversation, in the form in which the cache keeps them. */
import { DecryptError, type ReceivedMessage } from "@blindpipe/client";

/** The messages that are kept of a conversation: the service's newest page. */
export const MAX_KEPT_MESSAGES = 100;
const MAX_KEPT_REFS = 300;
/** Characters of the contents that are kept of a conversation, so that it fits its row. */
const MAX_KEPT_CHARACTERS = 120_000;

/** Without what was sealed, and without what a page needs only while it opens a message. */
interface KeptMessage extends Pick<ReceivedMessage, "message"> {
  readonly opened: (Omit<NonNullable<ReceivedMessage["opened"]>, "sentAt"> & { readonly sentAt: string | null }) | null;
  readonly fault: DecryptError["reason"] | null;
}

export interface KeptPage {
  readonly messages: readonly KeptMessage[];
  readonly refs: readonly KeptMessage[];
}

export const NO_PAGE: KeptPage = { messages: [], refs: [] };

export function keep({ message, opened, fault }: ReceivedMessage): KeptMessage {
  return {
    message: { ...message, payload: (message.payload === null ? null : {}) as never },
    opened: opened && { ...opened, source: "", notices: [], sentAt: opened.sentAt?.toISOString() ?? null },
    fault: fault?.reason ?? null,
  };
}

export function restore({ message, opened, fault }: KeptMessage): ReceivedMessage {
  return {
    message,
    opened: opened && { ...opened, sentAt: opened.sentAt === null ? null : new Date(opened.sentAt) },
    fault: fault && new DecryptError(fault),
  };
}

/** The newest of them, within the bounds. */
export function bounded(messages: Iterable<KeptMessage>, refs: Iterable<KeptMessage>): KeptPage {
  const newest = latest(messages, MAX_KEPT_MESSAGES);
  let left = MAX_KEPT_CHARACTERS;
  const fitting = (one: KeptMessage): boolean => (left -= JSON.stringify(one.opened).length) >= 0;
  const kept: KeptMessage[] = [];
  for (const one of newest) {
    if (!fitting(one)) break;
    kept.push(one);
  }
  return { messages: kept.reverse(), refs: latest(refs, MAX_KEPT_REFS).filter(fitting) };
}

/** The latest first. */
function latest(all: Iterable<KeptMessage>, count: number): KeptMessage[] {
  const bySeq = new Map([...all].map((one) => [one.message.seq, one]));
  return [...bySeq.values()].sort((one, other) => other.message.seq - one.message.seq).slice(0, count);
}

/** The page with one more message. */
export function withMessage(page: KeptPage | null, received: ReceivedMessage): KeptPage {
  const { messages, refs } = page ?? NO_PAGE;
  return bounded([...messages, keep(received)], refs);
}

/** The page without the payload of a message. */
export function withoutPayload(page: KeptPage | null, messageId: string): KeptPage | null {
  if (!page) return null;
  const empty = (one: KeptMessage): KeptMessage =>
    one.message.message_id === messageId
      ? { message: { ...one.message, payload: null as never }, opened: null, fault: null }
      : one;
  return { messages: page.messages.map(empty), refs: page.refs.map(empty) };
}
