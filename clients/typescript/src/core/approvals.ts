/** Approvals as the service shows them, and the receipts of their decisions. */
import { type KeyOf, type Proof, questionDigest, verifyReceipt } from "../e2ee/approval.js";
import { base64 } from "../e2ee/bytes.js";
import type { JsonObject } from "../e2ee/content.js";
import { DecryptError } from "../e2ee/errors.js";
import { isSameId, type OpenedMessage } from "./opened.js";
import type { Session } from "./session.js";
import type { Message } from "./types.js";

const HISTORY_PAGE_MESSAGES = 100;

export type ApprovalState =
  | "open"
  | "approved"
  | "answered"
  | "denied"
  | "expired"
  | "withdrawn";

/** A person's decision, as the service shows it. */
export interface DecisionItem {
  readonly user_id: string;
  readonly decision: string;
  readonly decided_at: string;
  readonly answer_digest: string | null;
  readonly key_id: string;
  readonly signature: string;
  readonly message_id?: string | null;
}

/** An approval as the service shows it. Its question stands in the message of the same id. */
export interface Approval {
  readonly approval_id: string;
  readonly conversation_id: string;
  readonly agent_id: string;
  readonly seq: number;
  readonly kind: "approve" | "ask";
  readonly digest: string;
  readonly asked: readonly string[];
  readonly quorum: number;
  readonly deny_quorum: number;
  readonly decisions: readonly DecisionItem[];
  readonly state: ApprovalState;
  readonly reason?: string | null;
  readonly created_at: string;
  readonly expires_at: string;
  readonly closed_at: string | null;
}

/** An approval with the texts that its signatures are of. It is proof without the service. */
export class Receipt {
  constructor(
    readonly approval: Approval,
    /** The question's content, as it was sealed. */
    readonly question: string,
    /** The answers' contents by user, as they were sealed. */
    readonly answers: Readonly<Record<string, string>> = {},
  ) {}

  /** A receipt from a store; `verify` finds what is wrong with it. */
  static from(stored: { approval: Approval; question: string; answers?: Record<string, string> }): Receipt {
    return new Receipt(stored.approval, stored.question, stored.answers ?? {});
  }

  /** Verifies it with the keys that `keyOf` finds. Throws `ReceiptError`. */
  verify(keyOf: KeyOf): Promise<Proof> {
    return verifyReceipt({ ...this } as unknown as JsonObject, keyOf);
  }
}

/** Whether this content is the question that was asked. */
export async function isQuestionOf(approval: Approval, question: OpenedMessage): Promise<boolean> {
  const isSame = base64(await questionDigest(question.source)) === approval.digest;
  const { type, id } = question.sender;
  return isSame && type === "agent" && isSameId(id, approval.agent_id);
}

/** The messages of an approval and of its decisions. */
export interface ApprovalMessages {
  readonly question: Message | null;
  /** By user. */
  readonly answers: ReadonlyMap<string, Message>;
}

export async function approvalMessages(
  session: Session,
  approval: Approval,
): Promise<ApprovalMessages> {
  const deciders = approval.decisions.filter((each) => each.message_id);
  const wanted = [approval.approval_id, ...deciders.map((each) => each.message_id!)];
  const found = await messagesSince(session, approval, wanted);
  const named = (id: string): Message | undefined =>
    found.find((message) => isSameId(message.message_id, id));
  const answers = new Map<string, Message>();
  for (const { user_id, message_id } of deciders) {
    const message = named(message_id!);
    if (message) answers.set(user_id, message);
  }
  return { question: named(approval.approval_id) ?? null, answers };
}

async function messagesSince(
  session: Session,
  approval: Approval,
  wanted: readonly string[],
): Promise<Message[]> {
  const { self, http } = session.options;
  const own = self.type === "agent" ? `/agents/${self.id}` : "";
  const path = `${own}/conversations/${approval.conversation_id}/messages`;
  const found: Message[] = [];
  for await (const message of http.pages<Message>(path, { limit: HISTORY_PAGE_MESSAGES })) {
    if (message.seq < approval.seq) break;
    if (wanted.some((id) => isSameId(id, message.message_id))) found.push(message);
    if (found.length === wanted.length) break;
  }
  return found;
}

/** The message, opened or as it came in clear; null if it is neither. */
async function openEither(
  session: Session,
  message: Message,
  mayBeClear: boolean,
): Promise<OpenedMessage | null> {
  if (message.payload?.["type"] !== "encrypted") {
    const isClear = mayBeClear && !(await session.isEncrypted(message.conversation_id));
    return isClear ? session.clearMessage(message) : null;
  }
  try {
    return await session.openMessage(message, false);
  } catch (error) {
    if (error instanceof DecryptError) return null;
    throw error;
  }
}

/** The receipt of an approval. Answers that do not open are left out. */
export async function makeReceipt(
  session: Session,
  approval: Approval,
  question: OpenedMessage,
  messages: ApprovalMessages,
  mayBeClear: boolean,
): Promise<Receipt> {
  const answers: Record<string, string> = {};
  for (const [user, message] of messages.answers) {
    const opened = await openEither(session, message, mayBeClear);
    const isDeciders = opened?.sender.type === "user" && isSameId(opened.sender.id, user);
    if (opened && isDeciders) answers[user] = opened.source;
  }
  return new Receipt(approval, question.source, answers);
}

/** Verifies a receipt with the keys that are accepted here. Throws `ReceiptError`. */
export async function verifyWithPins(session: Session, receipt: Receipt): Promise<Proof> {
  const { pins } = session.options;
  for (const { user_id: id, key_id } of receipt.approval.decisions) {
    const isKnown = pins.find({ type: "user", id }, key_id) !== undefined;
    if (!isKnown) {
      const { conversation_id } = receipt.approval;
      await session.directory.speaker(conversation_id, { type: "user", id });
    }
  }
  return receipt.verify((id, keyId) => {
    const pin = pins.find({ type: "user", id }, keyId);
    return pin && pin.standing !== "waiting" ? pin : null;
  });
}

/** An approval, as it stands. */
export function readApproval(session: Session, approvalId: string): Promise<Approval> {
  const path = `/approvals/${approvalId}`;
  return session.options.http.data<Approval>({ method: "GET", path });
}
