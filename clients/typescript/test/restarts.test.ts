// A client's knowledge binds it after a restart, whatever the server says then.
import assert from "node:assert/strict";
import { appendFile, mkdtemp, readFile, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import {
  Agent,
  type AgentOptions,
  type Handled,
  type HandledStore,
  filePins,
} from "@blindpipe/client/agent";
import { Client, fileStore, isOutage } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Victim, again, attackedPerson, changed, isMessage } from "./attacks.js";
import { type Answer, Proxy, type Value } from "./proxy.js";
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

const newPath = async (): Promise<string> => join(await mkdtemp(join(tmpdir(), "kept-")), "kept");

/** The next run of a person's program on the same device, once its store has what it learned. */
async function restarted(
  path: string,
  proxy: Proxy,
  learned: string,
): Promise<{ client: Client; victim: Victim }> {
  await until(async () => (await readFile(`${path}.learned`, "utf8")).includes(learned));
  const victim = new Victim();
  const { hooks } = victim;
  return { client: await Client.resume({ url: proxy.url, store: fileStore(path), hooks }), victim };
}

type Attacked = Parameters<Parameters<typeof attackedPerson>[1]>[0];

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
  const path = await newPath();
  const during = async ({ proxy, user }: Attacked): Promise<void> => {
    const group = await user.client.openGroup([bob.client.userId], { title: "small" });
    await group.send("before");
    const mallory = newUlid();
    const { client, victim } = await restarted(path, proxy, '"members"');
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
  };
  await attackedPerson(cluster, during, { store: fileStore(path) });
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
  const path = await newPath();
  const during = async ({ proxy, user }: Attacked): Promise<void> => {
    const group = await user.client.openGroup([bob.client.userId, eve.client.userId]);
    await group.send("before");
    const { client, victim } = await restarted(path, proxy, '"members"');
    await eve.client.account.http.data({
      method: "DELETE",
      path: `/groups/${group.id}/members/${eve.client.userId}`,
    });
    await client.conversation(group.id).send("after");
    assert.deepEqual(victim.told("member_removed"), [eve.client.userId]);
  };
  await attackedPerson(cluster, during, { store: fileStore(path) });
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
  const path = await newPath();
  const during = async ({ proxy, user }: Attacked): Promise<void> => {
    const phone = await signIn(user, cluster.nodes[0]!, "phone");
    await phone.devices.restore(user.protectionPassword);
    const conversation = await user.client.openDirect(eve.client.userId);
    await conversation.send("with the phone");
    // The server lists no conversation, refuses a fresh secret, and says that none is due.
    const error = { code: "RATE_LIMITED", message: "", params: { retry_after_ms: 600_000 } };
    proxy.before = ({ path }) =>
      path === "/conversations" || path.endsWith("/rotate")
        ? { status: 429, body: { error } }
        : undefined;
    proxy.onAnswer = (_, answer) => {
      if (answer.body.data?.rotation_required === undefined) return undefined;
      answer.body.data.rotation_required = false;
      return answer;
    };
    await user.client.devices.revoke("phone");
    const { client } = await restarted(path, proxy, '"changed":true');
    const next = client.conversation(conversation.id);
    await assert.rejects(next.send("without the phone"), { name: "KeyUnavailable" });
    proxy.before = () => undefined;
    await next.send("without the phone");
    assert.deepEqual(await texts(next), ["with the phone", "without the phone"]);
    assert.equal(client.session.marks().get(conversation.id)?.changed, false);
  };
  await attackedPerson(cluster, during, { store: fileStore(path) });
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

/** Notes the newest frame of a message that passes. */
function watchMessages(proxy: Proxy): { newest: Value } {
  const seen: { newest: Value } = { newest: null };
  proxy.onFrame = (frame) => {
    if (isMessage(frame)) seen.newest = frame;
    return [frame];
  };
  return seen;
}

test("a message that was handled before a restart is not handled again", async (t) => {
  const made = await cluster.agent("elephant", ada.client);
  const proxy = await Proxy.start(made.url);
  t.after(() => proxy.close());
  const seen = watchMessages(proxy);
  const path = join(await mkdtemp(join(tmpdir(), "pins-")), "pins.json");
  const victim = new Victim();
  const options = { ...made, url: proxy.url, pins: path, hooks: victim.hooks };
  for (const text of ["before", "after"]) {
    const agent = new Agent(options).on("message", async (ctx) => {
      victim.heard.push(ctx.text);
      await ctx.reply("heard");
    });
    await running(agent, async () => {
      const conversation = await ada.client.openAgent(made.agentId);
      if (text === "after") {
        await until(() => victim.connections === 2);
        proxy.say(again(seen.newest));
      }
      await answerTo(ada, () => conversation.send(text));
    });
  }
  assert.deepEqual(victim.heard, ["before", "after"]);

  const handledPath = `${path}.handled`;
  assert.equal((await stat(handledPath)).mode & 0o777, 0o600);
  // A line that a crash cut off, and one of more than 31 days ago, are left out.
  const whole = await readFile(handledPath, "utf8");
  const [line] = whole.split("\n");
  await writeFile(handledPath, `${line!.replace(/^\d+/, "1000")}\n${whole}${line!.slice(0, -20)}`);
  const kept = [...(await filePins(path).loadHandled())];
  assert.equal(kept.length, 2);
  assert.equal(await readFile(handledPath, "utf8"), whole);
  await filePins(path).addHandled(kept.slice(0, 1));
  assert.deepEqual([...(await filePins(path).loadHandled())], [...kept, kept[0]]);
});

test("a file of handled messages does not grow with the age of the process", async () => {
  const path = join(await mkdtemp(join(tmpdir(), "pins-")), "pins.json");
  const store = filePins(path);
  const handled = (at: number): Handled => ({
    at,
    conversationId: newUlid(),
    sender: ada.client.self,
    clientMessageId: newUlid(),
  });
  await store.addHandled([handled(Date.now())]);
  await appendFile(`${path}.handled`, "torn");
  await store.addHandled(Array.from({ length: 10_000 }, () => handled(1000)));
  const lines = (await readFile(`${path}.handled`, "utf8")).trimEnd().split("\n");
  assert.equal(lines.length, 1);
});

test("that a message was handled is kept before it is acknowledged", async (t) => {
  const made = await cluster.agent("careful", ada.client);
  const proxy = await Proxy.start(made.url);
  t.after(() => proxy.close());
  const seen = watchMessages(proxy);
  const kept: Handled[] = [];
  const keptAtAck: number[] = [];
  let tries = 0;
  const store: HandledStore = {
    load: async () => null,
    save: async () => {},
    loadHandled: async () => [],
    addHandled: async (handled) => {
      await pause(300);
      if (tries++ === 0) throw new Error("the disk is full");
      kept.push(...handled);
    },
  };
  proxy.onClientFrame = (frame) => {
    const seq = Number(String(frame.cursor).split("-")[1]);
    if (frame.type === "ack" && seq >= seen.newest?.seq) keptAtAck.push(kept.length);
    return frame;
  };
  let failures = 0;
  const hooks = { store_failed: (): void => void failures++ };
  const agent = new Agent({ ...made, url: proxy.url, pins: store, hooks }).on("message", () => {});
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(made.agentId);
    await conversation.send("one");
    await until(() => keptAtAck.length > 0, 20_000);
  });
  assert.deepEqual([tries, failures], [2, 1]);
  assert.deepEqual([keptAtAck[0], kept[0]!.sender], [1, ada.client.self]);
});

test("a message under another spelling of its conversation's id is not handled again", async (t) => {
  const made = await cluster.agent("literate", ada.client);
  const proxy = await Proxy.start(made.url);
  t.after(() => proxy.close());
  const seen = watchMessages(proxy);
  const victim = new Victim();
  const answers = new Map<string, Answer>();
  proxy.onAnswer = ({ method, path }, answer) => {
    if (method === "GET") answers.set(path, answer);
    return undefined;
  };
  const agent = new Agent({ ...made, url: proxy.url, hooks: victim.hooks });
  agent.on("message", async (ctx) => {
    victim.heard.push(ctx.text);
    await ctx.reply("heard");
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(made.agentId);
    await answerTo(ada, () => conversation.send("once"));
    const conversation_id = conversation.id.toLowerCase();
    proxy.before = ({ path }) => answers.get(path.replace(conversation_id, conversation.id));
    proxy.say({ ...again(changed(seen.newest, { conversation_id })), conversation_id });
    await answerTo(ada, () => conversation.send("and more"));
  });
  assert.deepEqual([victim.heard, victim.faults], [["once", "and more"], []]);
});

test("a device goes on from its store while the service is away, and connects when it is back", async (t) => {
  const path = await newPath();
  const proxy = await Proxy.start(cluster.nodes[0]!);
  t.after(() => proxy.close());
  const options = () => ({ url: proxy.url, store: fileStore(path) });
  await assert.rejects(Client.resumeOffline(options()), { name: "Closed" });
  const person = await cluster.user("ada", options());
  const group = await person.client.openGroup([], { title: "notes" });
  await group.send("kept");
  await until(async () => (await readFile(`${path}.learned`, "utf8")).includes(group.id));

  proxy.isAway = true;
  // `resume` asks the service, and says that it is away. The sign-in is as good as before.
  await assert.rejects(Client.resume(options()), (error) => isOutage(error));
  proxy.requests.splice(0);
  const client = await Client.resumeOffline(options());
  assert.equal(client.userId, person.client.userId);
  assert.ok(Object.keys(client.trust.store().principals).length > 0);
  assert.deepEqual([...client.session.marks().keys()], [group.id]);
  const conversation = client.conversation(group.id);
  assert.deepEqual(proxy.requests, [], "nothing is asked");
  const ending = new AbortController();
  t.after(() => ending.abort());
  const shown: unknown[] = [];
  const showing = (async () => {
    for await (const event of client.events({ signal: ending.signal }))
      if (event.type === "message") shown.push(event.opened?.content["text"]);
  })();
  await until(() => proxy.requests.length > 0);
  proxy.isAway = false;
  assert.deepEqual(await texts(conversation), ["kept"]);
  await conversation.send("again");
  await until(() => shown.includes("again"), 30_000);
  ending.abort();
  await showing;

  await client.account.logout();
  const ended = await Client.resumeOffline(options());
  await assert.rejects(ended.events().next(), { name: "Closed" });
});
