// Nothing goes out in clear by accident.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent } from "@blindpipe/client/agent";
import { UsageError } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Proxy } from "./proxy.js";
import { MANIFEST, SCOPE, grant, running, until } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

test("an agent without a key starts only if clear text is allowed", async () => {
  const { key: _, ...options } = await cluster.agent("keyless", ada.client);
  for (const key of [undefined, "", []]) {
    for (const plaintext of [undefined, "refuse"] as const) {
      const agent = new Agent({ ...options, key, plaintext });
      await assert.rejects(agent.check(), UsageError);
      await assert.rejects(agent.run(), /BLINDPIPE_KEY/);
    }
  }
  await new Agent({ ...options, plaintext: "allow" }).check();
  const variables = {
    BLINDPIPE_URL: options.url,
    BLINDPIPE_AGENT_ID: options.agentId,
    BLINDPIPE_TOKEN: options.token,
  };
  Object.assign(process.env, variables);
  try {
    await assert.rejects(Agent.fromEnv().check(), UsageError);
    process.env["BLINDPIPE_PLAINTEXT"] = "alow";
    assert.throws(() => Agent.fromEnv(), UsageError);
    process.env["BLINDPIPE_PLAINTEXT"] = "allow";
    await Agent.fromEnv().check();
  } finally {
    for (const name of [...Object.keys(variables), "BLINDPIPE_PLAINTEXT"]) delete process.env[name];
  }
});

test("an agent that lost its key handles no envelope, and says nothing in clear", async () => {
  const options = await cluster.agent("forgetful", ada.client, MANIFEST);
  await new Agent(options).check();
  const conversation = await ada.client.openAgent(options.agentId);
  await grant(options, ada, conversation);
  await conversation.send("a secret");
  const proxy = await Proxy.start(options.url);
  const reasons: string[] = [];
  const lines: unknown[] = [];
  const errors: string[] = [];
  const note = (): void => {};
  const warn = (message: string, fields?: object): void => void lines.push([message, fields]);
  const agent = new Agent({
    ...options,
    url: proxy.url,
    key: undefined,
    plaintext: "allow",
    hooks: { undecryptable: ({ reason }) => void reasons.push(reason) },
    logger: { debug: note, info: note, warn, error: note },
  })
    .on("message", () => assert.fail("nothing opens"))
    .on("grant.decided", async (ctx) => {
      const failed = (error: Error): void => void errors.push(error.name);
      await ctx.send(conversation.id, "in clear").then(() => assert.fail(), failed);
      const out = ctx.stream();
      out.write("in clear");
      await out.end().then(() => assert.fail(), failed);
      const call = { tool: "send_email", scope: SCOPE, arguments: {}, user: ada.client.userId };
      await ctx.call(call).then(() => assert.fail(), failed);
    });
  const frames: string[] = [];
  proxy.onClientFrame = (frame) => (frames.push(frame.type), frame);
  await running(agent, async () => {
    await until(() => reasons.length > 0);
    await until(() => errors.length === 3);
  });
  assert.deepEqual(reasons, ["no_epoch_key"]);
  assert.deepEqual(errors, ["KeyUnavailable", "KeyUnavailable", "KeyUnavailable"]);
  assert(JSON.stringify(lines).includes("no_epoch_key"));
  const isWrite = /\/(messages|artifact-requests)$/;
  assert(!proxy.requests.some(({ method, path }) => method === "POST" && isWrite.test(path)));
  assert(!frames.some((type) => type.startsWith("stream.")));
  proxy.close();
});

test("after an envelope that does not open, nothing is answered in clear", async () => {
  const options = await cluster.agent("mixed", ada.client);
  const { key: _, ...keyless } = options;
  const conversation = await ada.client.openAgent(options.agentId);
  const send = (payload: object): Promise<unknown> =>
    ada.client.account.http.data({
      method: "POST",
      path: `/conversations/${conversation.id}/messages`,
      body: { payload },
    });
  for (const given of [keyless, options]) {
    const heard: string[] = [];
    const reasons: string[] = [];
    const agent = new Agent({
      ...given,
      plaintext: "allow",
      hooks: { undecryptable: ({ reason }) => void reasons.push(reason) },
    }).on("message", (ctx) => void heard.push(ctx.text));
    await running(agent, async () => {
      await send({ type: "text", text: "before" });
      await until(() => heard.length === 1);
      const id = conversation.id;
      await send({ type: "encrypted", v: 1, ciphertext: Buffer.alloc(300, 1).toString("base64") });
      await until(() => reasons.length === 1);
      await send({ type: "text", text: `after ${id}` });
      await until(() => reasons.length === 2);
    });
    assert.deepEqual([heard, reasons[1]], [["before"], "clear"]);
  }
});
