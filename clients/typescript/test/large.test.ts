// Contents that do not fit an envelope, and files with their captions.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { contentView } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, running } from "./support.js";

const LONG = "é".repeat(500_000);
let cluster: DevCluster;
let ada: TestUser;
let bob: TestUser;

before(async () => {
  cluster = await devCluster();
  [ada, bob] = await Promise.all([cluster.user("ada"), cluster.user("bob")]);
});

after(() => cluster?.stop());

test("a large content goes as a file, both ways", async () => {
  const made = await cluster.agent("echo", ada.client);
  const heard: string[] = [];
  const agent = new Agent(made).on("message", async (ctx) => {
    heard.push(ctx.text);
    await ctx.reply(`${ctx.text}!`);
  });
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(made.agentId);
    const came = await answerTo(ada, () => conversation.send(LONG));
    assert.ok(heard.length === 1 && heard[0] === LONG);
    assert.ok(came.opened!.content["text"] === `${LONG}!`);
    assert.ok(came.opened!.content["re"]);
    assert.ok(JSON.stringify(came.message.payload).length < 5_000);
  });
});

test("a file has a caption and a thumbnail", async () => {
  const conversation = await ada.client.openDirect(bob.client.account.userId);
  await conversation.sendFile({
    name: "cat.png",
    contentType: "image/png",
    bytes: new TextEncoder().encode("a cat"),
    caption: "our cat",
    kind: "image",
    thumbnail: { contentType: "image/png", bytes: new Uint8Array(4), width: 8, height: 6 },
  });
  const bobs = bob.client.conversation(conversation.id);
  const { value } = await bobs.history().next();
  const content = value!.opened!.content;
  assert.equal(contentView(content).text, "our cat");
  assert.equal(content["kind"], "image");
  assert.equal(new TextDecoder().decode(await bobs.downloadFile(content)), "a cat");
});
