// An agent and a person on two nodes of a real cluster.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, type AgentOptions } from "@blindpipe/client/agent";
import type { Conversation } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, running } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

async function talk(options: AgentOptions): Promise<Conversation> {
  return ada.client.openAgent(options.agentId);
}

test("an echo is encrypted both ways", async () => {
  const options = await cluster.agent("echo", ada.client);
  const agent = new Agent(options).on("message", (ctx) => ctx.reply(`You said: ${ctx.text}`));
  await running(agent, async () => {
    const conversation = await talk(options);
    const answer = await answerTo(ada, () => conversation.send("Grüße"));
    assert.equal(answer.fault, null);
    assert.equal(answer.opened?.content["text"], "You said: Grüße");
    assert(answer.opened?.encrypted && answer.opened.sender.authentic);
    assert.equal(answer.message.payload?.["type"], "encrypted");
  });
});
