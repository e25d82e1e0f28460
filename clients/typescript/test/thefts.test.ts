// The additions of a stolen session are seen and undone, and an identity is proven anew.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster, type DevCluster } from "@blindpipe/client/testing";
import { signIn } from "./support.js";

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

test("what another session added is undone", async () => {
  const [ada, bob] = [await cluster.user("ada"), await cluster.user("bob")];
  const options = await cluster.agent("foreign", bob.client);
  const phone = await signIn(ada, cluster.nodes[1]!, "phone");
  // A thief's device has no keys, and opens the conversation all the same.
  const body = { type: "agent", agent_id: options.agentId };
  await phone.account.http.data({ method: "POST", path: "/conversations", body });
  await cluster.agent("planted", phone);
  const devices = await ada.client.devices.list();
  const session = devices.find(({ device_id }) => device_id === "phone")!.session_id!;
  await ada.client.devices.revoke("phone");

  const { sessions } = ada.client;
  const listed = (await sessions.list()).find(({ session_id }) => session_id === session);
  assert.equal(listed?.changes, 2);
  const changes = await sessions.changes(session);
  const named = changes.map(({ kind, name }) => `${kind} ${name}`).sort();
  assert.deepEqual(named, ["agent planted", "relation foreign"]);
  await assert.rejects(bob.client.sessions.changes(session), { code: "NOT_FOUND" });
  const relation = changes.find(({ kind }) => kind === "relation")!;
  assert.deepEqual(await sessions.undo(session, [relation.id]), [relation]);
  const rest = await sessions.undo(session);
  assert.deepEqual(rest.map(({ kind }) => kind), ["agent"]);
  assert.deepEqual(await sessions.changes(session), []);
  assert.deepEqual(await sessions.undo(session), []);
});

test("an identity is proven anew", async () => {
  const ada = await cluster.user("ada");
  await ada.client.reauth({ accountPassword: ada.password });
  const wrong = ada.client.reauth({ accountPassword: "another password" });
  await assert.rejects(wrong, { code: "INVALID_CREDENTIALS" });
});
