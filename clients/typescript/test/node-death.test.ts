// A node is killed. It runs alone: other tests use the same nodes.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, collect, fromAgent, running } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

test("a node dies: the socket comes back, and nothing is lost or doubled", async () => {
  const options = await cluster.agent("survivor", ada.client);
  const lost: number[] = [];
  const agent = new Agent({
    ...options,
    hooks: { disconnected: ({ code }) => void lost.push(code) },
  });
  agent.on("message", (ctx) => ctx.reply(`You said: ${ctx.text}`));
  await running(agent, async () => {
    const conversation = await ada.client.openAgent(options.agentId);
    const first = await answerTo(ada, () => conversation.send("before"));
    assert.equal(first.opened?.content["text"], "You said: before");
    cluster.kill(cluster.nodes.length - 1);
    const events = await collect(
      ada,
      async () => {
        for (let i = 0; i < 10; i++) await conversation.send(`after ${i}`);
      },
      (all) => all.filter(fromAgent).length >= 10,
    );
    const texts = events.filter(fromAgent).map((event) => event.opened?.content["text"]);
    assert.deepEqual(
      texts,
      Array.from({ length: 10 }, (_, i) => `You said: after ${i}`),
    );
    assert(lost.length > 0, "the connection was lost");
  });
});
