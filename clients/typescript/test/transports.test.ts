// An agent by socket, poll and webhook; clear text; standby.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { mkdtemp, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Agent, toNode, type AgentOptions } from "@blindpipe/client/agent";
import type { Conversation } from "@blindpipe/client";
import { newUlid } from "@blindpipe/client/e2ee";
import { devCluster, type DevCluster, type TestUser } from "@blindpipe/client/testing";
import { answerTo, collect, fromAgent, listening, running, setWebhook } from "./support.js";

let cluster: DevCluster;
let ada: TestUser;

before(async () => {
  cluster = await devCluster();
  ada = await cluster.user("ada");
});

after(() => cluster?.stop());

function echo(options: AgentOptions): Agent {
  return new Agent(options).on("message", (ctx) => ctx.reply(`You said: ${ctx.text}`));
}

async function talk(options: AgentOptions): Promise<Conversation> {
  return ada.client.openAgent(options.agentId);
}

async function isAnswered(conversation: Conversation, text: string): Promise<void> {
  const answer = await answerTo(ada, () => conversation.send(text));
  assert.equal(answer.opened?.content["text"], `You said: ${text}`);
}

test("by poll, and the acknowledgement is the cursor", async () => {
  const options = await cluster.agent("poller", ada.client);
  await running(
    echo(options),
    async () => {
      const conversation = await talk(options);
      await isAnswered(conversation, "one");
      await isAnswered(conversation, "two");
    },
    { transport: "poll" },
  );
  // Another run begins after what the first one has handled.
  const replayed: string[] = [];
  const again = new Agent(options).on("message", (ctx) => void replayed.push(ctx.text));
  await running(again, async () => {
    const conversation = await talk(options);
    await conversation.send("three");
    for (const end = Date.now() + 5_000; replayed.length === 0 && Date.now() < end;) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  });
  assert.deepEqual(replayed, ["three"]);
});

test("by webhook, from the real dispatcher; a failed handler runs again", async () => {
  const options = await cluster.agent("hooked", ada.client);
  const secret = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
  let failures = 1;
  const replayed: boolean[] = [];
  const agent = new Agent(options).on("message", async (ctx) => {
    replayed.push(ctx.replayed);
    await ctx.reply(`You said: ${ctx.text}`);
    if (failures-- > 0) throw new Error("once");
  });
  await agent.check();
  // The secret is being rotated: deliveries under either one are genuine.
  const next = `whsec_${Buffer.alloc(32, 8).toString("base64")}`;
  const receive = toNode(agent.webhook([next, secret]));
  const { server, url } = await listening((request, response) => void receive(request, response));
  try {
    await setWebhook(options, url, secret);
    const conversation = await talk(options);
    await isAnswered(conversation, "first");
    await isAnswered(conversation, "second");
    const texts: unknown[] = [];
    for await (const message of conversation.history())
      texts.unshift(message.opened?.content["text"]);
    assert.deepEqual(texts, ["first", "You said: first", "second", "You said: second"]);
    assert.deepEqual(replayed, [false, true, false]);
    const forged = await fetch(url, { method: "POST", body: "{}" });
    assert.equal(forged.status, 401);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("a webhook's handler that is too slow asks for another try", async (t) => {
  const options = await cluster.agent("slow", ada.client);
  let begin = (): void => {};
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const agent = new Agent(options).on("agent.created", () => {
    begin();
    return new Promise(() => {});
  });
  await agent.check();
  const secret = "a secret without a prefix";
  const receive = agent.webhook(secret);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const event = { event_id: newUlid(), event: "agent.created", cursor: "1-1", seq: 1, data: {} };
  const body = JSON.stringify({ ...event, created_at: new Date().toISOString() });
  const [id, now] = ["msg_1", String(Math.floor(Date.now() / 1000))];
  const signature = createHmac("sha256", secret).update(`${id}.${now}.${body}`).digest("base64");
  const signed = {
    "webhook-id": id,
    "webhook-timestamp": now,
    "webhook-signature": `v1,${signature}`,
  };
  const deliver = (headers: Record<string, string>): Promise<Response> =>
    receive(new Request("http://agent.invalid/", { method: "POST", headers, body }));
  const answer = deliver(signed);
  await begun;
  t.mock.timers.tick(9_000);
  assert.equal((await answer).status, 503);
  assert.equal((await answer).headers.get("retry-after"), "5");
  const late = { ...signed, "webhook-timestamp": String(Number(now) - 301) };
  assert.equal((await deliver(late)).status, 401);
});

test("other events have handlers too, behind the same middleware", async () => {
  const options = await cluster.agent("watcher", ada.client);
  const seen: string[] = [];
  const agent = new Agent(options)
    .use(async (ctx, next) => {
      seen.push(`before ${ctx.event.event}`);
      await next();
      seen.push(`after ${ctx.event.event}`);
    })
    .on("relation.created", (ctx) => void seen.push(String(ctx.payload["agent_id"])))
    .on("message", (ctx) => ctx.reply("done"));
  await running(agent, async () => {
    const conversation = await talk(options);
    await answerTo(ada, () => conversation.send("?"));
  });
  const wanted = ["before relation.created", options.agentId, "after relation.created"];
  assert.deepEqual(seen, [...wanted, "before message.created", "after message.created"]);
});

test("clear text is refused unless the developer allows it", async () => {
  const options = await cluster.agent("strict", ada.client);
  const reasons: string[] = [];
  const refusing = new Agent({
    ...options,
    hooks: { undecryptable: ({ reason }) => void reasons.push(reason) },
  }).on("message", (ctx) => ctx.reply(`You said: ${ctx.text}`));
  const conversation = await talk(options);
  const sendClear = (text: string): Promise<unknown> =>
    ada.client.account.http.data({
      method: "POST",
      path: `/conversations/${conversation.id}/messages`,
      body: { payload: { type: "text", text } },
    });
  await running(refusing, async () => {
    await sendClear("hello");
    for (const end = Date.now() + 5_000; reasons.length === 0 && Date.now() < end;) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    assert.deepEqual(reasons, ["clear"]);
  });
  const allowing = new Agent({ ...options, plaintext: "allow" });
  allowing.on("message", (ctx) => ctx.reply(`You said: ${ctx.text} (${ctx.encrypted})`));
  await running(allowing, async () => {
    const events = await collect(
      ada,
      () => sendClear("again"),
      (all) => all.some(fromAgent),
    );
    const answer = events.find(fromAgent)!;
    assert.equal(answer.message.payload?.["text"], "You said: again (false)");
    // The person never chose clear text here, so it is not shown as said by anybody.
    assert.equal(answer.fault?.reason, "clear");
  });
});

test("a standby handles nothing until it is activated", async () => {
  const options = await cluster.agent("pair", ada.client);
  const handled: string[] = [];
  const standby = new Agent(options).on("message", async (ctx) => {
    handled.push(ctx.text);
    await ctx.reply(`standby: ${ctx.text}`);
  });
  await running(
    standby,
    async () => {
      const conversation = await talk(options);
      await running(echo(options), () => isAnswered(conversation, "one"));
      await conversation.send("two");
      await new Promise((resolve) => setTimeout(resolve, 300));
      assert.deepEqual(handled, []);
      const answer = await answerTo(ada, async () => standby.activate());
      assert.equal(answer.opened?.content["text"], "standby: two");
    },
    { standby: true },
  );
});

test("another key than the registered one stops the agent", async () => {
  const options = await cluster.agent("keyed", ada.client);
  await new Agent(options).check();
  const { AgentKey } = await import("@blindpipe/client/e2ee");
  const other = new Agent({ ...options, key: AgentKey.random().toText() });
  await assert.rejects(other.run(), { code: "AGENT_KEYS_MISMATCH" });
});

test("secrets, keys and texts never reach a logger", async () => {
  const options = await cluster.agent("logged", ada.client);
  const lines: string[] = [];
  const write = (...parts: unknown[]): void => void lines.push(JSON.stringify(parts));
  const logger = { debug: write, info: write, warn: write, error: write };
  const agent = new Agent({ ...options, logger, retryDelays: [1] }).on("message", async (ctx) => {
    await ctx.reply(`You said: ${ctx.text}`);
    throw new Error(ctx.text);
  });
  const mark = "planted-mark-7391";
  await running(agent, async () => isAnswered(await talk(options), mark));
  assert(lines.length > 0);
  for (const planted of [mark, options.token, String(options.key)]) {
    assert(!lines.some((line) => line.includes(planted)));
  }
});

test("sends beyond the budget wait in their order", async () => {
  const limited: string[] = [];
  const bob = await cluster.user("bob", {
    hooks: { rate_limited: ({ scope }) => void limited.push(scope) },
  });
  const conversation = await bob.client.openDirect(ada.client.account.userId);
  await conversation.send("0");
  const texts = Array.from({ length: 30 }, (_, i) => String(i + 1));
  await Promise.all(texts.map((text) => conversation.send(text)));
  const stored: string[] = [];
  for await (const { opened } of conversation.history())
    stored.push(String(opened?.content["text"]));
  assert.deepEqual(stored.reverse(), ["0", ...texts]);
  assert(limited.includes("user_message_send"));
});

test("fifty replies at once from one handler all arrive, each once", async () => {
  const options = await cluster.agent("fifty", ada.client);
  const conversation = await talk(options);
  const texts = Array.from({ length: 50 }, (_, i) => `reply ${i}`);
  const agent = new Agent(options).on("message", async (ctx) => {
    await Promise.all(texts.map((text) => ctx.reply(text)));
  });
  const arrived: string[] = [];
  await running(agent, async () => {
    await conversation.send("fifty");
    for await (const event of ada.client.events()) {
      if (event.type !== "message" || event.conversation.id !== conversation.id) continue;
      const text = String(event.opened?.content["text"]);
      if (text.startsWith("reply ") && arrived.push(text) === texts.length) break;
    }
  });
  // Sends that do not wait for each other reach the service in any order.
  assert.deepEqual(arrived.toSorted(), texts.toSorted());
});

test("a pin store makes a sender known at the next start", async () => {
  const path = join(await mkdtemp(join(tmpdir(), "pins-")), "pins.json");
  const options = { ...(await cluster.agent("rememberer", ada.client)), pins: path };
  const conversation = await talk(options);
  for (const pinned of [false, true]) {
    const agent = new Agent(options).on("message", (ctx) => {
      assert.equal(ctx.sender?.authentic, true);
      return ctx.reply(`pinned: ${ctx.sender?.pinned}`);
    });
    await running(agent, async () => {
      const answer = await answerTo(ada, () => conversation.send("known?"));
      assert.equal(answer.opened?.content["text"], `pinned: ${pinned}`);
    });
  }
  const { mode } = await stat(path);
  assert.equal(mode & 0o777, 0o600);
});

test("a handler that fails runs again, and its event ends as a dead letter", async () => {
  const dead: string[] = [];
  const options = await cluster.agent("failing", ada.client);
  let tries = 0;
  const agent = new Agent({
    ...options,
    retryDelays: [1, 1],
    hooks: { dead_letter: ({ event_id }) => void dead.push(event_id) },
  }).on("message", async (ctx) => {
    if (ctx.text !== "bad") return void (await ctx.reply(`You said: ${ctx.text}`));
    tries += 1;
    throw new Error("always");
  });
  await running(agent, async () => {
    const conversation = await talk(options);
    await conversation.send("bad");
    await isAnswered(conversation, "good");
  });
  assert.deepEqual([tries, dead.length], [3, 1]);
});
