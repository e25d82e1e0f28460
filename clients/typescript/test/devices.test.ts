// A person's devices: strangers, what is kept, revocations; tools and grants.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import type { Client, ReceivedMessage } from "@blindpipe/client";
import { UsageError, hex, type StoredPins } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import {
  MemoryConsents,
  answerTo,
  decideUntilAnswered,
  fromAgent,
  running,
  signIn,
  texts,
  until,
} from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada", { deviceId: "laptop" });
});

after(() => cluster?.stop());

async function caughtUp(client: Client): Promise<void> {
  for await (const event of client.events()) if (event.type === "caught_up") return;
}

test("a device that nobody introduced waits for a tap, and is an alarm on all others", async () => {
  const bob = await cluster.user("bob");
  const options = await cluster.agent("wary", ada.client);
  const reasons: string[] = [];
  const told: string[] = [];
  const agent = new Agent({
    ...options,
    hooks: {
      undecryptable: ({ reason }) => void reasons.push(reason),
      key_changed: ({ type, key_id }) => void told.push(`${type} ${key_id}`),
    },
  });
  agent.on("message", (ctx) => ctx.reply(`heard: ${ctx.text}`));
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    await answerTo(ada, () => conversation.send("before"));
    const withBob = await ada.client.openDirect(bob.client.account.userId);
    await withBob.send("before");
    const bobs = bob.client.conversation(withBob.id);
    assert.deepEqual(await texts(bobs), ["before"]);

    // The server, or a thief of the password, could make such a device.
    const stranger = await signIn(ada, cluster.nodes[1]!, "stranger");
    const { signer } = await stranger.devices.create("another protection password");
    const keyId = hex(signer.keyId);
    await stranger.conversation(conversation.id).send("from a stranger");
    await until(() => reasons.length > 0);
    assert.deepEqual(reasons, ["unknown_sender_key"]);
    assert(told.includes(`waiting_key ${keyId}`));
    await stranger.conversation(withBob.id).send("from a stranger");
    const newest = async (): Promise<ReceivedMessage> => (await bobs.history().next()).value!;
    const shown = await newest();
    assert.equal(shown.opened?.sender.authentic, false);
    assert(shown.opened?.notices.some(({ kind }) => kind === "waiting_key"));

    // Ada's other devices say so at every start.
    const alarms: (string | null)[] = [];
    const hooks = {
      key_changed: ({ type, key_id }: { type: string; key_id: string | null }) => {
        if (type === "own_list_key") alarms.push(key_id);
      },
    };
    const phone = await signIn(ada, cluster.nodes[1]!, "phone", { hooks });
    await phone.devices.restore(ada.protectionPassword);
    await caughtUp(phone);
    await until(() => alarms.includes(keyId));

    // A person behind the agent, and Bob, asked Ada.
    await agent.trust(ada.client.self, keyId);
    const user = { ...ada, client: stranger };
    const onStranger = stranger.conversation(conversation.id);
    const answer = await answerTo(user, () => onStranger.send("me"));
    assert.equal(answer.opened?.content["text"], "heard: me");
    bob.client.confirm(ada.client.self, keyId);
    assert.equal((await newest()).opened?.sender.authentic, true);
    assert.throws(() => bob.client.confirm(ada.client.self, "00".repeat(16)), {
      name: "UsageError",
    });

    // Compared digits are kept as such, and are the same on both sides.
    // The digits are of all keys that are accepted, so Ada's phone takes the stranger too.
    phone.confirm(ada.client.self, keyId);
    const digits = await bob.client.safetyNumber(ada.client.self);
    assert.equal(digits, await phone.safetyNumber(bob.client.self));
    await assert.rejects(bob.client.verify(ada.client.self, digits.slice(1)), UsageError);
    await bob.client.verify(ada.client.self, digits);
    assert.equal((await newest()).opened?.sender.verified, true);
  });
});

test("a device that is revoked gets no secret of what follows, at once", async () => {
  const bob = await cluster.user("bob");
  const conversation = await ada.client.openDirect(bob.client.account.userId);
  const phone = await signIn(ada, cluster.nodes[1]!, "lost-phone");
  const lost = await phone.devices.restore(ada.protectionPassword);
  await conversation.send("both read this");
  const { epoch } = await conversation.info();
  await ada.client.devices.revoke("lost-phone");
  const after = await conversation.info();
  assert(after.epoch > epoch, "it rotated before anything was sent");
  assert.equal(after.rotation_required, false);
  const { recipients } = await ada.client.session.load(conversation.id);
  const given = recipients.flatMap(({ keys }) => keys.map((key) => hex(key.publicKey)));
  assert(!given.includes(hex(lost.signer.publicKey)));
  await conversation.send("the lost phone does not");
  assert.deepEqual(await texts(bob.client.conversation(conversation.id)), [
    "both read this",
    "the lost phone does not",
  ]);
});

test("a device goes on with what it kept", async () => {
  const bob = await cluster.user("bob");
  let learned = 0;
  const eve = await cluster.user("eve", { deviceId: "tablet", onTrustChanged: () => void learned++ });
  const conversation = await eve.client.openDirect(bob.client.account.userId);
  await conversation.send("kept");
  assert(learned > 0, "there was something to keep");
  const { signer, opening } = eve.client.session.options;
  // As a browser's database would: keys that no script reads, pins, marks.
  const keys = structuredClone({ signer: signer!, opening });
  assert.equal(keys.signer.signing.extractable, false);
  const marks = structuredClone(eve.client.session.marks());
  const pins = JSON.parse(JSON.stringify(eve.client.trust.store()));
  const again = await signIn(eve, cluster.nodes[0]!, "tablet", { pins, marks });
  assert.throws(() => again.conversation(conversation.id), { name: "KeyUnavailable" });
  again.devices.useKeys(keys);
  const kept = again.conversation(conversation.id);
  assert.deepEqual(await texts(kept), ["kept"]);
  const [bobs] = again.trust.keysOf(bob.client.self);
  assert.equal(bobs?.fromStore, true);
  await kept.send("and on");
  const before = marks.get(conversation.id)!.epoch;
  assert(before > 0 && again.session.marks().get(conversation.id)!.epoch >= before);
});

test("a device decides by its own table and records, which outlive it", async () => {
  const consents = new MemoryConsents();
  // The server calls both tools harmless; this device's own table says what is true of one.
  const tools = {
    send_email: { scope: "notification:send", sensitivity: "low" as const },
    wipe: { scope: "notification:send", sensitivity: "high" as const },
  };
  const user = await cluster.user("uma", { tools, consents });
  const manifest = {
    tools: ["send_email", "wipe"].map((name) => ({ name, scope: "notification:send" })),
    permission_scopes: [{ scope: "notification:send", sensitivity: "low" }],
  };
  const options = await cluster.agent("sender", user.client, manifest);
  const agent = new Agent(options).on("message", async (ctx) => {
    if (ctx.text === "ask")
      return void (await ctx.requestGrant(["notification:send"], { reason: "mail" }));
    const { status } = await ctx.call({
      tool: ctx.text === "third" ? "wipe" : "send_email",
      scope: "notification:send",
      arguments: { text: ctx.text },
    });
    await ctx.reply(status);
  });
  const decisions: string[] = [];
  const mails: unknown[] = [];
  await running(agent, async () => {
    const conversation = await user.client.openAgent(options.agentId);
    const requested = async () => {
      for await (const grant of user.client.grants()) if (grant.status === "pending") return grant;
      return undefined;
    };
    await conversation.send("ask");
    const grant = await until(requested);
    assert.equal(grant.reason, "mail");
    await user.client.decideGrant(grant.grant_id, "approve");
    for (const text of ["first", "second", "third"]) {
      const say = (): Promise<unknown> => conversation.send(text);
      const events = await decideUntilAnswered(user, say, async (request) => {
        const decision = await request.decide();
        decisions.push(decision);
        if (decision === "ask") await request.approve();
        if (request.call.tool === "send_email") await request.remember();
        else await assert.rejects(request.remember(), UsageError);
        await request.execute((_, mail) => mails.push(mail));
        decisions.push(await request.decide());
      });
      assert.equal(events.find(fromAgent)?.opened?.content["text"], "executed");
    }
    await user.client.revokeGrant(grant.grant_id);
    const group = await user.client.openGroup([]);
    await group.addAgent(options.agentId, "all");
    await group.send("ask");
    assert.equal((await until(requested)).conversation_id, group.id);
  });
  // The server's grant alone makes nothing run: the person approves on this device first.
  const wanted = ["ask", "repeated", "execute", "repeated", "ask", "repeated"];
  assert.deepEqual(decisions, wanted);
  assert.deepEqual(mails, [{ text: "first" }, { text: "second" }, { text: "third" }]);
  assert.equal(Object.keys(consents.begun).length, 3);
});

test("the password that the server sees protects no backup; a start without a store is told", async (t) => {
  const said: string[] = [];
  const silent = (): void => {};
  const logger = { debug: silent, info: silent, error: silent, warn: (text: string) => void said.push(text) };
  const tools = { beep: { scope: "beep", sensitivity: "low" } } as const;
  const phone = await signIn(ada, cluster.nodes[1]!, "phone", { logger, tools });
  await assert.rejects(phone.devices.create(ada.password), UsageError);
  await phone.devices.create(ada.protectionPassword);
  assert.equal(said.filter((text) => text.includes("first contact with everybody")).length, 1);
  assert.equal(said.filter((text) => text.includes("no store of consents")).length, 1);
  const pins = phone.trust.store();
  const consents = new MemoryConsents();
  const next = await signIn(ada, cluster.nodes[1]!, "phone", { logger, tools, pins, consents });
  await next.devices.restore(ada.protectionPassword);
  assert.equal(said.length, 2);
  // A program that gave no logger is told as well.
  const warned = t.mock.method(console, "warn", () => {});
  const other = await signIn(ada, cluster.nodes[1]!, "phone");
  await other.devices.restore(ada.protectionPassword);
  assert.deepEqual(warned.mock.calls.map(({ arguments: [text] }) => text), [
    "blindpipe: no store is given: this start is a first contact with everybody",
  ]);
  await ada.client.devices.revoke("phone");
});

test("a lost device is revoked with those that it introduced", async () => {
  const carol = await cluster.user("carol");
  const phone = await signIn(carol, cluster.nodes[1]!, "phone");
  await phone.devices.restore(carol.protectionPassword);
  // The newest backup is the phone's, whose key introduces the next device.
  const thief = await signIn(carol, cluster.nodes[1]!, "thief");
  await thief.devices.restore(carol.protectionPassword);
  const { devices } = carol.client;
  assert.deepEqual(await devices.introducedBy("phone"), ["thief"]);
  assert.deepEqual(await thief.devices.introducedBy("phone"), []);
  await devices.revoke("phone", { withIntroduced: true });
  const left = (await devices.list()).map(({ device_id }) => device_id);
  assert.deepEqual(left, [carol.client.account.deviceId]);
});

test("an agent's link verifies its key", async () => {
  const options = await cluster.agent("linked", ada.client);
  const agent = new Agent(options).on("message", (ctx) => ctx.reply("here"));
  await agent.check();
  const response = await fetch(`${options.url}/agents/${options.agentId}/keys`, {
    headers: { authorization: `Bearer ${options.token}` },
  });
  const { data } = (await response.json()) as { data: { keys: { key_id: string }[] } };
  const key_id = data.keys[0]!.key_id;
  await running(agent, async () => {
    let stored: StoredPins | null = null;
    const onTrustChanged = (): void => void (stored = user.client.trust.store());
    const user = await cluster.user("linker", { onTrustChanged });
    const conversation = await user.client.openAgent(options.agentId, { keyId: key_id });
    // A store is told of the link at once: it counts also after a restart.
    const { principals } = stored as unknown as StoredPins;
    assert(Object.values(principals).some(({ linked }) => linked === key_id));
    const answer = await answerTo(user, () => conversation.send("?"));
    assert.equal(answer.opened?.sender.verified, true);
  });
});
