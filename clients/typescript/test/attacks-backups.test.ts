// An active server alters backups of keys, and serves old ones.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { signInBehind } from "./attacks.js";
import { Proxy, type Value } from "./proxy.js";
import { texts } from "./support.js";

let cluster: DevCluster;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  bob = await cluster.user("bob");
});

after(() => cluster?.stop());

test("an old backup is said to be old, and what it introduces waits", async () => {
  const user = await cluster.user("dora", { deviceId: "laptop" });
  const conversation = await bob.client.openDirect(user.client.userId);
  await conversation.send("to Dora's first key");
  const { http } = user.client.account;
  const old = await http.data<Value>({ method: "GET", path: "/keys/backup" });
  // New keys on the device: the first ones are retired.
  await user.client.devices.create(user.protectionPassword);
  bob.client.session.forget(conversation.id);
  await conversation.send("to Dora's second key");

  const proxy = await Proxy.start(cluster.nodes[0]!);
  proxy.onAnswer = ({ method, path }, { status }) =>
    method === "GET" && path === "/keys/backup" ? { status, body: { data: old } } : undefined;
  const { client, victim } = await signInBehind(user, proxy, "phone");
  await client.devices.restore(user.protectionPassword);
  assert.deepEqual(victim.told("old_backup"), [user.client.userId]);
  const onPhone = client.conversation(conversation.id);
  assert.equal((await texts(onPhone))[0], "to Dora's first key");
  await onPhone.send("from the phone");
  bob.client.session.forget(conversation.id);
  const { value: newest } = await conversation.history().next();
  assert.equal(newest!.opened?.sender.authentic ?? false, false);
  proxy.close();
});

test("an altered backup, and one with cheap costs, restore nothing", async () => {
  const user = await cluster.user("fred", { deviceId: "laptop" });
  const proxy = await Proxy.start(cluster.nodes[0]!);
  const { client } = await signInBehind(user, proxy, "phone");
  const serve = (change: (backup: Value) => object): void => {
    proxy.onAnswer = ({ method, path }, { status, body }) =>
      method === "GET" && path === "/keys/backup"
        ? { status, body: { data: body.data.map((each: Value) => ({ ...each, ...change(each) })) } }
        : undefined;
  };
  const bent = (text: string): string => {
    const bytes = e2ee.fromBase64(text);
    bytes[20]! ^= 1;
    return e2ee.base64(bytes);
  };
  serve(({ backup_b }) => ({ backup_b: bent(backup_b) }));
  await assert.rejects(client.devices.restore(user.protectionPassword), { reason: "wrong_key" });
  serve(() => ({ argon2_params: { m: 8, t: 1, p: 1 } }));
  await assert.rejects(client.devices.restore(user.protectionPassword), { reason: "wrong_key" });
  assert(!proxy.requests.some(({ method, path }) => method === "POST" && path === "/keys/backup"));
  proxy.close();
});

test("a backup of this device's key of before gives it no keys to sign with", async () => {
  const user = await cluster.user("gina", { deviceId: "laptop" });
  const { http } = user.client.account;
  const old = await http.data<Value[]>({ method: "GET", path: "/keys/backup" });
  const before = user.client.session.options.signer!.keyId;
  await user.client.devices.create(user.protectionPassword);
  const proxy = await Proxy.start(cluster.nodes[0]!);
  const serve = (backups: (now: Value[]) => Value[]): void => {
    proxy.onAnswer = ({ method, path }, { status, body }) =>
      method === "GET" && path === "/keys/backup"
        ? { status, body: { data: backups(body.data) } }
        : undefined;
  };
  const now = user.client.session.options.signer!.keyId;
  // The old one first, beside one that costs more than any device can pay.
  const costly = { ...old[0], argon2_params: { m: 4_194_304, t: 1_000, p: 1 } };
  serve((backups) => [costly, ...old, ...backups]);
  const first = await signInBehind(user, proxy, "laptop");
  const { signer } = await first.client.devices.restore(user.protectionPassword);
  assert.equal(e2ee.hex(signer.keyId), e2ee.hex(now));
  assert.deepEqual(first.victim.told("old_backup"), []);
  // Only the old one.
  serve(() => [costly, ...old]);
  const second = await signInBehind(user, proxy, "laptop");
  const restored = await second.client.devices.restore(user.protectionPassword);
  assert.deepEqual(second.victim.told("old_backup"), [user.client.userId]);
  assert.notEqual(e2ee.hex(restored.signer.keyId), e2ee.hex(before));
  assert(restored.opening.some(({ keyId }) => e2ee.hex(keyId) === e2ee.hex(before)));
  const made = proxy.requests.filter(({ method, path }) => `${method} ${path}` === "POST /keys/backup");
  assert.deepEqual(made.map(({ body }) => body.introduction), [undefined]);
  proxy.close();
});
