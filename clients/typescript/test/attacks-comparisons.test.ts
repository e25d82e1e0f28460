// An active server lists keys of its own beside a key that people compared or a link named.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as e2ee from "@blindpipe/client/e2ee";
import { Agent } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedPerson } from "./attacks.js";
import type { Proxy, Value } from "./proxy.js";
import { running, texts } from "./support.js";

let cluster: DevCluster;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  bob = await cluster.user("bob");
});

after(() => cluster?.stop());

/** The server lists a key of its own for somebody; the wraps that it is given. */
async function listEvil(proxy: Proxy, of: string, isInstead: boolean): Promise<string[]> {
  const keys = await e2ee.importKeys(e2ee.generatePrivateKeys());
  const evil = {
    device_id: "evil",
    key_id: e2ee.hex(keys.keyId),
    public_key: e2ee.base64(keys.publicKey),
    signing_public_key: e2ee.base64(keys.signingPublicKey),
    schemes: ["bp1"],
    introduction: null,
    retired_at: null,
  };
  const given: string[] = [];
  proxy.onAnswer = ({ method, path }, { status, body }) => {
    if (method !== "GET" || status !== 200) return undefined;
    const isOwn = path === `/keys/users/${of}/devices`;
    if (!isOwn && !path.includes("/recipients")) return undefined;
    const holders = isOwn ? [body.data] : body.data.members;
    const holder = holders.find((one: Value) => isOwn || one.principal_id === of);
    if (holder) holder.devices = [...(isInstead ? [] : holder.devices), evil];
    return { status, body };
  };
  proxy.onRequest = ({ path, body }) => {
    if (!path.endsWith("/rotate")) return body;
    const isEvil = ({ device_id }: Value): boolean => device_id === "evil";
    const mine = body.wrapped_keys.filter(isEvil);
    given.push(...mine.map(({ wrapped_key }: Value) => wrapped_key));
    return { ...body, wrapped_keys: body.wrapped_keys.filter((wrap: Value) => !isEvil(wrap)) };
  };
  return given;
}

test("a key beside the one that people compared reads nothing", async () => {
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const given = await listEvil(proxy, bob.client.self.id, false);
    const conversation = await user.client.openDirect(bob.client.self.id);
    await conversation.send("first contact");
    assert.notEqual(given.at(-1), e2ee.NOT_GIVEN);
    // The digits are of all keys, so they differ.
    const theirs = await bob.client.safetyNumber(user.client.self);
    assert.notEqual(await user.client.safetyNumber(bob.client.self), theirs);
    await assert.rejects(user.client.verify(bob.client.self, theirs), e2ee.UsageError);
    // Bob shows the key of his device alone.
    const { signer } = bob.client.session.options;
    user.client.verifyKey(bob.client.self, e2ee.hex(signer!.keyId));
    assert(victim.told("waiting_key").includes(bob.client.self.id));
    await conversation.send("for Bob alone");
    assert.equal(given.at(-1), e2ee.NOT_GIVEN);
    const read = await texts(bob.client.conversation(conversation.id));
    assert.equal(read.at(-1), "for Bob alone");
  });
});

/** Somebody follows an agent's link, while the server lists a key of its own. */
async function linked(isInstead: boolean): Promise<{ given: string[]; told: string[] }> {
  const made = await cluster.agent("linked", bob.client);
  const agent = new Agent(made).on("message", (ctx) => ctx.reply("here"));
  const [seed] = e2ee.AgentKey.parseAll(String(made.key));
  const keyId = e2ee.hex((await seed!.keys()).keyId);
  const found = { given: [] as string[], told: [] as string[] };
  await running(agent, () =>
    attackedPerson(cluster, async ({ proxy, victim, user }) => {
      found.given = await listEvil(proxy, made.agentId, isInstead);
      const conversation = await user.client.openAgent(made.agentId, { keyId });
      // The node misses a wrap for the key that the server hides.
      await conversation.send("for the agent").catch(() => {});
      found.told = victim.notices.map(([type]) => type);
    }),
  );
  return found;
}

test("a key beside the one of a link reads nothing", async () => {
  const { given, told } = await linked(false);
  assert(told.includes("waiting_key"));
  assert(given.length > 0 && given.every((wrap) => wrap === e2ee.NOT_GIVEN));
});

test("a key instead of the one of a link reads nothing", async () => {
  const { given, told } = await linked(true);
  assert(told.includes("link_retired") && told.includes("waiting_key"));
  assert(given.length > 0 && given.every((wrap) => wrap === e2ee.NOT_GIVEN));
});
