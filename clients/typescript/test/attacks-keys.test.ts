// An active server injects members and devices, makes epochs, and serves old epochs and backups.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { AgentOptions } from "@blindpipe/client/agent";
import type { DeviceKeys } from "@blindpipe/client";
import * as e2ee from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { attackedAgent, attackedPerson, changed, shown, signInBehind } from "./attacks.js";
import { Proxy, type Request, type Value } from "./proxy.js";
import { answerTo, collect, texts, until } from "./support.js";

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

const idOf = (user: TestUser): string => user.client.account.userId;

/** A device of the server's own making, as a directory shows it. */
async function ownDevice(): Promise<{ keys: e2ee.KeyPair; shown: Value }> {
  const keys = await e2ee.importKeys(e2ee.generatePrivateKeys());
  const shown = {
    device_id: "listener",
    key_id: e2ee.hex(keys.keyId),
    public_key: e2ee.base64(keys.publicKey),
    signing_public_key: e2ee.base64(keys.signingPublicKey),
    schemes: ["bp1"],
    introduction: null,
    retired_at: null,
  };
  return { keys, shown };
}

/** Adds to every list of recipients, and takes the wraps of that before the node sees them. */
function inject(
  proxy: Proxy,
  add: (recipients: Value[]) => void,
  isInjected: (wrap: Value) => boolean,
): Value[] {
  const wraps: Value[] = [];
  proxy.onAnswer = ({ path }, { status, body }) => {
    if (!path.includes("/recipients") || status !== 200) return undefined;
    add(body.data.members);
    return { status, body };
  };
  proxy.onRequest = ({ path, body }) => {
    if (!path.endsWith("/rotate")) return body;
    wraps.push(...body.wrapped_keys.filter(isInjected));
    const wrapped_keys = body.wrapped_keys.filter((wrap: Value) => !isInjected(wrap));
    return { ...body, wrapped_keys };
  };
  return wraps;
}

const isSent = ({ method, path }: Request): boolean =>
  method === "POST" && path.endsWith("/messages");

test("a recipient who is no member as shown is given nothing, and that is said", async () => {
  const { shown: device } = await ownDevice();
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const member = {
      principal_type: "user",
      principal_id: idOf(eve),
      list_version: 1,
      devices: [device],
    };
    const wraps = inject(
      proxy,
      (recipients) => recipients.push(member),
      ({ principal_id }) => principal_id === idOf(eve),
    );
    const conversation = await user.client.openDirect(idOf(bob));
    await conversation.send("for Bob");
    assert.deepEqual(
      wraps.map(({ wrapped_key }) => wrapped_key),
      [e2ee.NOT_GIVEN],
    );
    assert.deepEqual(victim.told("not_member"), [idOf(eve)]);
    assert.deepEqual(victim.places, [["not_member", conversation.id]]);
    assert.deepEqual(await texts(bob.client.conversation(conversation.id)), ["for Bob"]);
  });
});

test("a member who is put in is named before anything is sealed for the new one", async () => {
  const { shown: device } = await ownDevice();
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const member_ids = [idOf(bob)];
    const group = await user.client.openGroup(member_ids, { title: "small" });
    await group.send("before");
    const member = {
      principal_type: "user",
      principal_id: idOf(eve),
      list_version: 1,
      devices: [device],
    };
    inject(
      proxy,
      (recipients) => recipients.push(member),
      ({ principal_id }) => principal_id === idOf(eve),
    );
    const { onAnswer } = proxy;
    proxy.onAnswer = (request, answer) => {
      if (request.path !== `/conversations/${group.id}`) return onAnswer(request, answer);
      const injected = {
        ...answer.body.data.members[0],
        principal_id: idOf(eve),
        display_name: "Eve",
      };
      answer.body.data.members.push(injected);
      return answer;
    };
    let told: readonly string[] | null = null;
    const { onRequest } = proxy;
    proxy.onRequest = (request) => {
      if (request.path.endsWith("/rotate")) told ??= victim.told("member_added");
      return onRequest(request);
    };
    user.client.session.forget(group.id);
    await group.send("after");
    assert.deepEqual(told, [idOf(eve)]);
  });
});

test("a device that is put into a known list is given nothing and not believed", async () => {
  const { keys, shown: device } = await ownDevice();
  await attackedPerson(cluster, async ({ proxy, victim, user }) => {
    const conversation = await user.client.openDirect(idOf(bob));
    await conversation.send("first");
    const wraps = inject(
      proxy,
      (recipients) =>
        recipients.find(({ principal_id }) => principal_id === idOf(bob)).devices.push(device),
      ({ device_id }) => device_id === device.device_id,
    );
    user.client.session.forget(conversation.id);
    await conversation.rotate();
    assert.deepEqual(
      wraps.map(({ wrapped_key }) => wrapped_key),
      [e2ee.NOT_GIVEN],
    );
    assert(victim.told("waiting_key").includes(idOf(bob)));
    // Words of the server in Bob's name stand under a notice.
    const { room } = await user.client.session.load(conversation.id);
    const place = { kind: e2ee.Kind.message, clientMessageId: e2ee.newUlid() };
    const sender = bob.client.self;
    const content = { type: "text", text: "I am Bob" };
    const time = Date.now();
    const secret = room.newest!;
    const envelope = await e2ee.seal({ secret, place, sender, keys, content, time });
    const forged = {
      message_id: e2ee.newUlid(),
      conversation_id: conversation.id,
      seq: 9,
      sender,
      payload: e2ee.payload(envelope),
      client_message_id: place.clientMessageId,
      created_at: new Date(time).toISOString(),
    };
    const received = await conversation.open(forged as never, true);
    assert.equal(received.opened?.sender.authentic, false);
    assert(received.opened?.notices.some(({ kind }) => kind === "waiting_key"));
  });
});

/** Tells an agent of an epoch, wrapped by somebody's key; the secret of it. */
async function announce(
  proxy: Proxy,
  options: AgentOptions,
  conversationId: string,
  epoch: number,
  by: TestUser,
  rotatorKeys: e2ee.KeyPair,
): Promise<e2ee.EpochKey> {
  const raw = e2ee.newSecret();
  const conversation = e2ee.idBytes(conversationId);
  const secret = await e2ee.EpochKey.ofEpoch(raw, conversation, epoch);
  const [seed] = e2ee.AgentKey.parseAll(String(options.key));
  const wrapped_key = await e2ee.sealWrap({
    kind: 1,
    secret: raw,
    sid: secret.sid,
    conversation,
    epoch,
    recipient: { type: "agent", id: options.agentId },
    recipientKeys: await seed!.keys(),
    rotator: by.client.self,
    rotatorKeys,
    madeAt: Date.now(),
  });
  proxy.say({
    type: "event",
    event: "key.rotated",
    event_id: e2ee.newUlid(),
    cursor: "10000-1",
    seq: 1,
    conversation_id: conversationId,
    created_at: new Date().toISOString(),
    data: { conversation_id: conversationId, epoch, by: idOf(by), wrapped_keys: [{ wrapped_key }] },
  });
  return secret;
}

test("an epoch of the server's own making seals nothing", async () => {
  const { keys } = await ownDevice();
  await attackedAgent(cluster, ada, async ({ proxy, options }) => {
    const conversation = await ada.client.openAgent(options.agentId);
    await answerTo(ada, () => conversation.send("one"));
    // In Ada's name, under a key that the server has made.
    const made = await announce(proxy, options, conversation.id, 9, ada, keys);
    const answer = await answerTo(ada, () => conversation.send("two"));
    assert.equal(answer.opened?.content["text"], "You said: two");
    const { sid } = e2ee.readHeader(e2ee.envelopeOf(answer.message.payload));
    assert.notEqual(e2ee.hex(sid), e2ee.hex(made.sid));
  });
});

test("an epoch whose event is dropped is read when it is needed", async () => {
  await attackedAgent(cluster, ada, async ({ proxy, victim, options }) => {
    proxy.onFrame = (frame) => (frame.event === "key.rotated" ? [] : [frame]);
    const conversation = await ada.client.openAgent(options.agentId);
    await answerTo(ada, () => conversation.send("one"));
    await conversation.rotate();
    const answer = await answerTo(ada, () => conversation.send("two"));
    assert.equal(answer.opened?.content["text"], "You said: two");
    assert.deepEqual(victim.faults, []);
  });
});

test("an epoch by somebody who has left seals nothing: the agent waits for another", async () => {
  const errors: unknown[] = [];
  const hooks = { dead_letter: ({ error }: { error: unknown }) => void errors.push(error) };
  const during = async ({
    proxy,
    options,
  }: {
    proxy: Proxy;
    options: AgentOptions;
  }): Promise<void> => {
    await ada.client.openAgent(options.agentId);
    const member_ids = [idOf(eve)];
    const group = await ada.client.openGroup(member_ids, { title: "with Eve" });
    await group.addAgent(options.agentId, "all");
    await answerTo(ada, () => group.send("one"));
    await group.removeMember(idOf(eve));
    await answerTo(ada, () => group.send("two"));
    const { signer } = eve.client.session.options;
    await announce(proxy, options, group.id, 9, eve, signer!);
    const before = proxy.requests.filter(isSent).length;
    await group.send("three");
    await until(() => errors.length > 0);
    assert.equal((errors[0] as Error).name, "KeyUnavailable");
    assert.equal(proxy.requests.filter(isSent).length, before);
  };
  await attackedAgent(cluster, ada, during, { hooks });
});

function kept({ client }: TestUser): DeviceKeys {
  const { signer, opening } = client.session.options;
  return { signer: signer!, opening };
}

test("a secret of before seals nothing more, whatever the server calls current", async () => {
  const proxy = await Proxy.start(cluster.nodes[0]!);
  const user = await cluster.user("carol", { deviceId: "laptop" });
  const conversation = await user.client.openDirect(idOf(bob));
  await conversation.send("in epoch 1");
  const path = `/keys/groups/${conversation.id}`;
  const old = await user.client.account.http.data<Value>({ method: "GET", path });
  await conversation.rotate();
  await conversation.send("in epoch 2");
  const marks = user.client.session.marks();
  assert.equal(marks.get(conversation.id)?.epoch, 2);
  // The server goes back to the first epoch, whose secret somebody holds who was removed.
  proxy.onAnswer = ({ method, path: asked }, { status, body }) => {
    if (method === "GET" && asked.startsWith(path) && !asked.includes("recipients")) {
      return { status: 200, body: { data: { ...old, current_epoch: 1 } } };
    }
    if (asked !== `/conversations/${conversation.id}`) return undefined;
    return { status, body: { data: { ...body.data, epoch: 1, rotation_required: false } } };
  };
  const { client } = await signInBehind(user, proxy, "laptop", {
    marks,
    pins: user.client.trust.store(),
  });
  client.devices.useKeys(kept(user));
  await assert.rejects(client.conversation(conversation.id).send("under no secret of before"));
  assert.deepEqual(proxy.requests.filter(isSent), []);
  proxy.close();
});

test("an agent stays in the newest epoch or waits, whatever the server calls current", async () => {
  const errors: unknown[] = [];
  const hooks = { dead_letter: ({ error }: { error: unknown }) => void errors.push(error) };
  const during = async ({
    proxy,
    options,
  }: {
    proxy: Proxy;
    options: AgentOptions;
  }): Promise<void> => {
    const conversation = await ada.client.openAgent(options.agentId);
    await answerTo(ada, () => conversation.send("in epoch 1"));
    const { http } = ada.client.account;
    const path = `/keys/groups/${conversation.id}`;
    const old = await http.data<Value>({ method: "GET", path });
    await conversation.rotate();
    await answerTo(ada, () => conversation.send("in epoch 2"));
    const lie = (about: (path: string) => object | undefined): void => {
      proxy.onAnswer = (request, { status, body }) => {
        const data = about(request.path);
        return data && { status, body: { data: { ...body.data, ...data } } };
      };
      // An event that makes the agent read the conversation again.
      const data = { conversation_id: conversation.id };
      const event = { type: "event", event: "conversation.updated", cursor: "10000-1", seq: 1 };
      const created_at = new Date().toISOString();
      const event_id = e2ee.newUlid();
      proxy.say({ ...event, event_id, conversation_id: conversation.id, created_at, data });
    };
    const about = `/conversations/${conversation.id}`;
    lie((asked) => (asked === about ? { epoch: 1 } : undefined));
    const answer = await answerTo(ada, () => conversation.send("still in epoch 2"));
    assert.equal(answer.opened?.epoch, 2);
    lie((asked) => {
      if (asked === about) return { epoch: 1 };
      return asked.startsWith(path) && !asked.includes("recipients")
        ? { ...old, current_epoch: 1 }
        : undefined;
    });
    const before = proxy.requests.filter(isSent).length;
    await conversation.send("not under epoch 1");
    await until(() => errors.length > 0);
    assert.equal((errors[0] as Error).name, "KeyUnavailable");
    assert.equal(proxy.requests.filter(isSent).length, before);
  };
  await attackedAgent(cluster, ada, during, { hooks });
});

test("a message under a key that has left is refused when it comes live", async () => {
  const user = await cluster.user("gina", { deviceId: "laptop" });
  await attackedPerson(cluster, async ({ proxy, victim, user: person }) => {
    const conversation = await user.client.openDirect(idOf(person));
    await conversation.send("first");
    const shownToHim = person.client.conversation(conversation.id);
    assert.deepEqual(await texts(shownToHim), ["first"]);
    let held: Value = null;
    const events = await collect(
      person,
      async () => {
        proxy.onFrame = (frame) => {
          if (frame.event !== "message.created" || held) return [frame];
          held = frame;
          return [];
        };
        await conversation.send("held back");
        await until(() => held);
        await user.client.devices.create(user.protectionPassword);
        // The events of the new keys are read meanwhile.
        const isRetired = until(() => victim.told("retired_key").length > 0);
        void isRetired.then(() => {
          const created_at = new Date(Date.now() + 1_000).toISOString();
          proxy.say(changed(held, { created_at }));
        });
      },
      (all) => all.some(({ type }) => type === "message"),
    );
    assert.deepEqual(shown(events), ["retired_key"]);
  });
});

test("an epoch that the server numbers otherwise is an error, and nothing is sent", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const conversation = await user.client.openDirect(idOf(bob));
    proxy.onAnswer = ({ path }, { status, body }) => {
      if (!path.endsWith("/rotate")) return undefined;
      return { status, body: { data: { ...body.data, epoch: body.data.epoch + 1 } } };
    };
    await assert.rejects(conversation.send("never"), /numbered/);
    assert.deepEqual(proxy.requests.filter(isSent), []);
  });
});

test("nobody is led to clear text: neither at first nor after anything was encrypted", async () => {
  await attackedPerson(cluster, async ({ proxy, user }) => {
    const lie = (): void => {
      proxy.onAnswer = ({ path }, { status, body }) => {
        if (path.includes("/recipients")) {
          for (const { devices } of body.data.members) for (const key of devices) key.schemes = [];
          return { status, body };
        }
        if (!/^\/conversations\/[^/]+$/.test(path)) return undefined;
        return { status, body: { data: { ...body.data, epoch: 0 } } };
      };
    };
    const encrypted = await user.client.openDirect(idOf(bob));
    await encrypted.send("encrypted");
    lie();
    // Somebody new, of whom the server says that they speak no bp1: the person is asked.
    const fresh = await user.client.openDirect(idOf(eve));
    await assert.rejects(fresh.send("never"), { name: "KeyUnavailable" });
    // Where anything was encrypted, not even the person's choice goes back.
    user.client.session.forget(encrypted.id);
    encrypted.chooseClear();
    await encrypted.send("still encrypted").catch(() => {});
    const sent = proxy.requests.filter(isSent).map(({ body }) => body.payload.type);
    assert(sent.length > 0 && sent.every((type) => type === "encrypted"), String(sent));
  });
});

test("an agent whose link names another key is verified by nobody", async () => {
  const options = await cluster.agent("impostor", ada.client);
  await attackedPerson(cluster, async ({ victim, user }) => {
    const { Agent } = await import("@blindpipe/client/agent");
    await new Agent(options).check();
    const key_id = "00".repeat(16);
    const agent_id = options.agentId;
    const conversation = await user.client.openAgent(agent_id, { keyId: key_id });
    await conversation.send("?");
    assert.deepEqual(victim.told("link_retired"), [agent_id]);
    const [pin] = user.client.trust.keysOf({ type: "agent", id: agent_id });
    assert.equal(pin?.standing, "waiting");
  });
});
