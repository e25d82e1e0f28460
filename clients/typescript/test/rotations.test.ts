// A fresh secret that is due: what a server that refuses it can and cannot hold up.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedPerson } from "./attacks.js";
import type { Answer, Proxy, Value } from "./proxy.js";
import { signIn, texts } from "./support.js";

let cluster: DevCluster;
let eve: TestUser;

before(async () => {
  cluster = await devCluster();
  eve = await cluster.user("eve");
});

after(() => cluster?.stop());

const LIMITED: Answer = {
  status: 429,
  body: { error: { code: "RATE_LIMITED", message: "", params: { retry_after_ms: 600_000 } } },
};
const MISMATCH: Answer = {
  status: 409,
  body: { error: { code: "VERSION_MISMATCH", message: "", params: {} } },
};
const UNAVAILABLE = { name: "KeyUnavailable" };

/** Refuses every rotation, and says that none is due. */
function refuse(proxy: Proxy, answer: Answer): void {
  proxy.before = ({ path }) => (path.endsWith("/rotate") ? answer : undefined);
  proxy.onAnswer = (_, { status, body }) => {
    if (body.data?.rotation_required === undefined) return undefined;
    return { status, body: { ...body, data: { ...body.data, rotation_required: false } } };
  };
}

function allow(proxy: Proxy): void {
  proxy.before = () => undefined;
  proxy.onAnswer = () => undefined;
}

interface Told {
  readonly conversation_id: string;
  readonly because: string;
}

function listening(): { told: Told[]; hooks: object } {
  const told: Told[] = [];
  return { told, hooks: { not_rotated: (details: Told) => void told.push(details) } };
}

const sends = (proxy: Proxy): Value[] =>
  proxy.requests.filter(({ method, path }) => method === "POST" && path.endsWith("/messages"));

for (const answer of [LIMITED, MISMATCH]) {
  test(`after a removal nothing goes under the old secret, if rotations are answered ${answer.status}`, async () => {
    const { told, hooks } = listening();
    const during = async ({ proxy, user }: { proxy: Proxy; user: TestUser }): Promise<void> => {
      const group = await user.client.openGroup([eve.client.userId]);
      await group.send("with Eve");
      const { epoch } = await group.info();
      refuse(proxy, answer);
      await assert.rejects(group.removeMember(eve.client.userId), UNAVAILABLE);
      assert.deepEqual(told, [{ conversation_id: group.id, because: "change" }]);
      await assert.rejects(group.send("without Eve"), UNAVAILABLE);
      assert(told.length > 1);
      assert.equal(sends(proxy).length, 1);
      allow(proxy);
      await group.send("without Eve");
      assert((await group.info()).epoch > epoch);
      assert.deepEqual(await texts(group), ["with Eve", "without Eve"]);
    };
    await attackedPerson(cluster, during, { hooks });
  });
}

test("after a revocation nothing goes under the old secret", async () => {
  const { told, hooks } = listening();
  const during = async ({ proxy, user }: { proxy: Proxy; user: TestUser }): Promise<void> => {
    const phone = await signIn(user, cluster.nodes[0]!, "phone");
    await phone.devices.restore(user.protectionPassword);
    const conversation = await user.client.openDirect(eve.client.userId);
    await conversation.send("with the phone");
    refuse(proxy, LIMITED);
    await user.client.devices.revoke("phone");
    assert.deepEqual(told, [{ conversation_id: conversation.id, because: "change" }]);
    await assert.rejects(conversation.send("without it"), UNAVAILABLE);
    allow(proxy);
    await conversation.send("without it");
    assert.deepEqual(await texts(conversation), ["with the phone", "without it"]);
  };
  await attackedPerson(cluster, during, { hooks });
});

test("a secret that is only old goes on for ten minutes after the first refusal", async () => {
  const { told, hooks } = listening();
  const { now } = Date;
  const during = async ({ proxy, user }: { proxy: Proxy; user: TestUser }): Promise<void> => {
    const conversation = await user.client.openDirect(eve.client.userId);
    await conversation.send("young");
    const { epoch } = await conversation.info();
    const later = (minutes: number): void => {
      Date.now = () => now() + (8 * 24 * 60 + minutes) * 60_000;
    };
    later(0);
    refuse(proxy, LIMITED);
    await conversation.send("old");
    later(9);
    await conversation.send("still");
    assert.equal((await conversation.info()).epoch, epoch);
    assert.deepEqual(told, []);
    later(11);
    await assert.rejects(conversation.send("too old"), UNAVAILABLE);
    assert.deepEqual(told, [{ conversation_id: conversation.id, because: "age" }]);
    allow(proxy);
    await conversation.send("fresh");
    assert((await conversation.info()).epoch > epoch);
    assert.deepEqual(await texts(conversation), ["young", "old", "still", "fresh"]);
  };
  try {
    await attackedPerson(cluster, during, { hooks });
  } finally {
    Date.now = now;
  }
});
