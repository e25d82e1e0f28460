// Clients written against the interface alone go on working beside `bp1` clients.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import type { Conversation, ReceivedMessage } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { PlainAgent, PlainPerson } from "./plain.js";
import { answerTo, collect, running, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;
let carl: PlainPerson;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
  carl = await PlainPerson.register(cluster.nodes[1]!, (email) => cluster.code(email), "carl");
});

after(() => cluster?.stop());

async function newest(conversation: Conversation): Promise<ReceivedMessage> {
  return (await conversation.history().next()).value!;
}

test("a plain person speaks clear with people and an agent who choose so", async () => {
  const options = await cluster.agent("both", ada.client);
  const heard: string[] = [];
  const agent = new Agent({ ...options, plaintext: "allow" }).on("message", async (ctx) => {
    heard.push(ctx.text);
    if (ctx.text === "from Carl") await ctx.reply("to all");
  });
  await running(agent, async () => {
    await ada.client.openAgent(options.agentId);
    const member_ids = [bob.client.account.userId, carl.id];
    const group = await ada.client.openGroup(member_ids, { title: "mixed" });
    await group.addAgent(options.agentId, "all");
    const bobs = bob.client.conversation(group.id);
    for (const mine of [group, bobs]) {
      await assert.rejects(mine.send("nobody chose clear text"), { name: "KeyUnavailable" });
      mine.chooseClear();
    }
    const live: string[] = [];
    const socket = await carl.connect((frame) => {
      if (frame.event === "message.created") live.push(frame.data.payload.text);
    });
    await group.send("from Ada");
    await bobs.send("from Bob");
    const reply = await answerTo(ada, () => carl.say(group.id, "from Carl"));
    assert.equal(reply.opened?.content["text"], "to all");
    const said = ["from Ada", "from Bob", "from Carl", "to all"];
    assert.deepEqual(await texts(group), said);
    assert.deepEqual(await texts(bobs), said);
    const plain = await carl.history(group.id);
    assert.deepEqual(
      plain.map(({ text }) => text),
      said,
    );
    // His socket brings all of it, his own message too.
    await until(() => live.length === said.length);
    assert.deepEqual(live, said);
    socket.close();
    const { opened } = await newest(group);
    assert.equal(opened?.sender.authentic, false);
    assert.deepEqual(
      opened?.notices.map(({ kind }) => kind),
      ["not_encrypted"],
    );
  });
  assert.deepEqual(heard.sort(), ["from Ada", "from Bob", "from Carl"]);
});

test("in an encrypted group a plain person is a member outside the secret", async () => {
  const member_ids = [bob.client.account.userId];
  const group = await ada.client.openGroup(member_ids, { title: "sealed" });
  const bobs = bob.client.conversation(group.id);
  await group.send("before Carl");
  await group.addMembers(carl.id);
  // The server wants a wrap for each device, and gets one for Carl's too.
  await group.send("with Carl");
  assert.deepEqual(await texts(bobs), ["before Carl", "with Carl"]);
  const wraps = await carl.call("GET", `/keys/groups/${group.id}`);
  assert.equal(wraps.epoch, wraps.current_epoch);
  assert.equal(wraps.wrapped_keys.length, 1);
  // Carl still sends, and reads what came after him; his clear text counts for nobody here.
  await carl.say(group.id, "in clear");
  const payloads = await carl.history(group.id);
  assert.deepEqual(
    payloads.map(({ type }) => type),
    ["encrypted", "text"],
  );
  assert.equal((await newest(group)).fault?.reason, "clear");
  // An epoch of his own scheme keeps nobody from going on in bp1.
  let epoch = 0;
  await collect(
    ada,
    async () => (epoch = await carl.rotate(group.id)),
    (all) => all.some((event) => event.type === "event" && event.event.event === "key.rotated"),
  );
  await group.send("after his epoch");
  await bobs.send("so say I");
  const found = ["before Carl", "with Carl", "clear", "after his epoch", "so say I"];
  assert.deepEqual(await texts(group), found);
  assert.deepEqual(await texts(bobs), found);
  assert((await group.info()).epoch >= epoch);
});

test("a plain agent with keys of its own scheme serves a person who chose clear text", async () => {
  const { agentId, token } = await cluster.agent("plain", ada.client);
  const agent = new PlainAgent(cluster.nodes[0]!, agentId, token);
  await agent.registerKeys();
  const stop = new AbortController();
  const run = agent.run(stop.signal);
  const conversation = await ada.client.openAgent(agentId);
  await assert.rejects(conversation.send("nobody chose"), { name: "KeyUnavailable" });
  conversation.chooseClear();
  const answer = await answerTo(ada, () => conversation.send("hello"));
  assert.equal(answer.opened?.content["text"], "You said: hello");
  stop.abort();
  await run;
  assert.deepEqual(agent.heard, [{ type: "text", text: "hello" }]);
});
