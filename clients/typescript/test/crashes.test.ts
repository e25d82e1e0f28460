// A handler that dies at every await point: each event is answered exactly once.
import assert from "node:assert/strict";
import type { RequestListener } from "node:http";
import { after, before, test } from "node:test";
import { Agent, type AgentOptions, type Context, toNode } from "@blindpipe/client/agent";
import type { Conversation, ReceivedMessage } from "@blindpipe/client";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { MortalWorld } from "./mortal.js";
import { listening, setWebhook, until } from "./support.js";

/** CRASHES=1000 for the long form. */
const CRASHES = Number(process.env["CRASHES"] ?? 60);
/** Points of a start and of a message together; dying later means to handle a message first. */
const POINTS = 26;
const MAX_LIFE_MS = 2_000;
const STARTS_AT_ONCE = 4;
/** The last life answers all that is left, in this time and a little more for each message. */
const SETTLE_MS = 20_000;
const MANY_PAGES = 24;

let cluster: DevCluster;

before(async () => {
  cluster = await devCluster();
});

after(() => cluster?.stop());

/** Two replies with awaits around them, and never the same text twice. */
function handler(world: MortalWorld): (ctx: Context) => Promise<void> {
  return async (ctx) => {
    await world.point();
    await ctx.reply(`first to ${ctx.text} ${Math.random()}`);
    await world.point();
    await ctx.reply(`second to ${ctx.text} ${Math.random()}`);
    await world.point();
  };
}

/** Lives of one agent, one after the other, each with another point of death. */
async function live(
  options: AgentOptions,
  conversation: Conversation,
  crashes: number,
): Promise<void> {
  for (let life = 0; life < crashes; life++) {
    const world = new MortalWorld(Math.floor(Math.random() * POINTS));
    await conversation.send(`message ${life}`);
    const url = cluster.nodes[life % 2]!;
    const { fetch, webSocket } = world;
    const agent = new Agent({ ...options, url, fetch, webSocket }).on("message", handler(world));
    const end = setTimeout(() => world.kill(), MAX_LIFE_MS);
    await world.run(agent);
    clearTimeout(end);
  }
}

/** The number of the newest message. */
async function lastNumber(user: TestUser, conversation: Conversation): Promise<number> {
  const path = `/conversations/${conversation.id}/messages`;
  const query = { limit: 1 };
  const [newest] = await user.client.account.http.data<{ seq: number }[]>({
    method: "GET",
    path,
    query,
  });
  return newest?.seq ?? 0;
}

async function history(conversation: Conversation): Promise<ReceivedMessage[]> {
  const all: ReceivedMessage[] = [];
  for await (const message of conversation.history({ limit: 100 })) all.unshift(message);
  return all;
}

test(`after ${CRASHES} deaths every message has both replies, once and in order`, async () => {
  const each = Math.ceil(CRASHES / STARTS_AT_ONCE);
  const lanes = Array.from({ length: STARTS_AT_ONCE }, async () => {
    const ada = await cluster.user("ada");
    const options = await cluster.agent("mortal", ada.client);
    await new Agent(options).check();
    const conversation = await ada.client.openAgent(options.agentId);
    await live(options, conversation, each);
    const world = new MortalWorld(-1);
    const agent = new Agent({ ...options, fetch: world.fetch }).on("message", handler(world));
    const stop = new AbortController();
    const run = agent.run({ signal: stop.signal });
    await until(
      async () => (await lastNumber(ada, conversation)) >= each * 3,
      SETTLE_MS + each * 100,
    );
    stop.abort();
    await run;
    const sent = Array.from({ length: each }, (_, i) => `message ${i}`);
    check(await history(conversation), sent);
  });
  await Promise.all(lanes);
});

/** Attempts of a delivery that may die. The service makes eight, and the last of them must live. */
const MORTAL_ATTEMPTS = 4;
/** The service waits between the attempts of a delivery, so these are fewer by default. */
const DELIVERY_CRASHES = Number(process.env["CRASHES"] ?? 12);
/** Conversations at once: a delivery that failed holds up those of its own conversation alone. */
const DELIVERY_LANES = 6;
/** Messages between two looks at the number of deaths. */
const MESSAGES_PER_ROUND = 3;
/** The service's waits of a delivery that dies four times, for each of its deaths. */
const MAX_DELIVERY_WAIT_MS = 5_000;
const SECRET = `whsec_${Buffer.alloc(32, 9).toString("base64")}`;

/** Receives each delivery with an agent that is started for it, and that may die in between. */
function receiver(options: AgentOptions, onDeath: () => void): RequestListener {
  const attempts = new Map<string, number>();
  return (request, response) => {
    const id = String(request.headers["webhook-id"]);
    const attempt = (attempts.get(id) ?? 0) + 1;
    attempts.set(id, attempt);
    const isMortal = attempt <= MORTAL_ATTEMPTS;
    const world = new MortalWorld(isMortal ? Math.floor(Math.random() * POINTS) : -1);
    const url = cluster.nodes[attempt % 2]!;
    const agent = new Agent({ ...options, url, fetch: world.fetch }).on("message", handler(world));
    // The dead answer nothing: the gateway before them does, and a late answer finds it closed.
    void toNode(agent.webhook(SECRET))(request, response);
    void world.death.then(() => {
      if (response.headersSent) return;
      onDeath();
      response.statusCode = 502;
      response.end();
    });
  };
}

/** An agent with a webhook that dies so often, and the conversation that it answers. */
async function deliveryLane(crashes: number): Promise<void> {
  const ada = await cluster.user("ada");
  const options = await cluster.agent("hooked", ada.client);
  await new Agent(options).check();
  let deaths = 0;
  const { server, url } = await listening(receiver(options, () => (deaths += 1)));
  try {
    await setWebhook(options, url, SECRET);
    const conversation = await ada.client.openAgent(options.agentId);
    const sent: string[] = [];
    while (deaths < crashes) {
      for (let n = 0; n < MESSAGES_PER_ROUND; n++) {
        const text = `message ${sent.length}`;
        await conversation.send(text);
        sent.push(text);
      }
      const isAnswered = async (): Promise<boolean> =>
        (await lastNumber(ada, conversation)) >= sent.length * 3;
      await until(isAnswered, SETTLE_MS + crashes * MAX_DELIVERY_WAIT_MS);
    }
    check(await history(conversation), sent);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test(`after ${DELIVERY_CRASHES} deaths by webhook every message has both replies`, async () => {
  const each = Math.ceil(DELIVERY_CRASHES / DELIVERY_LANES);
  await Promise.all(Array.from({ length: DELIVERY_LANES }, () => deliveryLane(each)));
});

function check(messages: readonly ReceivedMessage[], sent: readonly string[]): void {
  assert(
    messages.every((message) => message.opened?.encrypted),
    "everything opens",
  );
  const texts = messages
    .filter((message) => message.message.sender.type === "agent")
    .map((message) => String(message.opened!.content["text"]).replace(/ [\d.e-]+$/, ""));
  const wanted = sent.map((text) => [`first to ${text}`, `second to ${text}`]);
  assert.deepEqual(texts, wanted.flat());
}

test("after two days away the history says what was sent", async () => {
  const ada = await cluster.user("ada");
  const options = await cluster.agent("traveller", ada.client);
  await new Agent(options).check();
  const conversation = await ada.client.openAgent(options.agentId);
  await conversation.send("hello");
  const first = new MortalWorld(-1);
  const dying = new Agent({ ...options, fetch: first.fetch, webSocket: first.webSocket });
  dying.on("message", async (ctx) => {
    if (ctx.text !== "hello") return;
    // More lies between than a search of some pages would find.
    for (let number = 0; number < MANY_PAGES; number++) await conversation.send("more");
    await ctx.reply(`first ${Math.random()}`);
    first.kill();
    await first.point();
  });
  await first.run(dying);

  const sends: string[] = [];
  const counting: typeof fetch = async (...parameters) => {
    const isSend = String(parameters[0]).endsWith("/messages") && parameters[1]?.method === "POST";
    if (isSend) sends.push(String(parameters[0]));
    const [input, ...rest] = parameters;
    // Pages of one message.
    const path = String(input).replace(/(\/messages\?.*limit=)100\b/, (_, before) => `${before}1`);
    return fetch(path, ...rest);
  };
  const now = Date.now;
  Date.now = () => now() + 2 * 24 * 3_600_000;
  const stop = new AbortController();
  const again = new Agent({ ...options, fetch: counting }).on("message", async (ctx) => {
    if (ctx.text !== "hello") return;
    const sent = await ctx.reply(`first ${Math.random()}`);
    assert.equal(sent.duplicate, true);
    await ctx.reply("second");
    stop.abort();
  });
  try {
    await again.run({ signal: stop.signal });
  } finally {
    Date.now = now;
  }
  const texts = (await history(conversation)).map((each) => String(each.opened?.content["text"]));
  assert.deepEqual(
    texts.map((text) => text.split(" ")[0]),
    ["hello", ...Array.from({ length: MANY_PAGES }, () => "more"), "first", "second"],
  );
  assert.equal(sends.length, 1, "only the second reply was posted");
});
