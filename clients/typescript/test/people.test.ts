// The person's side: another device, groups, addressed agents, files, rotations.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import type { Conversation, ReceivedMessage } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, collect, running, signIn, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([
    cluster.user("ada"),
    cluster.user("bob", { url: cluster.nodes[1]! }),
  ]);
});

after(() => cluster?.stop());

test("two people in a direct conversation, on two nodes", async () => {
  const conversation = await ada.client.openDirect(bob.client.account.userId);
  const events = await collect(
    bob,
    () => conversation.send("Grüße, Bob"),
    (all) => all.some((event) => event.type === "message"),
  );
  const received = events.find((event) => event.type === "message")!;
  assert.equal(received.opened?.content["text"], "Grüße, Bob");
  await received.conversation.send("Grüße, Ada", { inReplyTo: received });
  // After 10,000 messages under a secret people rotate: those that pass are counted.
  const counted = await bob.client.session.load(conversation.id);
  assert.equal(counted.room.server.messages, 2);
  assert.deepEqual(await texts(conversation), ["Grüße, Bob", "Grüße, Ada"]);
  const [answer] = await newest(conversation);
  assert.equal(answer!.opened?.content["re"], received.opened?.re);
});

async function newest(conversation: Conversation): Promise<ReceivedMessage[]> {
  const all: ReceivedMessage[] = [];
  for await (const message of conversation.history()) all.push(message);
  return all;
}

test("another device restores the keys, reads everything, and writes with its own", async () => {
  const conversation = await ada.client.openDirect(bob.client.account.userId);
  await conversation.send("for the history");
  const phone = await signIn(ada, cluster.nodes[1]!, "phone");
  await assert.rejects(phone.devices.restore("another password"), { reason: "wrong_key" });
  await phone.devices.restore(ada.protectionPassword);
  const onPhone = phone.conversation(conversation.id);
  assert((await texts(onPhone)).includes("for the history"));
  await onPhone.send("from the phone");
  assert.equal((await texts(onPhone)).at(-1), "from the phone");
  const devices = await phone.devices.list();
  assert.equal(devices.filter((device) => device.has_keys).length, 2);
  await phone.devices.revoke("phone");
  await assert.rejects(phone.devices.list(), { status: 401 });
});

test("an addressed agent reads what names it and nothing else", async () => {
  const options = await cluster.agent("addressed", ada.client);
  await new Agent(options).check();
  await ada.client.openAgent(options.agentId);
  const userId = bob.client.account.userId;
  const group = await ada.client.openGroup([userId], { title: "all" });
  await group.addAgent(options.agentId);
  const heard: string[] = [];
  const agent = new Agent(options).on("message", async (ctx) => {
    heard.push(ctx.text);
    await ctx.reply(`heard: ${ctx.text}`);
  });
  await running(agent, async () => {
    await group.send("not for machines");
    const answer = await answerTo(ada, () =>
      group.send("for the agent", { to: [options.agentId] }),
    );
    assert.equal(answer.opened?.content["text"], "heard: for the agent");
  });
  assert.deepEqual(heard, ["for the agent"]);
  const bobs = bob.client.conversation(group.id);
  const wanted = ["not for machines", "for the agent", "heard: for the agent"];
  assert.deepEqual(await texts(bobs), wanted);
});

test("a stream of an agent reaches the addressed agents that it names", async () => {
  const [writes, reads] = [
    await cluster.agent("writer", ada.client),
    await cluster.agent("reader", ada.client),
  ];
  const heard: string[] = [];
  const reader = new Agent(reads).on("message", (ctx) => void heard.push(ctx.text));
  const writer = new Agent(writes).on("message", async (ctx) => {
    const out = ctx.stream({ to: [reads.agentId] });
    for (const word of ["for ", "you"]) {
      out.write(word);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await out.end();
  });
  await running(writer, () =>
    running(reader, async () => {
      for (const { agentId } of [writes, reads]) await ada.client.openAgent(agentId);
      const group = await ada.client.openGroup([]);
      await group.addAgent(writes.agentId, "all");
      await group.addAgent(reads.agentId);
      await group.send("to the writer");
      await until(() => heard.length > 0);
    }),
  );
  assert.deepEqual(heard, ["for you"]);
});

test("a removed member gets no secret of what follows", async () => {
  const eve = await cluster.user("eve");
  const userId = eve.client.account.userId;
  const group = await ada.client.openGroup([userId], { title: "few" });
  await group.send("with Eve");
  assert.deepEqual(await texts(eve.client.conversation(group.id)), ["with Eve"]);
  const before = (await group.info()).epoch;
  await group.removeMember(userId);
  assert((await group.info()).epoch > before, "it rotated at once");
  await group.send("without Eve");
  const entry = await ada.client.session.load(group.id);
  assert(entry.room.newest!.epoch > before);
  assert.deepEqual(
    entry.recipients.map((each) => each.principal.id),
    [ada.client.account.userId],
  );
});

test("files are sealed before they leave", async () => {
  const options = await cluster.agent("files", ada.client);
  const bytes = randomBytes(200_000);
  const agent = new Agent(options).on("message", async (ctx) => {
    const got = await ctx.file().bytes();
    assert(Buffer.from(got).equals(bytes));
    await ctx.sendFile({ name: "back.bin", contentType: "application/octet-stream", bytes: got });
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    const file = { name: "there.bin", contentType: "application/octet-stream", bytes };
    const answer = await answerTo(ada, () => conversation.sendFile(file));
    const content = answer.opened!.content;
    assert.equal(content["name"], "back.bin");
    assert(Buffer.from(await conversation.downloadFile(content)).equals(bytes));
  });
});

test("clear text goes to somebody without bp1 only by choice, and comes under a mark", async () => {
  const { key: _, ...options } = await cluster.agent("plain", ada.client);
  const agent = new Agent({ ...options, plaintext: "allow" }).on("message", (ctx) => ctx.reply(`plain: ${ctx.text}`));
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    await assert.rejects(conversation.send("hello"), { name: "KeyUnavailable" });
    conversation.chooseClear();
    const answer = await answerTo(ada, () => conversation.send("hello"));
    assert.equal(answer.opened?.content["text"], "plain: hello");
    assert.equal(answer.opened?.encrypted, false);
    assert.deepEqual(
      answer.opened?.notices.map(({ kind }) => kind),
      ["not_encrypted"],
    );
  });
});
