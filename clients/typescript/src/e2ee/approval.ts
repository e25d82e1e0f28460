/** Approvals: what a person signs, and the receipt that proves it without the service. */
import { type Bytes, concat, equal, fromBase64, hex, lp, u64, utf8 } from "./bytes.js";
import type { Json, JsonObject } from "./content.js";
import { type KeyPair, type PublicKeys, isUsable, keyId } from "./keys.js";
import { sha256, sign, verify } from "./primitives.js";

export type ReceiptFault =
  | "malformed"
  | "wrong_question"
  | "wrong_answer"
  | "unknown_key"
  | "bad_signature"
  | "wrong_outcome";

/** A receipt does not prove what it says. */
export class ReceiptError extends Error {
  override readonly name = "ReceiptError";
  constructor(readonly reason: ReceiptFault) {
    super(`the receipt proves nothing: ${reason}`);
  }
}

/** The digest of a question: over the exact bytes of its content. */
export function questionDigest(content: string): Promise<Bytes> {
  return sha256(utf8("blindpipe approval digest v1\0"), utf8(content));
}

/** The digest of an answer: over the exact bytes of its content. */
export function answerDigest(content: string): Promise<Bytes> {
  return sha256(utf8("blindpipe answer digest v1\0"), utf8(content));
}

/** The content of a payload in clear: names sorted, no spaces, characters as they are. */
export function clearContent(value: Json): string {
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(clearContent).join(",")}]`;
  const names = Object.keys(value).sort(byCodePoint);
  return `{${names.map((name) => `${JSON.stringify(name)}:${clearContent(value[name]!)}`).join(",")}}`;
}

function byCodePoint(one: string, other: string): number {
  const [a, b] = [[...one], [...other]];
  for (let at = 0; at < a.length && at < b.length; at++) {
    const difference = a[at]!.codePointAt(0)! - b[at]!.codePointAt(0)!;
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}

/** A person's decision, in the words of the wire. */
export interface ApprovalDecision {
  readonly approvalId: string;
  readonly agentId: string;
  readonly conversationId: string;
  readonly userId: string;
  /** The signing key, in hex. */
  readonly keyId: string;
  readonly decision: string;
  /** Of the question. */
  readonly digest: Uint8Array;
  /** Of the answer; null without one. */
  readonly answerDigest: Uint8Array | null;
  /** Unix milliseconds. */
  readonly decidedAt: number;
}

/** The bytes that the person's device signs. */
export function decisionBytes(decision: ApprovalDecision): Bytes {
  const { approvalId, agentId, conversationId, userId, keyId: key } = decision;
  const texts = [approvalId, agentId, conversationId, userId, key, decision.decision];
  return concat(
    utf8("blindpipe approval v1\0"),
    ...texts.map((text) => lp(text)),
    decision.digest,
    decision.answerDigest ?? new Uint8Array(32),
    u64(decision.decidedAt),
  );
}

/** The device's signature of a decision. */
export function signDecision(keys: KeyPair, decision: ApprovalDecision): Promise<Bytes> {
  return sign(keys.signing, decisionBytes(decision));
}

/** What a receipt proves. */
export interface Proof {
  /** `approved`, `answered`, `denied`, or one that nobody signs: `open`, `expired`, `withdrawn`. */
  readonly state: string;
  /** Each person's id and word, in the order of the receipt. */
  readonly decisions: readonly (readonly [string, string])[];
}

/** Answers the keys of a user under a key id in hex. */
export type KeyOf = (
  userId: string,
  keyId: string,
) => PublicKeys | null | Promise<PublicKeys | null>;

/**
 * Verifies a receipt, `{approval, question, answers?}`. Throws `ReceiptError`. The signatures cover
 * the question, the answers, and who decided what and when. Who was asked and how many had to agree
 * is the word of the agent and the service.
 */
export async function verifyReceipt(receipt: JsonObject, keyOf: KeyOf): Promise<Proof> {
  const item = object(receipt["approval"]);
  const digest = bytes(item["digest"], 32);
  if (!equal(await questionDigest(text(receipt["question"])), digest)) {
    throw new ReceiptError("wrong_question");
  }
  const answers = object(receipt["answers"]);
  const decisions: [string, string][] = [];
  for (const each of list(item["decisions"]).map(object)) {
    const user = text(each["user_id"]);
    await verifyDecision(item, digest, each, answers[user] ?? null, keyOf);
    decisions.push([user, text(each["decision"])]);
  }
  verifyOutcome(item, decisions);
  return { state: text(item["state"]), decisions };
}

async function verifyDecision(
  item: JsonObject,
  digest: Bytes,
  each: JsonObject,
  answer: Json,
  keyOf: KeyOf,
): Promise<void> {
  const told = each["answer_digest"] ?? null;
  const signed: ApprovalDecision = {
    approvalId: text(item["approval_id"]),
    agentId: text(item["agent_id"]),
    conversationId: text(item["conversation_id"]),
    userId: text(each["user_id"]),
    keyId: text(each["key_id"]),
    decision: text(each["decision"]),
    digest,
    answerDigest: told === null ? null : bytes(told, 32),
    decidedAt: milliseconds(text(each["decided_at"])),
  };
  if (answer !== null && !isEqual(await answerDigest(text(answer)), signed.answerDigest)) {
    throw new ReceiptError("wrong_answer");
  }
  const key = await keyOf(signed.userId, signed.keyId);
  if (!key || !(await isUsable(key)) || hex(await keyId(key)) !== signed.keyId) {
    throw new ReceiptError("unknown_key");
  }
  const signature = bytes(each["signature"], 64);
  if (!(await verify(key.signingPublicKey, signature, decisionBytes(signed)))) {
    throw new ReceiptError("bad_signature");
  }
}

function isEqual(one: Uint8Array, other: Uint8Array | null): boolean {
  return other !== null && equal(one, other);
}

/** Whether those who were asked have decided once each, and enough of them for the state. */
function verifyOutcome(item: JsonObject, decisions: readonly [string, string][]): void {
  const yes = { approve: "approved", ask: "answered" }[text(item["kind"])];
  if (!yes) throw new ReceiptError("malformed");
  const asked = list(item["asked"]);
  const reached = (word: string, quorum: Json | undefined): boolean => {
    if (!Number.isSafeInteger(quorum) || Number(quorum) < 1) throw new ReceiptError("malformed");
    return decisions.filter(([, told]) => told === word).length >= Number(quorum);
  };
  const isReached = (): boolean => {
    switch (text(item["state"])) {
      case yes:
        return reached(yes, item["quorum"]);
      case "denied":
        return reached("denied", item["deny_quorum"]);
      case "open":
      case "expired":
      case "withdrawn":
        return !reached(yes, item["quorum"]) && !reached("denied", item["deny_quorum"]);
      default:
        return false;
    }
  };
  const users = new Set(decisions.map(([user]) => user));
  const isFair = users.size === decisions.length && [...users].every((user) => asked.includes(user));
  const fits = decisions.every(([, word]) => word === yes || word === "denied");
  if (!(isReached() && isFair && fits)) throw new ReceiptError("wrong_outcome");
}

function object(value: Json | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}

function list(value: Json | undefined): Json[] {
  if (!Array.isArray(value)) throw new ReceiptError("malformed");
  return value;
}

function text(value: Json | undefined): string {
  if (typeof value !== "string") throw new ReceiptError("malformed");
  return value;
}

function bytes(value: Json | undefined, length: number): Bytes {
  let decoded: Bytes;
  try {
    decoded = fromBase64(text(value));
  } catch {
    throw new ReceiptError("malformed");
  }
  if (decoded.length !== length) throw new ReceiptError("malformed");
  return decoded;
}

/** The Unix milliseconds of a time in the one form of the service. */
function milliseconds(time: string): number {
  const isTime = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/.test(time);
  const parsed = isTime ? Date.parse(time) : Number.NaN;
  if (Number.isNaN(parsed) || parsed < 0) throw new ReceiptError("malformed");
  return parsed;
}
