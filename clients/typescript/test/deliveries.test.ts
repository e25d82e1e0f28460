// Deliveries of one message at once, and answers that a tool call waits for.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Agent, toNode } from "@blindpipe/client/agent";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { Proxy, type Value } from "./proxy.js";
import {
  MANIFEST,
  SCOPE,
  eventOf,
  grant,
  listening,
  running,
  setWebhook,
  signed,
  texts,
  until,
} from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

const SECRET = "a secret of one's own making";
/** In the form that the service takes. */
const WHOLE_SECRET = `whsec_${Buffer.alloc(32, 9).toString("base64")}`;

test("while a delivery is handled, the same message again is asked for later", async () => {
  const options = await cluster.agent("busy", ada.client);
  let heard = 0;
  let end!: () => void;
  const ended = new Promise<void>((resolve) => (end = resolve));
  const agent = new Agent(options).on("message", async () => {
    heard += 1;
    await ended;
  });
  await agent.check();
  const conversation = await ada.client.openAgent(options.agentId);
  await conversation.send("hello");
  const body = await eventOf(options, "message.created");
  const again = JSON.stringify({ ...JSON.parse(body), event_id: options.agentId });
  const receive = agent.webhook(SECRET);
  // In turn, at once, and as another event.
  const first = receive(signed(SECRET, body));
  const second = receive(signed(SECRET, body));
  const refused = await Promise.race([first, second]);
  assert.equal(refused.status, 503);
  assert.equal(refused.headers.get("retry-after"), "5");
  for (const other of [body, again]) {
    assert.equal((await receive(signed(SECRET, other))).status, 503);
  }
  end();
  const statuses = [(await first).status, (await second).status];
  assert.deepEqual(statuses.sort(), [200, 503]);
  for (const other of [body, again]) {
    assert.equal((await receive(signed(SECRET, other))).status, 200);
  }
  assert.equal(heard, 1);
});

test("a message whose first handler has failed is handled by a later delivery", async () => {
  const options = await cluster.agent("clumsy", ada.client);
  let heard = 0;
  const agent = new Agent(options).on("message", () => {
    heard += 1;
    if (heard === 1) throw new Error("once");
    // Anything may be thrown, and the receiver answers all the same.
    if (heard === 2) throw undefined;
  });
  await agent.check();
  const conversation = await ada.client.openAgent(options.agentId);
  await conversation.send("hello");
  const body = await eventOf(options, "message.created");
  const receive = agent.webhook(SECRET);
  const statuses: number[] = [];
  for (let n = 0; n < 4; n++) statuses.push((await receive(signed(SECRET, body))).status);
  assert.deepEqual([statuses, heard], [[500, 500, 200, 200], 3]);
});

for (const status of [403, 404]) {
  test(`a call whose looks are answered ${status} ends with that error`, async (t) => {
    const made = await cluster.agent("asker", ada.client, MANIFEST);
    const proxy = await Proxy.start(made.url);
    t.after(() => proxy.close());
    let asks = 0;
    proxy.before = ({ path }) => {
      const isLook = path.endsWith("/artifact-requests") && ++asks > 1;
      // A fault that passes ends no wait.
      return isLook ? { status: asks === 2 ? 500 : status, body: {} } : undefined;
    };
    let fault: unknown = null;
    const agent = new Agent({ ...made, url: proxy.url }).on("message", async (ctx) => {
      const call = ctx.call({ tool: "send_email", scope: SCOPE, arguments: {} });
      await call.catch((error: unknown) => (fault = error));
    });
    await running(agent, async () => {
      const conversation = await ada.client.openAgent(made.agentId);
      await grant(made, ada, conversation);
      await conversation.send("please");
      const { status: found } = (await until(() => fault, 20_000)) as { status: number };
      assert.deepEqual([found, asks], [status, 3]);
    });
  });
}

test("a stop by webhook ends the handler of the delivery under way", async () => {
  const options = await cluster.agent("stopped", ada.client);
  const seen: string[] = [];
  const agent = new Agent(options)
    .on("message", async (ctx) => {
      seen.push("begun");
      await pause(30_000, null, { signal: ctx.stopped }).catch(() => seen.push("aborted"));
    })
    .onStop(() => seen.push("stop"));
  await agent.check();
  const { server, url } = await listening(toNode(agent.webhook(WHOLE_SECRET)));
  try {
    await setWebhook(options, url, WHOLE_SECRET);
    const conversation = await ada.client.openAgent(options.agentId);
    await conversation.send("slow");
    await until(() => seen.includes("begun"));
    const askedAt = Date.now();
    assert.equal(await conversation.stop(), 1);
    await until(() => seen.length === 3);
    assert.ok(Date.now() - askedAt < 20_000, "before the handler would have ended");
    // Deliveries run at once, so the two have no order.
    assert.deepEqual(seen.toSorted(), ["aborted", "begun", "stop"]);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("a batch runs conversations side by side and names what failed", async () => {
  const options = await cluster.agent("batched", ada.client);
  const bob = await cluster.user("bob");
  let failures = 1;
  let calls = 0;
  const agent = new Agent(options).on("message", async (ctx) => {
    if (ctx.text === "slow") await pause(2_000);
    if (ctx.text === "bad" && failures-- > 0) throw new Error("once");
    await ctx.reply(`You said: ${ctx.text}`);
  });
  await agent.check();
  const receive = agent.webhook(WHOLE_SECRET);
  const sizes: number[] = [];
  const { server, url } = await listening(
    toNode(async (request) => {
      const body = (await request.clone().json()) as { events?: unknown[] };
      sizes.push(body.events?.length ?? 0);
      calls += 1;
      return receive(request);
    }),
  );
  try {
    const id = options.agentId;
    const webhook = await ada.client.agents.setWebhook(id, url, WHOLE_SECRET, 50);
    assert.equal(webhook.max_events, 50);
    const conversation = await ada.client.openAgent(id);
    const bobs = await bob.client.openAgent(id);
    const answers = async (of: typeof conversation) => {
      const all = (await texts(of)).map(String);
      return all.filter((text) => text.startsWith("You said"));
    };
    await conversation.send("first");
    await until(async () => (await answers(conversation)).length === 1, 20_000);
    const before = calls;
    await conversation.send("slow");
    await until(() => calls > before);
    for (const text of ["one", "bad", "two"]) await conversation.send(text);
    await bobs.send("elsewhere");
    await until(async () => (await answers(conversation)).length === 5, 30_000);
    await until(async () => (await answers(bobs)).length === 1, 20_000);
    const said = ["first", "slow", "one", "bad", "two"].map((text) => `You said: ${text}`);
    assert.deepEqual(await answers(conversation), said, "in order");
    assert.ok(Math.max(...sizes) > 1, `several in a call: ${sizes}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("a delivery that is too large for its body is read by its address, and only as it was named", async (t) => {
  const { url: node, agentId, token } = await cluster.agent("large", ada.client);
  const proxy = await Proxy.start(node);
  t.after(() => proxy.close());
  const [heard, errors]: string[][] = [[], []];
  const silent = (): void => {};
  const error = (message: string): void => void errors!.push(message);
  const logger = { debug: silent, info: silent, warn: silent, error };
  const options = { url: proxy.url, agentId, token, logger, plaintext: "allow" } as const;
  const agent = new Agent(options).on("message", (ctx) => void heard!.push(ctx.text));
  const receive = agent.webhook([WHOLE_SECRET, SECRET]);
  let delivery: Value = null;
  const { server, url } = await listening(
    toNode(async (request) => {
      const body: Value = await request.clone().json();
      if (body.event !== "message.created") return receive(request);
      delivery = body;
      return Response.json({});
    }),
  );
  t.after(() => server.close());
  await setWebhook(options, url, WHOLE_SECRET);
  const conversation = await ada.client.openAgent(agentId);
  conversation.chooseClear();
  const long = "x".repeat(1_048_400);
  await conversation.send(long);
  const { object_ref: named } = (await until(() => delivery)).data;

  const lies: [reference: object, altered: (bytes: Uint8Array) => Uint8Array][] = [
    [{}, (bytes) => bytes.map((byte, at) => (at === 100 ? byte ^ 1 : byte))],
    [{}, (bytes) => bytes.subarray(1)],
    [{}, (bytes) => Buffer.concat([bytes, Buffer.from(" ")])],
    [{ sha256: "0".repeat(64) }, (bytes) => bytes],
    [{ size: named.size + 1 }, (bytes) => bytes],
    [{ size: undefined }, (bytes) => bytes],
  ];
  const deliver = (reference: object): Promise<Response> => {
    const body = { ...delivery, data: { object_ref: { ...named, ...reference } } };
    return receive(signed(SECRET, JSON.stringify(body)));
  };
  for (const [reference, altered] of lies) {
    proxy.onBytes = (_, bytes) => altered(bytes);
    const answer = await deliver(reference);
    assert.equal(answer.status, 503);
    assert.equal(await answer.text(), "the data of an event are not those that its delivery names");
  }
  assert.deepEqual(heard, []);
  assert.equal(errors!.length, lies.length);
  proxy.onBytes = (_, bytes) => bytes;
  assert.equal((await deliver({})).status, 200);
  assert.ok(heard!.length === 1 && heard![0] === long, "it is read whole");
});
