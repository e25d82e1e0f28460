/** Approvals: asked by one process, decided by people days later, acted on by any process. */
import { ReceiptError, clearContent, questionDigest } from "../e2ee/approval.js";
import { base64, fromUtf8, random } from "../e2ee/bytes.js";
import { type JsonObject, encodeContent } from "../e2ee/content.js";
import { Kind } from "../e2ee/context.js";
import { DecryptError, UsageError } from "../e2ee/errors.js";
import {
  type Approval,
  type ApprovalState,
  type Receipt,
  approvalMessages,
  isQuestionOf,
  makeReceipt,
  readApproval,
  verifyWithPins,
} from "../core/approvals.js";
import type { Session } from "../core/session.js";
import { IdempotencyConflict } from "../generated/errors.js";
import type { Call } from "../transport/http.js";
import type { Draft, Outbox } from "./outbox.js";

export interface ApproveOptions {
  /** The question; the name without it. */
  readonly text?: string;
  /** The answers to choose from. With any, people choose instead of saying yes. */
  readonly choices?: readonly string[];
  /** Comes back with the decision. Everybody who can read the question can read it. */
  readonly state?: JsonObject;
  /** Ids of the people who are asked; all of the conversation without any. */
  readonly of?: readonly string[];
  /** How many must say yes; 1 without it. */
  readonly quorum?: number;
  /** How many end it with a no; 1 without it. */
  readonly denyQuorum?: number;
  /** The time until the deadline: `90s`, `15m`, `12h`; `3d` without it. */
  readonly expires?: string;
  /** A name of this send within the event, instead of its number. */
  readonly key?: string;
}

export interface ApprovalDraft extends ApproveOptions {
  /** `ask`: people answer instead of saying yes, also without choices. */
  readonly kind?: "ask";
}

/** A decision that is proven, or the end of an approval that nobody decided. */
export interface ApprovalResult {
  /**
   * `approved`, `answered` and `denied` are proven by signatures; `expired` and `withdrawn` are the
   * service's word.
   */
  readonly outcome: ApprovalState;
  readonly name: string;
  /** The words that people were shown. */
  readonly question: string;
  /** What was asked to be approved. */
  readonly arguments: JsonObject;
  /** The question's state. */
  readonly state: JsonObject;
  /** The choice of the earliest answer. */
  readonly choice: string | null;
  /** The words of the earliest answer or refusal. */
  readonly text: string | null;
  readonly approval: Approval;
  /** The proof, to be kept. */
  readonly receipt: Receipt;
}

const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 };
const DEFAULT_EXPIRY = "3d";
export const MAX_EXPIRY = "30d";
const NONCE_BYTES = 16;

/** The seconds of `90s`, `15m`, `12h` or `3d`. */
export function secondsOf(duration: string): number {
  const parts = /^(\d+)([smhd])$/.exec(duration);
  if (!parts) throw new UsageError("a duration is a number and s, m, h or d, such as 3d");
  return Number(parts[1]) * UNITS[parts[2]!]!;
}

/** A digest of a question that can be guessed would tell it, so it has a nonce. */
export function approvalContent(
  name: string,
  given: JsonObject,
  options: ApprovalDraft,
): JsonObject {
  const text = options.text ?? name;
  return {
    type: "approval",
    kind: options.kind ?? (options.choices?.length ? "ask" : "approve"),
    name,
    text,
    arguments: given,
    choices: [...(options.choices ?? [])],
    state: options.state ?? {},
    of: [...(options.of ?? [])],
    quorum: options.quorum ?? 1,
    deny_quorum: options.denyQuorum ?? 1,
    nonce: base64(random(NONCE_BYTES)),
    fallback: text,
  };
}

/** An agent's approvals. */
export class Approvals {
  constructor(
    private readonly session: Session,
    private readonly outbox: Outbox,
    private readonly agentId: string,
    private readonly allowsClear: boolean,
  ) {}

  /** Asks. Asked again under the same id, it answers the first one. */
  async ask(draft: Draft, { of, expires }: ApproveOptions): Promise<Approval> {
    const earlier = await this.outbox.sentAgesAgo(draft);
    if (earlier) return this.read(earlier.message_id);
    const call = await this.#call(draft, of ?? [], secondsOf(expires ?? DEFAULT_EXPIRY));
    try {
      return await this.session.options.http.data<Approval>(call);
    } catch (error) {
      if (!(error instanceof IdempotencyConflict)) throw error;
      return this.read((await this.outbox.earlierRun(draft, error)).message_id);
    }
  }

  async #call(draft: Draft, of: readonly string[], expires: number): Promise<Call> {
    const { conversationId, clientMessageId, content, signal } = draft;
    const isSealed = await this.outbox.isSealed(draft);
    const bytes = encodeContent(content);
    const place = { kind: Kind.message, clientMessageId, inReplyTo: null };
    const payload = isSealed
      ? await this.session.sealPayload(conversationId, place, bytes)
      : content;
    const digest = await questionDigest(isSealed ? fromUtf8(bytes) : clearContent(content));
    return {
      method: "POST",
      path: `/agents/${this.agentId}/conversations/${conversationId}/approvals`,
      body: {
        payload,
        client_message_id: clientMessageId,
        kind: content["kind"],
        digest: base64(digest),
        quorum: content["quorum"],
        deny_quorum: content["deny_quorum"],
        expires_in_seconds: expires,
        ...(of.length > 0 ? { of } : {}),
      },
      repeatable: true,
      signal,
    };
  }

  read(approvalId: string): Promise<Approval> {
    return readApproval(this.session, approvalId);
  }

  /** Takes an approval back that nobody has decided. */
  withdraw(approvalId: string): Promise<Approval> {
    const path = `/approvals/${approvalId}/withdraw`;
    const call: Call = { method: "POST", path, body: {}, repeatable: true };
    return this.session.options.http.data<Approval>(call);
  }

  /**
   * The result of an approval that has ended; null for a question of another program. Throws
   * `DecryptError` if the signatures do not prove what is said.
   */
  async result(approval: Approval): Promise<ApprovalResult | null> {
    const messages = await approvalMessages(this.session, approval);
    const question = messages.question && (await this.outbox.openOwn(messages.question));
    if (!question) return null;
    const isAsked = isAskedSo(question.content, approval);
    if (!isAsked || !(await isQuestionOf(approval, question))) {
      throw new DecryptError("bad_signature");
    }
    const { session, allowsClear } = this;
    const receipt = await makeReceipt(session, approval, question, messages, allowsClear);
    try {
      await verifyWithPins(session, receipt);
    } catch (error) {
      throw error instanceof ReceiptError ? new DecryptError("bad_signature") : error;
    }
    return resultOf(question.content, approval, receipt);
  }
}

/** Whether the service asks those, and so many, as the agent has said. */
function isAskedSo(question: JsonObject, approval: Approval): boolean {
  const { of, kind, quorum, deny_quorum } = question;
  const isSame =
    kind === approval.kind && quorum === approval.quorum && deny_quorum === approval.deny_quorum;
  const isNamed = Array.isArray(of) && (of.length === 0 || approval.asked.every((id) => of.includes(id)));
  return isSame && isNamed;
}

function resultOf(question: JsonObject, approval: Approval, receipt: Receipt): ApprovalResult {
  const isNo = approval.state === "denied";
  const words = approval.decisions
    .filter((each) => (each.decision === "denied") === isNo)
    .map((each) => receipt.answers[each.user_id])
    .find((answer) => answer !== undefined);
  const { choice, text } = words ? (JSON.parse(words) as JsonObject) : ({} as JsonObject);
  return {
    outcome: approval.state,
    name: String(question["name"] ?? ""),
    question: String(question["text"] ?? ""),
    arguments: objectOf(question["arguments"]),
    state: objectOf(question["state"]),
    choice: typeof choice === "string" ? choice : null,
    text: typeof text === "string" ? text : null,
    approval,
    receipt,
  };
}

function objectOf(value: unknown): JsonObject {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? (value as JsonObject) : {};
}
