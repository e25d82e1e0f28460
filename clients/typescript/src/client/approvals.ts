/** What agents ask a person to approve, and the person's signed decision. */
import { type Proof, answerDigest, clearContent, signDecision } from "../e2ee/approval.js";
import { base64, fromBase64, fromUtf8, hex, random } from "../e2ee/bytes.js";
import { type JsonObject, encodeContent } from "../e2ee/content.js";
import { DecryptError, KeyUnavailable } from "../e2ee/errors.js";
import {
  type Approval,
  type Receipt,
  approvalMessages,
  isQuestionOf,
  makeReceipt,
  verifyWithPins,
} from "../core/approvals.js";
import type { OpenedMessage } from "../core/opened.js";
import type { Session } from "../core/session.js";
import type { Conversation, ReceivedMessage } from "./conversation.js";

const NONCE_BYTES = 16;

export interface ApprovalRequestInput {
  readonly approval: Approval;
  readonly conversation: Conversation;
  readonly session: Session;
  readonly userId: string;
}

/** An approval that a person sees, with its question. */
export class ApprovalRequest {
  private constructor(
    private readonly input: ApprovalRequestInput,
    private readonly received: ReceivedMessage | null,
    readonly question: OpenedMessage | null,
    /** Why the question does not open, or is not what was asked. */
    readonly fault: DecryptError | null,
  ) {}

  /** Opens the question of an approval. */
  static async open(input: ApprovalRequestInput): Promise<ApprovalRequest> {
    const { approval, conversation, session } = input;
    const { question: message } = await approvalMessages(session, approval);
    const received = message && (await conversation.open(message, false));
    const opened = received?.opened ?? null;
    if (opened && !(await isQuestionOf(approval, opened))) {
      return new ApprovalRequest(input, received, null, new DecryptError("bad_signature"));
    }
    const fault = opened ? null : (received?.fault ?? new DecryptError("malformed"));
    return new ApprovalRequest(input, received, opened, fault);
  }

  /** As the service shows it. */
  get approval(): Approval {
    return this.input.approval;
  }

  get id(): string {
    return this.approval.approval_id;
  }

  get conversation(): Conversation {
    return this.input.conversation;
  }

  /** The name of the question; empty if it does not open. */
  get name(): string {
    return String(this.question?.content["name"] ?? "");
  }

  /** The question's words; empty if it does not open. */
  get text(): string {
    return String(this.question?.content["text"] ?? "");
  }

  /** What is to be approved. */
  get arguments(): JsonObject {
    const given = this.question?.content["arguments"];
    const isObject = typeof given === "object" && given !== null && !Array.isArray(given);
    return isObject ? given : {};
  }

  /** The answers to choose from. */
  get choices(): readonly string[] {
    const choices = this.question?.content["choices"];
    return Array.isArray(choices) ? choices.filter((each) => typeof each === "string") : [];
  }

  /** Says yes, signed by this device. Throws `DecryptError` if the question does not open. */
  approve(): Promise<Approval> {
    return this.#decide("approved", {});
  }

  /** Says no, signed by this device. The agent gets the words. */
  deny(text?: string): Promise<Approval> {
    return this.#decide("denied", text === undefined ? {} : { text });
  }

  /** Answers by one of the choices or by a text, signed by this device. */
  answer(answer: string | { readonly text: string }): Promise<Approval> {
    const words: JsonObject = typeof answer === "string" ? { choice: answer } : { text: answer.text };
    return this.#decide("answered", words);
  }

  async #decide(decision: string, words: JsonObject): Promise<Approval> {
    const question = this.#opened();
    const hasWords = Object.keys(words).length > 0;
    const answer = hasWords ? await this.#answer(question, decision, words) : null;
    const signed = await this.#sign(decision, answer?.digest ?? null);
    const told = answer && { payload: answer.payload, answer_digest: base64(answer.digest) };
    return this.input.session.options.http.data<Approval>({
      method: "POST",
      path: `/approvals/${this.id}/decision`,
      body: { decision, ...signed, ...told },
      repeatable: true,
    });
  }

  #opened(): OpenedMessage {
    if (!this.question) throw this.fault!;
    return this.question;
  }

  /** Its envelope stands at the place of a reply that is named by what it answers. */
  async #answer(
    { re }: OpenedMessage,
    decision: string,
    words: JsonObject,
  ): Promise<{ payload: JsonObject; digest: Uint8Array }> {
    const nonce = base64(random(NONCE_BYTES));
    const own: JsonObject = { type: "decision", decision, ...words, nonce };
    const content = re ? { ...own, re } : own;
    // An agent that reads only what names it needs the words, too: they are signed.
    const options = { inReplyTo: this.received!, to: [this.input.approval.agent_id] };
    const payload = await this.conversation.payload(content, this.id, options);
    const isClear = payload["type"] !== "encrypted";
    const source = isClear ? clearContent(content) : fromUtf8(encodeContent(content));
    return { payload, digest: await answerDigest(source) };
  }

  async #sign(decision: string, digest: Uint8Array | null): Promise<object> {
    const { approval, session, userId } = this.input;
    const { signer } = session.options;
    if (!signer) throw new KeyUnavailable("this device has no keys yet");
    const [keyId, decidedAt] = [hex(signer.keyId), Date.now()];
    const signature = await signDecision(signer, {
      approvalId: approval.approval_id,
      agentId: approval.agent_id,
      conversationId: approval.conversation_id,
      userId,
      keyId,
      decision,
      digest: fromBase64(approval.digest),
      answerDigest: digest,
      decidedAt,
    });
    const decided_at = new Date(decidedAt).toISOString();
    return { decided_at, key_id: keyId, signature: base64(signature) };
  }

  /** The proof of what was decided, for a store. */
  async receipt(): Promise<Receipt> {
    const { session } = this.input;
    const question = this.#opened();
    const messages = await approvalMessages(session, this.approval);
    return makeReceipt(session, this.approval, question, messages, true);
  }

  /** Verifies a receipt with the keys that are accepted here. Throws `ReceiptError`. */
  verify(receipt: Receipt): Promise<Proof> {
    return verifyWithPins(this.input.session, receipt);
  }
}
