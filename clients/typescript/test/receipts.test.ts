// Decisions are signed, and receipts verified offline, as the vectors say.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { halves, pair, read, type Vector } from "./vector-support.js";

const vectors = read("approvals");

function keyOf(user: string, keyId: string): e2ee.PublicKeys | null {
  const found = (vectors.keys[user] ?? []).find((key: Vector) => key.key_id === keyId);
  return found ? halves(found) : null;
}

async function reasonOf(receipt: Vector): Promise<string> {
  try {
    await e2ee.verifyReceipt(receipt, keyOf);
    return "proven";
  } catch (error) {
    if (error instanceof e2ee.ReceiptError) return error.reason;
    throw error;
  }
}

test("decisions are signed as the vectors say", async () => {
  assert.ok(vectors.signatures.length > 0);
  for (const made of vectors.signatures) {
    const keys = await pair(made.keys);
    const digest = await e2ee.questionDigest(made.question);
    const answerDigest = made.answer === null ? null : await e2ee.answerDigest(made.answer);
    assert.equal(e2ee.base64(digest), made.digest);
    assert.equal(answerDigest && e2ee.base64(answerDigest), made.answer_digest);
    const decision = {
      approvalId: made.approval_id,
      agentId: made.agent_id,
      conversationId: made.conversation_id,
      userId: made.user_id,
      keyId: e2ee.hex(keys.keyId),
      decision: made.decision,
      digest,
      answerDigest,
      decidedAt: made.decided_at_ms,
    };
    const bytes = e2ee.decisionBytes(decision);
    assert.equal(e2ee.hex(bytes), made.signed);
    assert.equal(e2ee.base64(await e2ee.signDecision(keys, decision)), made.signature);
  }
});

test("receipts prove what the vectors say", async () => {
  assert.ok(vectors.receipts.length > 0);
  for (const { receipt, proves } of vectors.receipts) {
    assert.deepEqual(await e2ee.verifyReceipt(receipt, keyOf), proves);
  }
});

test("a changed receipt proves nothing", async () => {
  const { receipt, changes } = vectors.changed;
  for (const { place, value, reason } of changes) {
    const changed = structuredClone(receipt);
    const path = place.split("/").slice(1);
    const last = path.pop();
    const at = path.reduce((within: Vector, name: string) => within[name], changed);
    at[last] = value;
    assert.equal(await reasonOf(changed), reason, `${place}: ${JSON.stringify(value)}`);
  }
  for (const made of vectors.refused) assert.equal(await reasonOf(made.receipt), made.reason);
  const good = vectors.receipts[0].receipt;
  for (const made of [{}, { approval: [] }, { ...good, approval: {} }, { ...good, question: 7 }]) {
    assert.equal(await reasonOf(made), "malformed");
  }
});

test("a content in clear has one spelling", () => {
  const payload = { type: "approval", "\u{1f600}": 1, "\uffee": { b: [true, null], a: "é\n" } };
  const told = '{"type":"approval","\uffee":{"a":"é\\n","b":[true,null]},"\u{1f600}":1}';
  assert.equal(e2ee.clearContent(payload), told);
});
