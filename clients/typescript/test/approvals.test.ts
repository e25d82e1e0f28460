// Approvals: asked by one process, decided on a device, acted on by another process.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Agent, type AgentOptions, type Approval, type ApprovalResult } from "@blindpipe/client/agent";
import { type ApprovalRequest, DecryptError, Receipt } from "@blindpipe/client";
import { hex, type PublicKeys, ReceiptError } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, running, signIn, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
});

after(() => cluster?.stop());

/** The newest approval that waits for this person. */
async function asked(user: TestUser): Promise<ApprovalRequest> {
  for (;;) {
    for await (const request of user.client.approvals()) return request;
    await pause(50);
  }
}

/** An agent of another process, which knows nothing of the one that asked. */
function deciding(options: AgentOptions, name: string): [Agent, ApprovalResult[]] {
  const decided: ApprovalResult[] = [];
  const agent = new Agent(options).onDecision(name, (ctx) => decided.push(ctx.decision));
  return [agent, decided];
}

async function next(decided: ApprovalResult[]): Promise<ApprovalResult> {
  await until(() => decided.length > 0);
  return decided.shift()!;
}

test("an approval outlives the process that asked", async () => {
  const options = await cluster.agent("deployer", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const asking = new Agent(options).on("message", async (ctx) => {
    const given = { version: "1.4.2" };
    const first = await ctx.approve("deploy", given, { text: `${ctx.text}?`, state: { n: 1 } });
    // Asked again under the same id, it is the same one.
    const again = await ctx.approve("deploy", given, { key: "0" });
    assert.equal(again.approval_id, first.approval_id);
  });
  let request!: ApprovalRequest;
  await running(asking, async () => {
    await conversation.send("Deploy 1.4.2");
    request = await asked(ada);
  });
  assert.deepEqual([request.name, request.text], ["deploy", "Deploy 1.4.2?"]);
  assert.deepEqual(request.arguments, { version: "1.4.2" });
  assert.equal((await request.approve()).state, "approved");
  assert.equal((await request.approve()).state, "approved", "said again");
  await assert.rejects(request.deny());

  const [agent, decided] = deciding(options, "deploy");
  await running(agent, async () => {
    const result = await next(decided);
    assert.equal(result.outcome, "approved");
    assert.deepEqual([result.arguments, result.state], [{ version: "1.4.2" }, { n: 1 }]);
    await checkReceipt(result.receipt);
  });
});

/** It proves the decision without the service, and nothing once it is changed. */
async function checkReceipt(receipt: Receipt): Promise<void> {
  const { signer } = ada.client.session.options;
  const { userId } = ada.client.account;
  const keyOf = (user: string, keyId: string): PublicKeys | null =>
    user === userId && keyId === hex(signer!.keyId) ? signer! : null;
  const stored = Receipt.from(JSON.parse(JSON.stringify(receipt)));
  assert.deepEqual((await stored.verify(keyOf)).decisions, [[userId, "approved"]]);
  const isReason = (reason: string) => (error: unknown) =>
    error instanceof ReceiptError && error.reason === reason;
  await assert.rejects(stored.verify(() => null), isReason("unknown_key"));
  const changed = new Receipt(stored.approval, stored.question.replace("1.4.2", "6.6.6"));
  await assert.rejects(changed.verify(keyOf), isReason("wrong_question"));
}

test("choices, refusals and withdrawals", async () => {
  const options = await cluster.agent("asker", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const [agent, decided] = deciding(options, "when");
  await running(agent, async () => {
    await conversation.send("hello");
    const choices = ["Now", "Later"];
    await agent.approve(conversation.id, "when", { what: "a deploy" }, { choices });
    const request = await asked(ada);
    assert.deepEqual(request.choices, choices);
    await request.answer("Later");
    const answered = await next(decided);
    assert.deepEqual([answered.outcome, answered.choice], ["answered", "Later"]);

    const { userId } = ada.client.account;
    await agent.approve(conversation.id, "when", {}, { of: [userId], expires: "15m" });
    const phone = await signIn(ada, cluster.nodes[1]!, "phone");
    await phone.devices.restore(ada.protectionPassword);
    const onPhone = await phone.approval((await asked(ada)).id);
    await onPhone.deny("not today");
    const denied = await next(decided);
    assert.deepEqual([denied.outcome, denied.text], ["denied", "not today"]);
    const receipt = await (await ada.client.approval(onPhone.id)).receipt();
    assert.deepEqual({ ...receipt }, { ...denied.receipt });

    const last = await agent.approve(conversation.id, "when");
    await assert.rejects(bob.client.approval(last.approval_id));
    await agent.withdraw(last.approval_id);
    assert.equal((await next(decided)).outcome, "withdrawn");
  });
});

test("an addressed agent reads the words of a decision", async () => {
  const options = await cluster.agent("addressed", ada.client);
  const [agent, decided] = deciding(options, "trip");
  agent.on("message", async (ctx) => {
    await ctx.approve("trip", { to: "Oslo" }, { text: "Go?" });
  });
  await running(agent, async () => {
    await ada.client.openAgent(options.agentId);
    const group = await ada.client.openGroup([], { title: "trips" });
    await group.addAgent(options.agentId);
    await group.send("plan one", { to: [options.agentId] });
    await (await asked(ada)).deny("too far");
    const denied = await next(decided);
    assert.deepEqual([denied.outcome, denied.text], ["denied", "too far"]);
  });
});

test("a question is an approval that people answer", async () => {
  const options = await cluster.agent("curious", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const heard: unknown[] = [];
  const agent = new Agent(options)
    .on("message", (ctx) => ctx.ask("When?", { tag: "when", state: { n: 1 } }))
    .onAnswer("when", async (ctx) => {
      const { question, text, state } = ctx.answer;
      heard.push([question, text, state, ctx.decision.approval.decisions[0]!.user_id]);
      // The person who answered is asked.
      await ctx.ask("Sure?", { tag: "sure", choices: ["Yes"] });
    })
    .onAnswer("sure", () => heard.push("no answer"))
    .onDecision("sure", (ctx) => heard.push([ctx.decision.outcome, ctx.decision.question]));
  const { userId } = ada.client.account;
  await running(agent, async () => {
    const question = await answerTo(ada, () => conversation.send("hello"));
    assert.equal((await asked(ada)).approval.kind, "ask");
    await conversation.answer(question, { text: "tonight" });
    await until(() => heard.length === 1);
    const request = await asked(ada);
    assert.deepEqual(request.approval.asked, [userId]);
    await request.deny();
    await until(() => heard.length === 2);
  });
  assert.deepEqual(heard, [["When?", "tonight", { n: 1 }, userId], ["denied", "Sure?"]]);
});

test("a person signs nothing that does not open", async () => {
  const options = await cluster.agent("liar", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const agent = new Agent(options);
  await agent.check();
  await conversation.send("hello");
  const told = await agent.approve(conversation.id, "deploy");
  const changed: Approval = { ...told, digest: `${"A".repeat(43)}=` };
  const request = await ada.client.approvalRequest(changed);
  assert.ok(request.fault instanceof DecryptError && request.text === "");
  await assert.rejects(request.approve(), { reason: "bad_signature" });
  const decided = await (await ada.client.approval(told.approval_id)).approve();
  assert.equal(decided.state, "approved");
});
