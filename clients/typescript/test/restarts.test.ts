// What a client knew before a restart binds it after the restart, whatever the server says then.
import assert from "node:assert/strict";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import type { Client } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Victim, attackedPerson, signInBehind } from "./attacks.js";
import { Proxy, type Value } from "./proxy.js";
import { answerTo, running, signIn, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;
let eve: TestUser;

before(async () => {
  cluster = await devCluster();
  const people = ["ada", "bob", "eve"] as const;
  const [a, b, e] = await Promise.all(people.map((name) => cluster.user(name)));
  [ada, bob, eve] = [a!, b!, e!];
});

after(() => cluster?.stop());

/** The next run of a person's program on the same device, with what an application has stored. */
async function restarted(
  user: TestUser,
  proxy: Proxy,
): Promise<{ client: Client; victim: Victim }> {
  const { session, trust, account } = user.client;
  const stored = JSON.stringify(Object.fromEntries(session.marks()));
  const marks = new Map(Object.entries(JSON.parse(stored) as object));
  const pins = JSON.parse(JSON.stringify(trust.store()));
  const next = await signInBehind(user, proxy, account.deviceId, { marks, pins });
  const { signer, opening } = session.options;
  next.client.devices.hold({ signer: signer!, opening });
  return next;
}

/** The server shows one more member of a conversation. */
function addMember(proxy: Proxy, conversationId: string, principal_id: string): void {
  proxy.onAnswer = ({ path }, answer) => {
    if (path !== `/conversations/${conversationId}`) return undefined;
    const { members } = answer.body.data;
    members.push({ ...members[0], principal_type: "user", principal_id, display_name: "Mallory" });
    return answer;
  };
}

test("a member who was put in while a device was off is named before anything is sealed", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const group = await user.client.openGroup([bob.client.userId], { title: "small" });
    await group.send("before");
    const mallory = newUlid();
    const { client, victim } = await restarted(user, proxy);
    addMember(proxy, group.id, mallory);
    const told: string[][] = [];
    proxy.before = ({ path }) => {
      if (/\/(rotate|messages)$/.test(path)) told.push(victim.told("member_added"));
      return undefined;
    };
    await client.conversation(group.id).send("after");
    assert(told.length > 0);
    assert.deepEqual([...new Set(told.flat())], [mallory]);
    assert(told.every((names) => names.length === 1), "it was named at first");
    assert.deepEqual(victim.places[0], ["member_added", group.id]);
  });
});

test("a member who was put in while an agent was off is named before it answers", async (t) => {
  const made = await cluster.agent("aware", ada.client);
  await new Agent(made).check();
  await ada.client.openAgent(made.agentId);
  const group = await ada.client.openGroup([bob.client.userId], { title: "small" });
  await group.addAgent(made.agentId, "all");
  const proxy = await Proxy.start(made.url);
  t.after(() => proxy.close());
  const pins = join(await mkdtemp(join(tmpdir(), "pins-")), "pins.json");
  const run = async (): Promise<{ victim: Victim; told: string[][] }> => {
    const victim = new Victim();
    const told: string[][] = [];
    proxy.before = ({ method, path }) => {
      if (method === "POST" && path.endsWith("/messages")) told.push(victim.told("member_added"));
      return undefined;
    };
    const options = { ...made, url: proxy.url, pins, hooks: victim.hooks };
    const agent = new Agent(options).on("message", async (ctx) => void (await ctx.reply("yes")));
    await running(agent, async () => {
      await answerTo(ada, () => group.send("Are you there?"));
    });
    return { victim, told };
  };
  assert.deepEqual((await run()).told, [[]]);
  const mallory = newUlid();
  addMember(proxy, group.id, mallory);
  const { told, victim } = await run();
  assert.deepEqual(told, [[mallory]]);
  assert.deepEqual(victim.places[0], ["member_added", group.id]);
});

test("who left while a device was off is named", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const group = await user.client.openGroup([bob.client.userId, eve.client.userId]);
    await group.send("before");
    const { client, victim } = await restarted(user, proxy);
    await eve.client.account.http.data({ method: "DELETE", path: `/groups/${group.id}/members/${eve.client.userId}` });
    await client.conversation(group.id).send("after");
    assert.deepEqual(victim.told("member_removed"), [eve.client.userId]);
  });
});

test("nobody joins two people, nor a person and an agent", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const direct = await user.client.openDirect(bob.client.userId);
    addMember(proxy, direct.id, newUlid());
    const MALFORMED = { name: "DecryptError", reason: "malformed" };
    await assert.rejects(direct.send("for Bob alone"), MALFORMED);
    // Nor does anybody stand in one's own place.
    proxy.onAnswer = ({ path }, answer) => {
      if (path !== `/conversations/${direct.id}`) return undefined;
      for (const member of answer.body.data.members) {
        if (member.principal_id === user.client.userId) member.principal_id = newUlid();
      }
      return answer;
    };
    await assert.rejects(direct.send("for Bob alone"), MALFORMED);
    proxy.onAnswer = () => undefined;
    await direct.send("for Bob");
    assert.deepEqual(await texts(bob.client.conversation(direct.id)), ["for Bob"]);
    const sent = proxy.requests.filter(({ path }) => /\/(rotate|messages)$/.test(path));
    assert.equal(sent.length, 2);
  });
});

test("an agent hears nobody where the server has put in a third", async (t) => {
  const made = await cluster.agent("private", ada.client);
  const proxy = await Proxy.start(made.url);
  t.after(() => proxy.close());
  const victim = new Victim();
  const options = { ...made, url: proxy.url, hooks: victim.hooks };
  const agent = new Agent(options).on("message", ({ text }) => void victim.heard.push(text));
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(made.agentId);
    addMember(proxy, conversation.id, newUlid());
    await conversation.send("Are we alone?");
    await until(() => victim.faults.length > 0);
  });
  assert.deepEqual([victim.heard, victim.faults], [[], ["malformed"]]);
});

test("a secret that is due for a change seals nothing after a restart either", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const phone = await signIn(user, cluster.nodes[0]!, "phone");
    await phone.devices.restore(user.protectionPassword);
    const conversation = await user.client.openDirect(eve.client.userId);
    await conversation.send("with the phone");
    // The server refuses a fresh secret, and says that none is due.
    const error = { code: "RATE_LIMITED", message: "", params: { retry_after_ms: 600_000 } };
    proxy.before = ({ path }) =>
      path.endsWith("/rotate") ? { status: 429, body: { error } } : undefined;
    proxy.onAnswer = (_, answer) => {
      if (answer.body.data?.rotation_required === undefined) return undefined;
      answer.body.data.rotation_required = false;
      return answer;
    };
    await user.client.devices.revoke("phone");
    const { client } = await restarted(user, proxy);
    const next = client.conversation(conversation.id);
    await assert.rejects(next.send("without the phone"), { name: "KeyUnavailable" });
    proxy.before = () => undefined;
    await next.send("without the phone");
    assert.deepEqual(await texts(next), ["with the phone", "without the phone"]);
    assert.equal(client.session.marks().get(conversation.id)?.changed, false);
  });
});

test("after an envelope, an agent that is started again neither hears nor says clear text", async () => {
  const made = await cluster.agent("mixed", ada.client);
  const pins = join(await mkdtemp(join(tmpdir(), "pins-")), "pins.json");
  const conversation = await ada.client.openAgent(made.agentId);
  const send = (payload: Value): Promise<unknown> =>
    ada.client.account.http.data({
      method: "POST",
      path: `/conversations/${conversation.id}/messages`,
      body: { payload },
    });
  const run = async (during: (victim: Victim) => Promise<void>): Promise<void> => {
    const victim = new Victim();
    const options: AgentOptions = { ...made, pins, plaintext: "allow", hooks: victim.hooks };
    const agent = new Agent(options).on("message", ({ text }) => void victim.heard.push(text));
    await running(agent, () => during(victim));
  };
  await run(async ({ heard, faults }) => {
    await send({ type: "text", text: "before" });
    await until(() => heard.length === 1);
    await send({ type: "encrypted", v: 1, ciphertext: Buffer.alloc(300, 1).toString("base64") });
    await until(() => faults.length === 1);
  });
  await run(async ({ heard, faults }) => {
    await send({ type: "text", text: "after" });
    await until(() => faults.length + heard.length > 0);
    assert.deepEqual([heard, faults], [[], ["clear"]]);
  });
});
