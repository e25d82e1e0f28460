// The service tells an agent of decisions that nobody signed, or that are fewer than were asked for.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, type ApprovalResult } from "@blindpipe/client/agent";
import { Receipt } from "@blindpipe/client";
import { hex, newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { type Victim, again, attackedAgent } from "./attacks.js";
import type { Proxy, Value } from "./proxy.js";
import { until } from "./support.js";

const CLOSED = "approval.closed";
let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
});

after(() => cluster?.stop());

interface Attack {
  readonly agent: Agent;
  readonly agentId: string;
  readonly decided: ApprovalResult[];
  /** The genuine ends, which the service keeps back. */
  readonly kept: Value[];
  /** Tells the agent of an end, which it is to refuse. */
  readonly isRefused: (lie: Value) => Promise<void>;
  /** Tells it of an end, which it is to believe. */
  readonly isBelieved: (truth: Value) => Promise<ApprovalResult>;
}

/** An agent that decides behind a service that keeps the ends of approvals. */
async function liedTo(during: (attack: Attack) => Promise<void>): Promise<void> {
  const decided: ApprovalResult[] = [];
  const kept: Value[] = [];
  let agent!: Agent;
  const attack = (proxy: Proxy, victim: Victim): Pick<Attack, "isRefused" | "isBelieved"> => {
    let told = 0;
    const say = (data: Value): void => proxy.say({ ...again(kept[0], 1_000 + told++), data });
    return {
      isRefused: async (lie) => {
        const before = victim.faults.length;
        say(lie);
        await until(() => victim.faults.length > before || decided.length > 0);
        assert.deepEqual(decided, [], JSON.stringify(lie));
        assert.deepEqual(victim.faults.slice(before), ["bad_signature"], JSON.stringify(lie));
      },
      isBelieved: async (truth) => {
        say(truth);
        await until(() => decided.length > 0);
        return decided.shift()!;
      },
    };
  };
  await attackedAgent(
    cluster,
    ada,
    async ({ proxy, victim, options }) => {
      proxy.onFrame = (frame) => {
        if (frame.event !== CLOSED) return [frame];
        kept.push(frame);
        return [];
      };
      await during({ agent, agentId: options.agentId, decided, kept, ...attack(proxy, victim) });
    },
    {},
    (made) => {
      agent = made.onDecision("deploy", (ctx) => void decided.push(ctx.decision));
    },
  );
}

test("no handler runs for a decision that nobody signed", async () => {
  await liedTo(async ({ agent, agentId, kept, isRefused, isBelieved }) => {
    const conversation = await ada.client.openAgent(agentId);
    await conversation.send("hello");
    const of = [ada.client.userId];
    for (let number = 0; number < 2; number++) {
      const asked = await agent.approve(conversation.id, "deploy", { number }, { of });
      await (await ada.client.approval(asked.approval_id)).approve();
    }
    await until(() => kept.length === 2);
    const [other, told] = kept.map(({ data }) => data);
    const [decision] = told.decisions;
    const lies = [
      { decisions: [] },
      { state: "denied" },
      { state: "denied", decisions: [{ ...decision, decision: "denied" }] },
      { decisions: other.decisions },
      { decisions: [{ ...decision, user_id: newUlid() }] },
      { decisions: [{ ...decision, key_id: "00".repeat(16) }] },
      { quorum: 2 },
      { deny_quorum: 2 },
      { kind: "ask" },
      { digest: other.digest },
      { approval_id: other.approval_id, seq: other.seq },
      { asked: [...told.asked, newUlid()] },
    ];
    for (const lie of lies) await isRefused({ ...told, ...lie });
    const result = await isBelieved(told);
    assert.deepEqual([result.outcome, result.arguments], ["approved", { number: 1 }]);
  });
});

test("as many must agree as the agent has said", async () => {
  await liedTo(async ({ agent, agentId, decided, kept, isRefused, isBelieved }) => {
    await ada.client.openAgent(agentId);
    const group = await ada.client.openGroup([bob.client.userId], { title: "releases" });
    await group.addAgent(agentId, "all");
    await group.send("hello");
    const of = [ada, bob].map(({ client }) => client.userId);
    const draft = { of, quorum: 2, denyQuorum: 2 };
    const asked = await agent.approve(group.id, "deploy", { version: "1.4.2" }, draft);
    assert.deepEqual([asked.quorum, asked.asked.length], [2, 2]);
    const [forAda, forBob] = await Promise.all(
      [ada, bob].map(({ client }) => client.approval(asked.approval_id)),
    );
    const half = await forAda!.approve();
    assert.equal(half.state, "open");
    // One person is one voice, however often.
    assert.equal((await forAda!.approve()).state, "open");
    const whole = await forBob!.approve();
    assert.equal(whole.state, "approved");
    await until(() => kept.length === 1);
    const told = kept[0].data;
    assert.equal(told.decisions.length, 2);
    // The service says that one yes was enough, with its own number and with the agent's.
    const ended = { ...half, state: "approved", closed_at: half.created_at };
    await isRefused({ ...ended, quorum: 1 });
    await isRefused(ended);
    await isRefused({ ...told, decisions: [told.decisions[0], told.decisions[0]] });
    await isRefused({ ...told, quorum: 1 });
    const result = await isBelieved(told);
    assert.equal(result.outcome, "approved");
    assert.deepEqual(decided, [], "it ran once");

    const keys = new Map([ada, bob].map(({ client }) => [client.userId, client.session.options.signer!]));
    const keyOf = (user: string, keyId: string) => {
      const key = keys.get(user);
      return key && hex(key.keyId) === keyId ? key : null;
    };
    const stored = Receipt.from(JSON.parse(JSON.stringify(result.receipt)));
    const { decisions } = await stored.verify(keyOf);
    assert.deepEqual(
      decisions.map(([user, decision]) => `${user} ${decision}`).sort(),
      of.map((user) => `${user} approved`).sort(),
    );
    const halved = { ...stored.approval, decisions: stored.approval.decisions.slice(0, 1) };
    const proof = new Receipt(halved, stored.question).verify(keyOf);
    await assert.rejects(proof, { reason: "wrong_outcome" });

    // One no of two is not enough either.
    const next = await agent.approve(group.id, "deploy", {}, draft);
    for (const [{ client }, state] of [[ada, "open"], [bob, "denied"]] as const) {
      assert.equal((await (await client.approval(next.approval_id)).deny()).state, state);
    }
  });
});
