// A person stops an agent, and steers it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Agent } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, running, texts, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

test("a stop reaches a busy handler within a second", async () => {
  const options = await cluster.agent("busy", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const [begun, ended] = [[] as string[], [] as string[]];
  const agent = new Agent(options)
    .on("message", async (ctx) => {
      begun.push(ctx.text);
      if (ctx.text === "quick") return ctx.reply("yes");
      await pause(60_000, null, { signal: ctx.stopped }).catch(() => {});
      await ctx.reply("I stop");
      throw new Error("stopped");
    })
    .onStop((ctx) => ended.push(ctx.event.event));
  await running(agent, async () => {
    await conversation.send("slow");
    await until(() => begun.length > 0);
    const askedAt = Date.now();
    assert.equal(await conversation.stop(), 1);
    await until(() => ended.length > 0);
    assert.ok(Date.now() - askedAt < 1_000);
    // It is not handled again, and what comes after is.
    const came = await answerTo(ada, () => conversation.send("quick"));
    assert.equal(came.opened!.content["text"], "yes");
  });
  assert.deepEqual(begun, ["slow", "quick"]);
  assert.deepEqual(await texts(conversation), ["slow", "I stop", "quick", "yes"]);
});

test("a handler takes what arrives meanwhile", async () => {
  const options = await cluster.agent("steered", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const begun: string[] = [];
  const agent = new Agent(options).on("message", async (ctx) => {
    begun.push(ctx.text);
    const taken: string[] = [];
    while (ctx.text === "plan" && taken.length < 2) {
      taken.push(...(await ctx.steer()).map((message) => message.text));
      await pause(20);
    }
    await ctx.reply([ctx.text, ...taken].join(" and "));
  });
  await running(agent, async () => {
    await conversation.send("plan");
    await until(() => begun.length > 0);
    await conversation.send("in red");
    const came = await answerTo(ada, () => conversation.send("with a hat"));
    assert.equal(came.opened!.content["text"], "plan and in red and with a hat");
    const next = await answerTo(ada, () => conversation.send("next"));
    assert.equal(next.opened!.content["text"], "next");
  });
  assert.deepEqual(begun, ["plan", "next"]);
});

test("a newer message interrupts", async () => {
  const options = await cluster.agent("hasty", ada.client);
  const conversation = await ada.client.openAgent(options.agentId);
  const begun: string[] = [];
  const agent = new Agent({ ...options, busyPolicy: "interrupt" }).on("message", async (ctx) => {
    begun.push(ctx.text);
    if (ctx.text === "first") await pause(60_000, null, { signal: ctx.stopped });
    await ctx.reply(ctx.text);
  });
  await running(agent, async () => {
    await conversation.send("first");
    await until(() => begun.length > 0);
    const came = await answerTo(ada, () => conversation.send("second"));
    assert.equal(came.opened!.content["text"], "second");
  });
  assert.deepEqual(begun, ["first", "second"]);
});
