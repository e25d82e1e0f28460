// The calls of an account: a sign-in that goes on, agents, profile, blocks, relations, limits.
import assert from "node:assert/strict";
import { createHmac, randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import {
  Client,
  Closed,
  type StoredSession,
  UsageError,
  supportsPasskeyAutofill,
  supportsPasskeys,
} from "@blindpipe/client";
import { AgentKey } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { MANIFEST, signIn, texts } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
});

after(() => cluster?.stop());

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("a sign-in goes on after a restart", async () => {
  const kept: StoredSession[] = [];
  const onSession = (session: StoredSession): unknown => kept.push(session);
  const url = cluster.nodes[0]!;
  const laptop = await signIn(ada, url, "laptop", { onSession });
  const keys = await laptop.devices.restore(ada.protectionPassword);
  const conversation = await laptop.openGroup([], { title: "notes" });
  await conversation.send("before");

  const again = await Client.resume({ url, onSession }, kept.at(-1)!);
  again.devices.useKeys(keys);
  const { userId, deviceId } = again.account;
  assert.deepEqual([userId, deviceId], [ada.client.account.userId, "laptop"]);
  assert.deepEqual(await texts(again.conversation(conversation.id)), ["before"]);
  assert.notEqual(kept.at(-1)!.cookie, kept[0]!.cookie, "a renewal replaces the stored one");

  const calls: string[] = [];
  const count = (...parameters: Parameters<typeof fetch>): Promise<Response> => {
    calls.push(new URL(String(parameters[0])).pathname);
    return fetch(...parameters);
  };
  const later = await Client.resumeOffline({ url, onSession, fetch: count }, kept.at(-1)!);
  later.devices.useKeys(keys);
  assert.deepEqual([later.userId, later.account.deviceId, calls], [userId, "laptop", []]);
  assert.deepEqual(await texts(later.conversation(conversation.id)), ["before"]);
  assert.equal(calls[0], "/auth/refresh", "the first call renews the sign-in");
  assert.equal(calls.filter((path) => path === "/auth/refresh").length, 1);
  await later.account.logout();
  await assert.rejects(Client.resume({ url }, kept.at(-1)!), Closed);
  const ended = await Client.resumeOffline({ url }, kept.at(-1)!);
  ended.devices.useKeys(keys);
  await assert.rejects(ended.events().next(), Closed);
});

test("agents are made, described, and given tokens", async () => {
  const { agents } = ada.client;
  const created = await agents.create("clerk", { description: "files things" });
  const { agent_id: agentId, token } = created;
  const ids = async (): Promise<string[]> => (await all(agents.list())).map((each) => each.agent_id);
  assert.ok((await ids()).includes(agentId));
  const changed = await agents.update(agentId, { display_name: "chief clerk" });
  assert.equal(changed.display_name, "chief clerk");

  const key = AgentKey.random().toText();
  const agent = new Agent({ url: cluster.nodes[0]!, agentId, token, key, manifest: MANIFEST });
  await agent.check();
  const shown = (await agents.get(agentId)) as { manifest?: typeof MANIFEST };
  assert.equal(shown.manifest?.tools[0]!.name, "send_email");
  assert.equal((await agents.keys(agentId)).keys.length, 1);
  const own = await agent.request<{ data: { agent_id: string } }>("GET", `/agents/${agentId}`);
  assert.equal(own.data.agent_id, agentId);
  await assert.rejects(agent.request("GET", "agents"), UsageError);

  assert.deepEqual(await all(agent.approvals()), []);
  assert.deepEqual(await all(agent.conversations()), []);

  assert.notEqual((await agents.rotate(agentId)).token, token);
  await assert.rejects(agents.webhook(agentId));
  assert.equal((await agents.revokeToken(agentId)).connections_closed, 0);
  await agents.delete(agentId);
  assert.ok(!(await ids()).includes(agentId));
});

test("the calls of an account", async () => {
  const { client } = ada;
  const bobsId = bob.client.account.userId;
  const renamed = await client.updateProfile({ display_name: "Ada L." });
  assert.equal(renamed.display_name, "Ada L.");
  assert.equal((await client.profile()).user_id, client.account.userId);
  await client.block(bobsId);
  assert.deepEqual(
    (await all(client.blocks())).map((each) => each.principal_id),
    [bobsId],
  );
  await client.unblock(bobsId);
  assert.deepEqual(await all(client.blocks()), []);
  assert.deepEqual(await all(client.passkeys()), []);
  assert.ok(await client.limits());
  const share = await client.share({ expiresAt: new Date(Date.now() + 3_600_000) });
  const card = await bob.client.openShare(share.share_id);
  assert.equal(card.kind, "contact");
  await client.revokeShare(share.share_id);
  await assert.rejects(bob.client.openShare(share.share_id));
  await assert.rejects(client.deleteObject("0".repeat(32)));
  assert.ok((await client.version()).supported.length > 0);
  const created = await client.agents.create("searched for");
  await client.openAgent(created.agent_id);
  const [relation] = await all(client.relations());
  assert.equal(relation!.agent_id, created.agent_id);
  const hits = await all(client.search("searched", { types: ["agent"] }));
  assert.deepEqual(hits.map((hit) => hit.kind), ["agent"]);
  assert.deepEqual(await all(client.accessLog({ agentId: created.agent_id })), []);
  assert.equal((await client.revokeRelation(relation!.relation_id)).state, "revoked");
  const group = await client.openGroup([bobsId], { title: "two" });
  await group.setTitle("both");
  await group.setRole(bobsId, "admin");
  await (await client.openDirect(bobsId)).requestRotation();
  await client.changePassword(ada.password, `another ${ada.password}`);
  await assert.rejects(client.request("GET", "https://example.com/"), UsageError);
});

test("a forgotten password takes a mailed code", async () => {
  const { email } = bob;
  const reset = { url: cluster.nodes[0]!, email, code: "000000", newPassword: "quite another one" };
  await assert.rejects(Client.resetPassword(reset), { code: "CODE_INVALID" });
});

test("messages are found by the tokens of a program", async () => {
  const key = randomBytes(32);
  const token = (word: string) => createHmac("sha256", key).update(word).digest("base64url");
  const tokens = (words: string): string[] => words.split(" ").map(token);
  const group = await ada.client.openGroup([], { title: "notes" });
  const both = await group.send("red green", { searchTokens: tokens("red green") });
  const red = await group.send("red", { searchTokens: tokens("red") });
  await group.send("none");
  const found = async (words: string): Promise<string[]> => {
    const hits = await all(ada.client.search(null, { tokens: tokens(words) }));
    return hits.map(({ id }) => id);
  };
  assert.deepEqual(await found("red"), [red.message_id, both.message_id]);
  assert.deepEqual(await found("green red"), [both.message_id]);
  assert.deepEqual(await found("none"), []);
});

test("words are found where a person wants it, by those who hold their secret", async () => {
  const eve = (await cluster.user("eve", { searchable: true })).client;
  const [bob, carol] = await Promise.all(
    ["bob", "carol"].map(async (name) => (await cluster.user(name)).client),
  );
  const group = await eve.openGroup([bob!.userId], { title: "words" });
  const found = async (reader: Client, text: string): Promise<string[]> => {
    const hits = await all(reader.conversation(group.id).search(text));
    return hits.map(({ id }) => id);
  };
  const first = await group.send("Deploy the Straße today");
  assert.deepEqual(await found(bob!, "STRASSE, deploy!"), [first.message_id]);
  assert.deepEqual(await found(bob!, "deploy tomorrow"), []);
  // Nothing is told of the words of others.
  await bob!.conversation(group.id).send("deploy nothing");
  assert.deepEqual(await found(eve, "deploy"), [first.message_id]);
  await assert.rejects(found(eve, "..."), UsageError);
  await assert.rejects(found(eve, [...Array(17).keys()].join(" ")), UsageError);

  await group.addMembers(carol!.userId);
  const second = await group.send("deploy again");
  assert.deepEqual(await found(bob!, "deploy"), [second.message_id, first.message_id]);
  assert.deepEqual(await found(carol!, "deploy"), [second.message_id]);
});

test("a device subscribes to pushes and ends them", async () => {
  const { devices } = ada.client;
  await assert.rejects(devices.subscription());
  // Any point of the curve will do, and nothing is sent to the address here.
  const keys = { p256dh: await devices.pushKey(), auth: "A".repeat(22) };
  const endpoint = "http://127.0.0.1:9/push";
  const made = await devices.subscribe({ endpoint, keys });
  assert.deepEqual([made.kind, made.last_error], ["webpush", null]);
  assert.ok(!JSON.stringify(made).includes(endpoint));
  const replaced = await devices.subscribe({ endpoint, keys }, "unifiedpush");
  assert.equal(replaced.kind, "unifiedpush");
  assert.deepEqual(await devices.subscription(), replaced);
  const wrong = { ...keys, p256dh: "no point" };
  await assert.rejects(devices.subscribe({ endpoint, keys: wrong }));
  await devices.unsubscribe();
  await assert.rejects(devices.subscription());
});

test("where there is no browser, no passkey is asked for", async () => {
  assert.equal(supportsPasskeys(), false);
  assert.equal(await supportsPasskeyAutofill(), false);
  const calls = [
    () => Client.signInWithPasskey({ url: cluster.nodes[0]! }),
    () => ada.client.registerPasskey("laptop"),
    () => ada.client.reauthWithPasskey(),
  ];
  for (const call of calls) await assert.rejects(call, { name: "UsageError" });
});
