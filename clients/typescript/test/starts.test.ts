// A stop and an activation count whenever they come: before the start, during it, after it.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { AgentKey, newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, running, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

/** A service that never answers, and an agent of it. */
async function silent(
  during: (agent: Agent, asked: readonly string[]) => Promise<void>,
): Promise<void> {
  const asked: string[] = [];
  const server = createServer((request) => void asked.push(request.url!));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const key = AgentKey.random().toText();
  try {
    await during(new Agent({ url, agentId: newUlid(), token: "hsk_none", key }), asked);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** The outcome of a run that has to end at once. */
function soon(run: Promise<void>): Promise<string> {
  const late = new Promise<string>((resolve) => setTimeout(resolve, 1_000, "late").unref());
  return Promise.race([run.then(() => "ended"), late]);
}

test("a stop before the start ends it without a request", async () => {
  for (const transport of ["socket", "poll"] as const) {
    await silent(async (agent, asked) => {
      agent.stop();
      assert.equal(await soon(agent.run({ transport })), "ended");
      assert.deepEqual(asked, []);
    });
  }
});

test("a stop during the start ends it, and is final", async () => {
  await silent(async (agent, asked) => {
    const run = agent.run();
    await until(() => asked.length > 0);
    agent.stop();
    assert.equal(await soon(run), "ended");
    assert.equal(await soon(agent.run()), "ended");
    assert.equal(asked.length, 1);
  });
});

test("a standby that is activated before its start handles events", async () => {
  const options = await cluster.agent("early", ada.client);
  const agent = new Agent(options).on("message", (ctx) => ctx.reply("here"));
  agent.activate();
  await running(
    agent,
    async () => {
      const conversation = await ada.client.openAgent(options.agentId);
      const answer = await answerTo(ada, () => conversation.send("?"));
      assert.equal(answer.opened?.content["text"], "here");
    },
    { standby: true },
  );
});
